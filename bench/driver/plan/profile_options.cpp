#include "driver/plan/profile_options.h"

#include <fmt/core.h>

#include "core/error.h"
#include "core/names.h"
#include "driver/plan/suite.h"

namespace headroom {

ProfileParser::ProfileParser(CLI::App& app)
    : command(app.add_subcommand("profile",
                                 "Train one backend in one process for Nsight Systems and Nsight Compute")) {
  RunOptions& trained = options.trained;
  // A profiler makes what it watches many times slower.
  trained.time_limit_seconds = trained.setup_limit_seconds = 3600;
  command->add_option("workload", workload_,
                      "As --workload of run, or with --suite the name of one of its workloads");
  command->add_option("backend", backend_, "Its name; `list` shows them");
  command->add_option("precision", precision_, "fp32, tf32, fp16 or bf16");
  command->add_option("--suite", suite_, "The suite, or its file, that WORKLOAD is of");
  command->add_option("--steps", options.steps, "Of the block that is trained after the check")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command->add_option("--device", trained.device, "CUDA device index")
      ->capture_default_str()
      ->check(CLI::Range(0, 1023));
  auto* wait = command->add_flag("--wait", trained.wait, "Wait until no other run uses the device");
  command
      ->add_flag("--share-device", trained.share_device,
                 "Go on although another run uses the device, or its lock cannot be had")
      ->excludes(wait);
  command
      ->add_option("--time-limit", trained.time_limit_seconds,
                   "Seconds a worker may take for one call, setting up as well, before it is ended")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
  command->add_option("--cache-dir", trained.cache_folder, "As in run");
  command->add_option("--worker", workers, "NAME=COMMAND: one more worker program, or in place of one")
      ->allow_extra_args(false);
  command->footer(
      "Alone it trains and prints the two command lines to use. The profilers find the ranges set-up, "
      "check,\n"
      "warm-up and block (NVTX).\n"
      "Exit codes: 0 done, 1 the backend failed, 2 wrong usage, or it cannot run here, 130 interrupted.");
}

void ProfileParser::finish(const std::vector<std::string>& argv, std::vector<WorkerOption> programs) {
  RunOptions& trained = options.trained;
  int given = 0;
  for (const std::string* word : {&workload_, &backend_, &precision_}) given += word->empty() ? 0 : 1;
  if (given < 3)
    throw InputError(
        fmt::format("profile: expected WORKLOAD BACKEND PRECISION, such as mlp-784x128x10-b32 cuda-layered "
                    "fp32; found {} of the three",
                    given));
  if (backend_ == kAllBackends) throw InputError("profile all: expected one backend; `list` shows them");
  check_name("profile: backend", backend_);
  trained.backends = {backend_};
  trained.precisions = {parse_precision(precision_)};
  if (suite_.empty()) {
    trained.workload_names = {workload_};
  } else {
    trained.suite = suite_;
    trained.suite_workloads = {workload_};
  }
  trained.setup_limit_seconds = trained.time_limit_seconds;
  trained.device_given = command->get_option("--device")->count() > 0;
  trained.workers = std::move(programs);
  trained.argv = argv;
}

}  // namespace headroom
