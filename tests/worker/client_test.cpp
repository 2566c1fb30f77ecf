// The driver's end against workers that behave and workers that do not.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "oracle/oracle.h"
#include "scratch.h"
#include "worker/children.h"
#include "worker/reference_files.h"

namespace headroom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

template <typename Error>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no exception";
}

class Client : public ::testing::Test {
 protected:
  WorkerCommand fault_worker() const {
    return {
        "fault", {(program_folder() / "headroom-fault-worker").string()}, {}, scratch_.folder / "fault.log"};
  }
  /// A worker whose whole behaviour is a shell script. Hello's request has the id 1.
  WorkerCommand script(const std::string& text) const {
    return {"script", {"/bin/sh", "-c", text}, {}, scratch_.folder / "script.log"};
  }
  std::string lost_by_hello(const std::string& text, TimeLimits limits = {}) const {
    WorkerClient worker(script(text), -1, limits);
    const std::string message = message_of<WorkerLostError>([&] { worker.hello(); });
    EXPECT_FALSE(worker.alive());
    return message;
  }
  /// Loses a worker in train() of `backend` and shows that the next one works.
  std::string lost_by_train(const std::string& backend, TimeLimits limits = {}) const {
    std::string message;
    {
      WorkerClient worker(fault_worker(), -1, limits);
      worker.hello();
      scratch_.prepare(worker, backend);
      message = message_of<WorkerLostError>([&] { worker.train(0, 1); });
      EXPECT_FALSE(worker.alive());
      EXPECT_THAT(message_of<WorkerLostError>([&] { worker.train(0, 1); }), HasSubstr("worker fault"));
    }
    expect_that_a_new_worker_works();
    return message;
  }
  void expect_that_a_new_worker_works() const {
    WorkerClient worker(fault_worker(), -1);
    EXPECT_EQ(worker.hello().worker, "fault");
    scratch_.prepare(worker, "empty");
    EXPECT_GT(worker.train(0, 3).device_seconds, 0);
  }

  Scratch scratch_{small_workload()};
};

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

bool process_exists(pid_t pid) { return ::kill(pid, 0) == 0; }

pid_t read_pid(const std::filesystem::path& file) {
  pid_t pid = 0;
  for (int attempt = 0; attempt < 500 && pid == 0; ++attempt) {
    std::ifstream(file) >> pid;
    if (pid == 0) std::this_thread::sleep_for(10ms);
  }
  return pid;
}

bool gone_within(pid_t pid, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (process_exists(pid) && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(5ms);
  return !process_exists(pid);
}

TEST_F(Client, AWorkerHasAsLongToEndAsItsLimitSays) {
  const std::filesystem::path file = scratch_.folder / "written-at-the-end";
  for (const std::chrono::milliseconds limit : {10ms, 5000ms}) {
    TimeLimits limits;
    limits.goodbye = limit;
    {
      WorkerClient worker(script("cat > /dev/null; sleep 0.2; : > '" + file.string() + "'"), -1, limits);
    }
    EXPECT_EQ(std::filesystem::exists(file), limit > 1000ms);
  }
}

TEST_F(Client, HelloListsBackendsAndWhatIsUnavailable) {
  WorkerClient worker(fault_worker(), -1);
  const WorkerHello hello = worker.hello();
  EXPECT_EQ(hello.worker, "fault");
  EXPECT_EQ(hello.software.at("fault"), "1");
  EXPECT_FALSE(hello.device.has_value());
  ASSERT_GE(hello.backends.size(), 2u);
  EXPECT_EQ(hello.backends.front().name, "empty");
  EXPECT_EQ(hello.backends.front().precisions.size(), 4u);
  EXPECT_EQ(hello.backends.back().precisions.at(Precision::kFp32).unavailable,
            "no such device in this machine");
}

TEST_F(Client, TrainsReadsAndSetsParameters) {
  WorkerClient worker(fault_worker(), -1);
  EXPECT_GE(scratch_.prepare(worker, "oracle-honest").setup_seconds, 0);
  const Timing timing = worker.train(0, 5);
  EXPECT_GT(timing.device_seconds, 0);
  EXPECT_GE(timing.wall_seconds, timing.device_seconds * 0.5);
  const std::vector<float> losses = worker.losses(0, 5, scratch_.folder / "losses");
  EXPECT_EQ(losses.size(), 5u);
  EXPECT_GT(losses[0], 0);
  EXPECT_FALSE(std::filesystem::exists(scratch_.folder / "losses"));

  worker.state(scratch_.folder / "after");
  const std::int64_t count = scratch_.workload.parameter_count();
  EXPECT_NE(read_floats(scratch_.folder / "after", count), read_floats(scratch_.parameters_file, count));
  worker.set_state(scratch_.parameters_file);
  worker.state(scratch_.folder / "again");
  EXPECT_EQ(read_floats(scratch_.folder / "again", count), read_floats(scratch_.parameters_file, count));
  EXPECT_EQ(worker.release(), std::nullopt);
}

TEST_F(Client, ReleaseReportsPeakMemoryOnceAndLeavesNoTrainer) {
  WorkerClient worker(fault_worker(), -1);
  scratch_.prepare(worker, "empty");
  EXPECT_EQ(worker.release(), 4096);
  EXPECT_EQ(worker.release(), std::nullopt);
  EXPECT_THAT(message_of<WorkerCallError>([&] { worker.train(0, 1); }), HasSubstr("no trainer is prepared"));
}

TEST_F(Client, AReferenceWritesItsPointsAndReturnsTheirLosses) {
  WorkerClient worker(fault_worker(), -1);
  scratch_.prepare(worker, "reference");
  const std::vector<std::int64_t> steps = {0, 3, 9};
  const ReferenceWanted wanted{{Contract::kExact, Contract::kAutocast}, 3};
  const ReferenceAnswer answer = worker.reference(steps, kFreeSteps, wanted, scratch_.folder);
  ASSERT_EQ(answer.losses.size(), steps.size());
  EXPECT_EQ(answer.free_spreads.size(), 2u);
  const ReferenceFiles files{scratch_.folder};
  const std::int64_t count = scratch_.workload.parameter_count();
  for (const std::int64_t step : steps) {
    EXPECT_EQ(read_floats(files.start(step), count).size(), static_cast<std::size_t>(count));
    for (const Contract contract : wanted.contracts) {
      EXPECT_EQ(read_floats(files.update(contract, step), count).size(), static_cast<std::size_t>(count));
      const Copies copies = read_copies(files.copies(contract, step), 3, scratch_.workload);
      EXPECT_EQ(copies.distances.size(), copies.scales.size());
    }
  }
  EXPECT_EQ(read_floats(files.free(), count).size(), static_cast<std::size_t>(count));
  EXPECT_GT(answer.losses[0], 0);
  scratch_.prepare(worker, "empty");
  EXPECT_THAT(message_of<WorkerCallError>([&] { worker.reference(steps, 0, {}, scratch_.folder); }),
              HasSubstr("backend empty is no reference"));
}

TEST_F(Client, OneCallTakesLessThanAMillisecond) {
  WorkerClient worker(fault_worker(), -1);
  worker.hello();
  scratch_.prepare(worker, "empty");
  constexpr int kCalls = 200;
  std::vector<double> seconds;
  for (int call = 0; call < kCalls; ++call) {
    const auto start = std::chrono::steady_clock::now();
    const Timing timing = worker.train(call, 1);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() -
                      timing.wall_seconds);
  }
  // The least, not the median: on a busy machine most calls wait for a processor, which is no cost of ours.
  const double least = *std::min_element(seconds.begin(), seconds.end());
  std::printf("one call costs %.1f us (least of %d)\n", least * 1e6, kCalls);
  EXPECT_LT(least, 1e-3);
}

TEST_F(Client, AWorkerThatDiesIsLostWithItsSignalAndItsLog) {
  EXPECT_THAT(lost_by_train("fault-dies"),
              AllOf(HasSubstr("worker fault died with signal 6 (Aborted) during 'train'"),
                    HasSubstr("its log ends: about to abort"), Not(HasSubstr("\n"))));
}

TEST_F(Client, AWorkerThatDiesInPrepareIsLost) {
  {
    WorkerClient worker(fault_worker(), -1);
    EXPECT_THAT(message_of<WorkerLostError>([&] { scratch_.prepare(worker, "fault-dies-in-prepare"); }),
                HasSubstr("died with signal 6 (Aborted) during 'prepare'"));
  }
  expect_that_a_new_worker_works();
}

TEST_F(Client, AWorkerThatHangsIsEndedAtItsTimeLimit) {
  TimeLimits limits;
  limits.train = 200ms;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(lost_by_train("fault-hangs", limits),
              HasSubstr("worker fault gave no answer to 'train' within 200 ms and was ended"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST_F(Client, RubbishIsQuotedAndEndsTheWorker) {
  EXPECT_THAT(
      lost_by_train("fault-rubbish"),
      HasSubstr(
          "gave a wrong answer to 'train' and was ended: not JSON: 'Segmentation fault (core dumped)'"));
}

TEST_F(Client, WhatALibraryPrintsGoesToTheLog) {
  WorkerClient worker(fault_worker(), -1);
  scratch_.prepare(worker, "fault-prints");
  EXPECT_GT(worker.train(0, 1).device_seconds, 0);
  EXPECT_GT(worker.train(1, 1).device_seconds, 0);
  std::ifstream log(scratch_.folder / "fault.log");
  const std::string text((std::istreambuf_iterator<char>(log)), {});
  EXPECT_THAT(text, HasSubstr("a library says hello"));
}

TEST_F(Client, ErrorsOfACallKeepTheWorker) {
  WorkerClient worker(fault_worker(), -1);
  const auto kind_and_message = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const WorkerCallError& error) {
      return std::pair(error.kind(), std::string(error.what()));
    }
    return std::pair(WorkerCallError::Kind::kFailed, std::string("no exception"));
  };
  using Kind = WorkerCallError::Kind;
  EXPECT_EQ(kind_and_message([&] { scratch_.prepare(worker, "fault-out-of-memory"); }),
            std::pair(Kind::kOutOfMemory, std::string("asked for 1 TB, 1 GB is free")));
  EXPECT_EQ(kind_and_message([&] { scratch_.prepare(worker, "fault-unsupported"); }),
            std::pair(Kind::kUnsupported, std::string("widths must be even")));
  EXPECT_EQ(kind_and_message([&] { scratch_.prepare(worker, "fault-unavailable"); }),
            std::pair(Kind::kUnsupported, std::string("no such device in this machine")));
  EXPECT_EQ(kind_and_message([&] { scratch_.prepare(worker, "nothing"); }),
            std::pair(Kind::kInput, std::string("backend: worker fault has none called 'nothing'")));
  scratch_.prepare(worker, "fault-throws");
  EXPECT_EQ(kind_and_message([&] { worker.train(0, 1); }),
            std::pair(Kind::kFailed, std::string("two lines")));
  scratch_.prepare(worker, "fault-times");
  EXPECT_EQ(kind_and_message([&] { worker.train(0, 1); }),
            std::pair(Kind::kFailed, std::string("the trainer reported a time of nan s")));
  scratch_.prepare(worker, "empty");
  EXPECT_GT(worker.train(0, 1).device_seconds, 0);
}

TEST_F(Client, TargetsOfAnotherWidthThanTheOutputsAreRefused) {
  Workload workload = small_workload();  // three outputs
  workload.loss = Loss::kMeanSquaredError;
  const Scratch scratch(workload);
  const std::string program = (program_folder() / "headroom-oracle-worker").string();
  WorkerClient worker({"oracle", {program}, {}, scratch.folder / "oracle.log"}, -1);
  worker.hello();
  for (const int width : {1, 2, 4}) {  // 1: labels have as many bytes
    write_floats(scratch.data.targets,
                 std::vector<float>(static_cast<std::size_t>(scratch.data.samples * width), 0.5f));
    EXPECT_THAT(message_of<WorkerCallError>([&] { scratch.prepare(worker, "oracle"); }),
                HasSubstr("expected " + std::to_string(scratch.data.samples * 3 * 4) + " bytes, found " +
                          std::to_string(scratch.data.samples * width * 4)));
  }
}

TEST_F(Client, AFailedPrepareLeavesNoTrainer) {
  WorkerClient worker(fault_worker(), -1);
  scratch_.prepare(worker, "empty");
  EXPECT_THROW(scratch_.prepare(worker, "fault-unsupported"), WorkerCallError);
  EXPECT_THAT(message_of<WorkerCallError>([&] { worker.train(0, 1); }), HasSubstr("no trainer is prepared"));
}

TEST_F(Client, LossesOfStepsThatWereNotTrainedAreRefused) {
  WorkerClient worker(fault_worker(), -1);
  scratch_.prepare(worker, "empty");
  const auto refusal = [&](std::int64_t first_step, std::int64_t count) {
    return message_of<WorkerCallError>([&] { worker.losses(first_step, count, scratch_.folder / "losses"); });
  };
  EXPECT_THAT(refusal(0, 1), HasSubstr("none were trained"));
  worker.train(0, 4);
  worker.train(4, 4);
  EXPECT_EQ(worker.losses(2, 6, scratch_.folder / "losses").size(), 6u);
  EXPECT_EQ(refusal(7, 2), "losses of steps 7 to 8 asked for, but those of steps 0 to 7 are kept");
  worker.train(100, 2);
  EXPECT_EQ(refusal(4, 1), "losses of steps 4 to 4 asked for, but those of steps 100 to 101 are kept");
}

TEST_F(Client, PrepareRefusesFilesThatDoNotFit) {
  WorkerClient worker(fault_worker(), -1);
  const auto refusal = [&] {
    return message_of<WorkerCallError>([&] { scratch_.prepare(worker, "empty"); });
  };
  std::vector<std::int32_t> labels = scratch_.labels;
  labels[7] = 3;
  scratch_.write_labels(labels);
  EXPECT_THAT(refusal(), HasSubstr("labels.i32: label of sample 7: expected 0 to 2, found 3"));
  labels.resize(8);
  scratch_.write_labels(labels);
  EXPECT_THAT(refusal(), HasSubstr("labels.i32: expected 196 bytes, found 32"));
  scratch_.write_labels(scratch_.labels);
  write_floats(scratch_.parameters_file, std::vector<float>(3));
  EXPECT_THAT(refusal(), HasSubstr("initial.f32: expected"));
  std::filesystem::remove(scratch_.data.features);
  EXPECT_THAT(refusal(), HasSubstr("features.f32: cannot be read"));
}

TEST_F(Client, AProgramThatIsNotThereSaysSo) {
  EXPECT_THAT(
      message_of<WorkerLostError>([&] { WorkerClient worker({"cuda", {"/nowhere/worker"}, {}, {}}, 0); }),
      HasSubstr("worker cuda cannot be started: /nowhere/worker: No such file or directory"));
}

TEST_F(Client, AWorkerThatEndsAtOnceIsLostWithItsStatusAndLog) {
  EXPECT_THAT(
      lost_by_hello("echo libtorch.so not found >&2; exit 3"),
      HasSubstr("worker script exited with status 3 during 'hello'; its log ends: libtorch.so not found"));
}

TEST_F(Client, ASegmentationFaultIsNamed) {
  EXPECT_THAT(lost_by_hello("read line; kill -SEGV $$"),
              HasSubstr("died with signal 11 (Segmentation fault)"));
}

TEST_F(Client, AWorkerThatASignalEndedIsToldFromOneThatExited) {
  WorkerClient killed(script("read line; kill -KILL $$"), -1), exited(script("read line; exit 9"), -1);
  EXPECT_THROW(killed.hello(), WorkerKilledError);
  try {
    exited.hello();
    FAIL() << "it answered";
  } catch (const WorkerKilledError& error) {
    FAIL() << error.what();
  } catch (const WorkerLostError& error) {
    EXPECT_THAT(error.what(), HasSubstr("exited with status 9"));
  }
}

TEST_F(Client, AnAnswerToAnotherRequestEndsTheWorker) {
  EXPECT_THAT(lost_by_hello(R"(read line; echo '{"id": 2, "ok": true, "result": {}}'; sleep 60)"),
              HasSubstr("id: expected 1, found 2"));
}

TEST_F(Client, AnotherProtocolVersionIsNamed) {
  EXPECT_THAT(
      lost_by_hello(R"(read line; echo '{"id": 1, "ok": true, "result": {"protocol": 3}}'; sleep 60)"),
      HasSubstr("it speaks version 3 of the worker protocol, this program version 2"));
}

TEST_F(Client, AWorkerThatSpeaksBeforeItIsAskedIsEnded) {
  WorkerClient worker(script(R"(echo Welcome; touch "$0.said"; sleep 60)"), -1);
  std::this_thread::sleep_for(300ms);
  EXPECT_THAT(message_of<WorkerLostError>([&] { worker.hello(); }),
              HasSubstr("it wrote before it was asked: 'Welcome'"));
}

TEST_F(Client, AnEndlessLineEndsTheWorker) {
  EXPECT_THAT(lost_by_hello("read line; exec cat /dev/zero"),
              HasSubstr("wrote a line of more than 1048576 bytes"));
}

TEST_F(Client, AnOutputThatIsClosedEndsTheWorker) {
  EXPECT_THAT(lost_by_hello("read line; exec >&-; sleep 60"), HasSubstr("closed its output during 'hello'"));
}

TEST_F(Client, DeathIsSeenThoughAChildOfTheWorkerHoldsItsOutput) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(lost_by_hello("sleep 60 & read line; exit 4"), HasSubstr("exited with status 4"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST_F(Client, EndingAWorkerEndsWhatItStarted) {
  const std::filesystem::path file = scratch_.folder / "pid";
  pid_t child = 0;
  {
    WorkerClient worker(script("sleep 60 & echo $! > " + file.string() + "; read line; exit 0"), -1);
    child = read_pid(file);
    ASSERT_GT(child, 0);
    EXPECT_TRUE(process_exists(child));
  }
  EXPECT_TRUE(gone_within(child, 5s));
}

TEST_F(Client, KillFromAnotherThreadEndsACall) {
  WorkerClient worker(fault_worker(), -1);
  scratch_.prepare(worker, "fault-hangs");
  std::thread killer([&] {
    std::this_thread::sleep_for(100ms);
    worker.kill();
  });
  EXPECT_THAT(message_of<WorkerLostError>([&] { worker.train(0, 1); }),
              HasSubstr("died with signal 9 (Killed)"));
  killer.join();
}

TEST_F(Client, AWorkerLeadsItsOwnProcessGroup) {
  const std::filesystem::path file = scratch_.folder / "pid";
  WorkerClient worker(script("echo $$ > " + file.string() + "; read line"), -1);
  const pid_t pid = read_pid(file);
  ASSERT_GT(pid, 0);
  EXPECT_EQ(::getpgid(pid), pid);
}

TEST_F(Client, AWorkerDiesWithItsDriverEvenWhileItHangs) {
  const std::filesystem::path file = scratch_.folder / "pid";
  const pid_t driver = ::fork();
  if (driver == 0) {
    // Ignores the end of its input, as a worker does that is busy.
    WorkerClient worker(script("echo $$ > " + file.string() + "; while :; do sleep 1; done"), -1);
    std::this_thread::sleep_for(60s);
    ::_exit(0);
  }
  const pid_t pid = read_pid(file);
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(process_exists(pid));
  ::kill(driver, SIGKILL);
  ::waitpid(driver, nullptr, 0);
  EXPECT_TRUE(gone_within(pid, 5s));
}

TEST_F(Client, LeavesNeitherZombiesNorDescriptors) {
  {
    WorkerClient worker(fault_worker(), -1);
  }
  const int before = open_descriptors();
  for (int round = 0; round < 3; ++round) {
    WorkerClient worker(fault_worker(), -1);
    scratch_.prepare(worker, "fault-dies");
    EXPECT_THROW(worker.train(0, 1), WorkerLostError);
    EXPECT_THROW(WorkerClient({"none", {"/nowhere/worker"}, {}, {}}, 0), WorkerLostError);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(Client, AWorkerInheritsNoDescriptorsOfTheDriver) {
  WorkerClient first(fault_worker(), -1);
  WorkerClient second(script("ls /proc/self/fd | wc -l >&2; exit 0"), -1);
  // 0, 1, 2 and the one that ls reads the folder through.
  EXPECT_THAT(message_of<WorkerLostError>([&] { second.hello(); }), HasSubstr("its log ends: 4"));
}

// A test program is one process: what makes it a parent of orphans happens in a child, which says how it went.
template <typename Work>
int code_of_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(Client, EndingAWorkerEndsWhatHasLeftItsGroup) {
  const std::filesystem::path file = scratch_.folder / "pid";
  const WorkerCommand command =
      script("(setsid sh -c 'echo $$ > " + file.string() + "; exec sleep 60' &); read line; exit 0");
  EXPECT_EQ(code_of_child([&] {
              children::adopt_orphans();
              pid_t daemon = 0;
              {
                WorkerClient worker(command, -1);
                daemon = read_pid(file);
                if (daemon == 0 || !process_exists(daemon)) return 2;
              }
              return process_exists(daemon) ? 1 : 0;
            }),
            0);
}

TEST_F(Client, EndingAWorkerLeavesTheProgramsOtherChildrenAlone) {
  const auto sleeper = [] {
    const pid_t pid = ::fork();
    if (pid == 0) ::execlp("sleep", "sleep", "60", nullptr);
    return pid;
  };
  const WorkerCommand command = fault_worker();
  EXPECT_EQ(code_of_child([&] {
              const pid_t before = sleeper();  // as after exec in a shell
              children::adopt_orphans();
              const pid_t ours = children::start(sleeper);
              const pid_t other = [&] {
                WorkerClient second(command, -1);
                return children::start(sleeper);
              }();
              int code = 0;
              for (const pid_t pid : {before, ours, other}) {
                if (::waitpid(pid, nullptr, WNOHANG) != 0) code = 1;
                ::kill(pid, SIGKILL);
              }
              return code;
            }),
            0);
}

// A FIFO has no end, a link may lead anywhere; and the next worker is not to find it.
TEST_F(Client, LossesInWhatIsNoFileEndTheWorker) {
  const std::filesystem::path file = scratch_.folder / "losses";
  for (const std::string make : {"mkfifo ", "ln -s /dev/zero ", "mkdir "}) {
    WorkerClient worker(script("read line; " + make + file.string() +
                               R"(; echo '{"id": 1, "ok": true, "result": {"count": 3}}'; sleep 60)"),
                        -1);
    EXPECT_THAT(message_of<WorkerLostError>([&] { worker.losses(0, 3, file); }),
                AllOf(HasSubstr("gave a wrong answer to 'losses' and was ended"), HasSubstr(file.string())))
        << make;
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(file))) << make;
  }
}

TEST_F(Client, WhatAWorkerLeftInTheWayDoesNotHoldUpTheNext) {
  const std::filesystem::path file = scratch_.folder / "file";
  const auto make = [&](int kind) {
    if (kind == 0) {
      EXPECT_EQ(::mkfifo(file.c_str(), 0600), 0);
    }
    if (kind == 1) std::filesystem::create_symlink("/dev/full", file);
    if (kind == 2) std::filesystem::create_directories(file / "below");
  };
  WorkerClient worker(fault_worker(), -1);
  scratch_.prepare(worker, "empty");
  worker.train(0, 2);
  for (int kind = 0; kind < 3; ++kind) {
    make(kind);
    EXPECT_EQ(worker.losses(0, 2, file).size(), 2u) << kind;
    make(kind);
    worker.state(file);
    EXPECT_EQ(read_floats(file, scratch_.workload.parameter_count()),
              read_floats(scratch_.parameters_file, scratch_.workload.parameter_count()))
        << kind;
    std::filesystem::remove(file);
  }
}

TEST_F(Client, ALogThatAWorkerHasReplacedIsReadNoMore) {
  const std::string log = (scratch_.folder / "script.log").string();
  EXPECT_THAT(lost_by_hello("echo before >&2; rm " + log + "; mkfifo " + log + "; exit 3"),
              HasSubstr("its log ends: before"));
  EXPECT_THAT(lost_by_hello("echo again >&2; exit 3"), HasSubstr("its log ends: again"));
}

TEST_F(Client, TheEnvironmentIsAddedTo) {
  WorkerCommand command = script("echo \"$HEADROOM_TEST_VALUE $HOME\" >&2; exit 0");
  command.environment["HEADROOM_TEST_VALUE"] = "seven";
  WorkerClient worker(command, -1);
  EXPECT_THAT(message_of<WorkerLostError>([&] { worker.hello(); }), HasSubstr("its log ends: seven /"));
}

}  // namespace
}  // namespace headroom
