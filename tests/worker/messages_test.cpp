// The messages' JSON form: what is written is read back, and what is not whole is refused by field.
#include "worker/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace headroom {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

template <typename Answer>
std::string refusal(const std::string& line) {
  try {
    read_answer<Answer>(line, 1);
  } catch (const MessageError& error) {
    return error.what();
  }
  return "accepted";
}

std::string request_refusal(const std::string& line) {
  try {
    read_request(line);
  } catch (const MessageError& error) {
    return error.what();
  }
  return "accepted";
}

Workload small() {
  Workload workload;
  workload.name = "small";
  workload.model.widths = {2, 3};
  workload.batch_size = 1;
  return workload;
}

std::string timing_line(const std::string& device_seconds) {
  return R"({"id": 1, "ok": true, "result": {"device_seconds": )" + device_seconds +
         R"(, "wall_seconds": 1.5, "cpu_seconds": 2}})";
}

TEST(Messages, PrepareIsReadBackAsWritten) {
  PrepareCall call;
  call.backend = "cuda-layered";
  call.workload.name = "mlp-7x5x3-b2";
  call.workload.model.widths = {7, 5, 3};
  call.workload.batch_size = 2;
  call.workload.optimizer.learning_rate = 0.1;
  call.workload.seed = std::numeric_limits<std::uint64_t>::max();
  call.precision = Precision::kBf16;
  call.data = {"/dev/shm/a b", "/dev/shm/\"c\"", 11, 7};
  call.parameters_file = "/dev/shm/p";
  const Request request = read_request(write_request({42, call}));
  EXPECT_EQ(request.id, 42);
  const auto& read = std::get<PrepareCall>(request.call);
  EXPECT_EQ(read.backend, call.backend);
  EXPECT_EQ(read.workload.name, call.workload.name);
  EXPECT_EQ(read.workload.model.widths, call.workload.model.widths);
  EXPECT_EQ(read.workload.batch_size, call.workload.batch_size);
  EXPECT_EQ(read.workload.optimizer.learning_rate, call.workload.optimizer.learning_rate);
  EXPECT_EQ(read.workload.seed, call.workload.seed);
  EXPECT_EQ(read.precision, call.precision);
  EXPECT_EQ(read.data.features, call.data.features);
  EXPECT_EQ(read.data.targets, call.data.targets);
  EXPECT_EQ(read.data.samples, call.data.samples);
  EXPECT_EQ(read.parameters_file, call.parameters_file);
  EXPECT_EQ(read.cache_folder, "");
}

TEST(Messages, ACompileRequestIsReadBackAsWritten) {
  const CompileCall call{"cuda-fused",
                         small(),
                         Precision::kBf16,
                         "/a/cache",
                         {.compute_major = 9, .compute_minor = 0, .sm_count = 114, .shared_bytes = 232448}};
  const Request request = read_request(write_request({3, call}));
  EXPECT_EQ(name_of(request.call), "compile");
  const auto& read = std::get<CompileCall>(request.call);
  EXPECT_EQ(read.backend, call.backend);
  EXPECT_EQ(read.workload.model.widths, call.workload.model.widths);
  EXPECT_EQ(read.precision, call.precision);
  EXPECT_EQ(read.cache_folder, call.cache_folder);
  EXPECT_EQ(read.target.compute_major, 9);
  EXPECT_EQ(read.target.compute_minor, 0);
  EXPECT_EQ(read.target.sm_count, 114);
  EXPECT_EQ(read.target.shared_bytes, 232448);
}

TEST(Messages, WhatASetUpFoundIsReadBackAsWritten) {
  const auto through = [](const Prepared& prepared) {
    return std::get<Prepared>(read_answer<Prepared>(write_answer(1, prepared), 1));
  };
  EXPECT_EQ(through({2.5, "note", SetupCache::kWarm}).setup_cache, SetupCache::kWarm);
  EXPECT_EQ(through({2.5, "note", SetupCache::kCold}).setup_cache, SetupCache::kCold);
  EXPECT_EQ(through({2.5, "note"}).setup_cache, std::nullopt);
  EXPECT_FALSE(through({2.5, "note"}).choice);
  const Choice choice{"cuda-b", true, {{"cuda-a", {}, "too wide"}, {"cuda-b", 2e-5, ""}}};
  const Choice read = through({2.5, "note", {}, choice}).choice.value();
  EXPECT_EQ(read.taken, "cuda-b");
  EXPECT_TRUE(read.was_kept);
  ASSERT_EQ(read.candidates.size(), 2u);
  EXPECT_EQ(read.candidates[0].left_out, "too wide");
  EXPECT_FALSE(read.candidates[0].step_seconds);
  EXPECT_EQ(read.candidates[1].step_seconds, 2e-5);
  // Workers of others may know nothing of it.
  const std::string without = R"({"id": 1, "ok": true, "result": {"setup_seconds": 2.5, "note": ""}})";
  EXPECT_EQ(std::get<Prepared>(read_answer<Prepared>(without, 1)).setup_cache, std::nullopt);
  EXPECT_EQ(
      refusal<Prepared>(
          R"({"id": 1, "ok": true, "result": {"setup_seconds": 2.5, "note": "", "setup_cache": "hot"}})"),
      R"(result.setup_cache: expected cold, warm or null, found "hot")");
}

TEST(Messages, OnlyAWorkloadOfSeveralDevicesNamesThem) {
  PrepareCall call;
  call.backend = "cuda-layered";
  call.workload = small();
  call.data = {"/f", "/t", 4, 2};
  call.parameters_file = "/p";
  EXPECT_THAT(write_request({1, call}), Not(HasSubstr("devices")));
  call.workload.devices = 2;
  call.devices = {1, 0};
  const std::string line = write_request({1, call});
  const auto read = std::get<PrepareCall>(read_request(line).call);
  EXPECT_EQ(read.workload.devices, 2);
  EXPECT_EQ(read.devices, (std::vector<int>{1, 0}));
  const auto with = [&](const std::string& devices) {
    std::string changed = line;
    return request_refusal(changed.replace(changed.find("[1,0]"), 5, devices));
  };
  EXPECT_EQ(with("[0,1]"), "accepted");
  EXPECT_THAT(with("[1,1]"), HasSubstr("devices[1]: is there twice"));
  EXPECT_THAT(with("[1,-1]"), HasSubstr("devices[1]"));
  EXPECT_THAT(with("2"), HasSubstr("devices"));
  const auto calibrate =
      std::get<CalibrateCall>(read_request(write_request({1, CalibrateCall{{0, 1}}})).call);
  EXPECT_EQ(calibrate.devices, (std::vector<int>{0, 1}));
  EXPECT_THAT(write_request({1, CalibrateCall{}}), Not(HasSubstr("devices")));
}

TEST(Messages, HelloSaysOnHowManyDevicesABackendTrainsAndWhichThereAre) {
  WorkerHello hello{
      "cuda", {}, std::nullopt, {{.name = "one"}, {.name = "eight", .max_devices = 8, .min_devices = 2}}};
  hello.devices = {{"made-up GPU", "", "", 1, 132, 9, 0, 1, 1}};
  const auto read = std::get<WorkerHello>(read_answer<WorkerHello>(write_answer(1, hello), 1));
  EXPECT_EQ(read.backends.at(0).max_devices, 1);
  EXPECT_EQ(read.backends.at(1).max_devices, 8);
  EXPECT_EQ(read.backends.at(0).min_devices, 1);
  EXPECT_EQ(read.backends.at(1).min_devices, 2);
  ASSERT_EQ(read.devices.size(), 1u);
  EXPECT_EQ(read.devices[0].index, 1);
}

TEST(Messages, ATimeIsReadBackToTheLastBit) {
  const Timing timing{0.1 + 0.2, 1e-9, 12345.678901234567};
  const auto read = std::get<Timing>(read_answer<Timing>(write_answer(1, timing), 1));
  EXPECT_EQ(read.device_seconds, timing.device_seconds);
  EXPECT_EQ(read.wall_seconds, timing.wall_seconds);
  EXPECT_EQ(read.cpu_seconds, timing.cpu_seconds);
}

TEST(Messages, HelloIsReadBackAsWritten) {
  WorkerHello hello{"cuda", {{"nvcc", "13.0"}}, DeviceInfo{}, {}};
  hello.device->name = "NVIDIA H200";
  hello.device->sm_count = 132;
  hello.device->compute_major = 9;
  hello.device->memory_bytes = 150'000'000'000;
  hello.backends = {{.name = "cuda-layered",
                     .family = Family::kOurs,
                     .description = "a kernel\neach",
                     .compiles = true,
                     .precisions = {{Precision::kFp16, {Contract::kAutocast, "no \"device\"\n"}}}},
                    {.name = "again", .repeats = true, .reference = true}};
  const auto read = std::get<WorkerHello>(read_answer<WorkerHello>(write_answer(1, hello), 1));
  EXPECT_EQ(read.worker, "cuda");
  EXPECT_EQ(read.software, hello.software);
  EXPECT_EQ(read.device->name, "NVIDIA H200");
  EXPECT_EQ(read.device->memory_bytes, 150'000'000'000);
  const OfferedPrecision offered = read.backends.at(0).precisions.at(Precision::kFp16);
  EXPECT_EQ(offered.contract, Contract::kAutocast);
  EXPECT_EQ(offered.unavailable, "no \"device\"");
  EXPECT_EQ(read.backends[0].family, Family::kOurs);
  EXPECT_EQ(read.backends[0].description, "a kernel each");
  EXPECT_TRUE(read.backends[0].compiles);
  EXPECT_FALSE(read.backends[0].repeats || read.backends[0].reference || read.backends[1].compiles);
  EXPECT_TRUE(read.backends[1].repeats && read.backends[1].reference);
  EXPECT_FALSE(read.calibrates || read.ranges || read.broken);
  hello.broken = "no library";
  EXPECT_EQ(std::get<WorkerHello>(read_answer<WorkerHello>(write_answer(1, hello), 1)).broken, "no library");
  hello.calibrates = true;
  EXPECT_TRUE(std::get<WorkerHello>(read_answer<WorkerHello>(write_answer(1, hello), 1)).calibrates);
  hello.ranges = true;
  EXPECT_TRUE(std::get<WorkerHello>(read_answer<WorkerHello>(write_answer(1, hello), 1)).ranges);
}

TEST(Messages, ARangeIsReadBackAsWritten) {
  for (const std::string name : {"set-up", ""}) {
    const Request read = read_request(write_request({7, RangeCall{name}}));
    EXPECT_EQ(std::get<RangeCall>(read.call).name, name);
  }
  EXPECT_THROW(read_request(R"({"id":1,"call":"range","name":"two words"})"), MessageError);
  EXPECT_THROW(read_request(R"({"id":1,"call":"range"})"), MessageError);
}

TEST(Messages, AHelloOfAWorkerThatKnowsNothingOfCalibrationAndRangesIsRead) {
  const std::string line =
      R"({"id":1,"ok":true,"result":{"protocol":2,"worker":"w","software":{},"device":null,"backends":[]}})";
  const auto read = std::get<WorkerHello>(read_answer<WorkerHello>(line, 1));
  EXPECT_FALSE(read.calibrates || read.ranges);
  EXPECT_TRUE(read.devices.empty());
}

// The hello of a worker with one backend, whose fields but the name and the precisions are these.
std::string hello_with(const std::string& fields) {
  return R"({"id":1,"ok":true,"result":{"protocol":2,"worker":"w","software":{},"device":null,"backends":[{"name":"b",)" +
         fields + R"("precisions":{}}]}})";
}

TEST(Messages, AFamilyThatThereIsNotIsRefusedWithTheNearest) {
  EXPECT_EQ(refusal<WorkerHello>(hello_with(R"("family":"other","description":"",)")), "accepted");
  EXPECT_THAT(refusal<WorkerHello>(hello_with(R"("family":"pytroch","description":"",)")),
              HasSubstr("backends[0].family: unknown family 'pytroch'; did you mean 'pytorch'?"));
  EXPECT_THAT(refusal<WorkerHello>(hello_with(R"("description":"",)")),
              HasSubstr("backends[0].family: missing"));
}

TEST(Messages, ANameThatIsNoneIsRefusedAtBothEnds) {
  const auto hello = [](const std::string& worker, const std::string& backend) {
    return refusal<WorkerHello>(write_answer(
        1, WorkerHello{worker, {}, {}, {{.name = backend, .precisions = {{Precision::kFp32, {}}}}}}));
  };
  EXPECT_EQ(hello("w", "b"), "accepted");
  EXPECT_THAT(hello("w", "/some/folder/x"),
              HasSubstr("backends[0].name: expected a name of letters, digits, '.', '-' and '_'"));
  EXPECT_THAT(hello("w", "\x1b[31m"), Not(HasSubstr("\x1b")));
  for (const char* name : {"", ".", "..", "a/b", "a b", "-b"}) {
    EXPECT_THAT(hello("w", name), HasSubstr("backends[0].name: expected a name")) << name;
    EXPECT_THAT(hello(name, "b"), HasSubstr("worker: expected a name")) << name;
    PrepareCall call;
    call.backend = name;
    call.workload = small();
    EXPECT_THAT(request_refusal(write_request({1, call})), HasSubstr("backend: expected a name")) << name;
    call.backend = "b";
    call.workload.name = name;
    EXPECT_THAT(request_refusal(write_request({1, call})), HasSubstr("workload.name: expected a name"))
        << name;
  }
}

TEST(Messages, WhatAWorkerSaysOfItselfHasNoControlCharacters) {
  WorkerHello hello{"w", {{"a\x1b", "1\n\x1b[2J"}}, DeviceInfo{}, {}};
  hello.device->name = "GPU\x1b[31m";
  hello.device->sm_count = 132;
  hello.device->compute_major = 9;
  hello.device->memory_bytes = 1;
  const auto read = std::get<WorkerHello>(read_answer<WorkerHello>(write_answer(1, hello), 1));
  EXPECT_EQ(read.software, (std::map<std::string, std::string>{{"a ", "1  [2J"}}));
  EXPECT_EQ(read.device->name, "GPU [31m");
  const Prepared prepared{1, "a\x1b[31m", std::nullopt};
  EXPECT_EQ(std::get<Prepared>(read_answer<Prepared>(write_answer(1, prepared), 1)).note, "a [31m");
}

// What walks over a value takes a frame of the stack for each level.
TEST(Messages, BracketsWithoutEndAreRefused) {
  const std::string deep(400'000, '[');
  EXPECT_THAT(refusal<Timing>(deep), HasSubstr("brackets more than"));
  const std::string closed = deep + std::string(deep.size(), ']');
  EXPECT_THAT(refusal<Timing>(R"({"id": 1, "ok": )" + closed + "}"), HasSubstr("brackets more than"));
  EXPECT_THAT(request_refusal(R"({"id": )" + closed + "}"), HasSubstr("brackets more than"));
}

TEST(Messages, RatesAreReadBackAndMustBeOverZero) {
  const Calibration rates = {{"copy", {4.27e12, "bytes_per_second", "how"}}};
  const auto read = std::get<Calibration>(read_answer<Calibration>(write_answer(1, rates), 1));
  EXPECT_EQ(read.at("copy").value, 4.27e12);
  EXPECT_EQ(read.at("copy").unit, "bytes_per_second");
  EXPECT_EQ(read.at("copy").how, "how");
  const auto with = [](const std::string& rate) {
    return refusal<Calibration>(R"({"id":1,"ok":true,"result":{"rates":{"copy":)" + rate + "}}}");
  };
  EXPECT_EQ(with(R"({"value":1,"unit":"seconds","how":"h"})"), "accepted");
  EXPECT_THAT(with(R"({"value":0,"unit":"seconds","how":"h"})"), HasSubstr("number over 0, found 0"));
  EXPECT_THAT(with(R"({"value":-1,"unit":"seconds","how":"h"})"), HasSubstr("result.rates.copy.value"));
  EXPECT_EQ(with(R"({"value":1,"how":"h"})"), "result.rates.copy.unit: missing");
  EXPECT_THROW(write_answer(1, Calibration{{"copy", {std::nan(""), "seconds", "how"}}}), MessageError);
}

TEST(Messages, AnErrorIsReadBackOnOneLine) {
  const auto answer = read_answer<Timing>(write_error(1, {CallErrorKind::kOutOfMemory, "no\nroom \xff"}), 1);
  EXPECT_EQ(std::get<CallError>(answer).kind, CallErrorKind::kOutOfMemory);
  EXPECT_THAT(std::get<CallError>(answer).message, HasSubstr("no room "));
}

TEST(Messages, NumbersThatAreNotFiniteAreRefused) {
  EXPECT_EQ(refusal<Timing>(timing_line("0.25")), "accepted");
  EXPECT_THAT(refusal<Timing>(timing_line("NaN")), HasSubstr("not JSON"));
  EXPECT_THAT(refusal<Timing>(timing_line("Infinity")), HasSubstr("not JSON"));
  EXPECT_THAT(refusal<Timing>(timing_line("1e999")), HasSubstr("not JSON"));
  EXPECT_EQ(refusal<Timing>(timing_line("null")), "result.device_seconds: expected a number, found null");
  EXPECT_EQ(refusal<Timing>(timing_line("-1.0")),
            "result.device_seconds: expected a finite number, not negative, found -1.0");
  EXPECT_EQ(refusal<Timing>(timing_line("\"1\"")), "result.device_seconds: expected a number, found \"1\"");
  EXPECT_THROW(write_answer(1, Timing{std::numeric_limits<double>::quiet_NaN(), 0, 0}), MessageError);
}

TEST(Messages, AnAnswerThatIsNotWholeIsRefusedByField) {
  EXPECT_THAT(refusal<Timing>("[]"), HasSubstr("expected an object, found []"));
  EXPECT_EQ(refusal<Timing>("{}"), "id: missing");
  EXPECT_EQ(refusal<Timing>(R"({"id": null, "ok": true})"), "id: expected 1, found null");
  EXPECT_EQ(refusal<Timing>(R"({"id": 1.0, "ok": true})"), "id: expected 1, found 1.0");
  EXPECT_EQ(refusal<Timing>(R"({"id": 1, "ok": 1})"), "ok: expected true or false, found 1");
  EXPECT_EQ(refusal<Timing>(R"({"id": 1, "ok": true, "result": {"device_seconds": 1}})"),
            "result.wall_seconds: missing");
  EXPECT_EQ(refusal<Timing>(R"({"id": 1, "ok": false, "error": {"kind": "sad", "message": ""}})"),
            "error.kind: expected unsupported, out_of_memory, input or failed, found \"sad\"");
  EXPECT_EQ(refusal<ValueCount>(R"({"id": 1, "ok": true, "result": {"count": 1.5}})"),
            "result.count: expected a whole number, 0 or more, found 1.5");
}

TEST(Messages, ARequestThatIsNotWholeIsRefusedByField) {
  EXPECT_THAT(request_refusal("hello"), HasSubstr("not JSON: 'hello'"));
  EXPECT_EQ(request_refusal(R"({"id": 1, "call": "dance"})"),
            "call: expected a call of the protocol, found 'dance'");
  EXPECT_EQ(request_refusal(R"({"id": 1, "call": "train", "first_step": 0, "count": 0})"),
            "count: expected a whole number, 1 to 2251799813685247, found 0");
  EXPECT_EQ(
      request_refusal(
          R"({"id": 1, "call": "reference", "steps": [0, 0], "free_steps": 0, "folder": "x", "contracts": ["exact"], "copies": 0, "probe": false})"),
      "steps[1]: expected a whole number, 1 or more, found 0");
}

TEST(Messages, ALineOfDeepBracketsIsRefused) {
  const std::string deep(500'000, '[');
  EXPECT_EQ(refusal<Timing>(deep), "a line with brackets more than 64 deep");
  EXPECT_EQ(request_refusal(deep + std::string(500'000, ']')), "a line with brackets more than 64 deep");
  EXPECT_THAT(refusal<Timing>(std::string(64, '[') + std::string(64, ']')), HasSubstr("expected an object"));
}

TEST(Messages, WhatAResultsFileCannotHoldIsRefused) {
  EXPECT_EQ(refusal<Timing>(timing_line("1e13")), "result.device_seconds: 10000000000000.0 is out of range");
  const std::string peak = R"({"id":1,"ok":true,"result":{"peak_device_bytes":)";
  EXPECT_EQ(refusal<PeakMemory>(peak + "9007199254740991}}"), "accepted");
  EXPECT_THAT(refusal<PeakMemory>(peak + "9007199254740992}}"), HasSubstr("expected a whole number"));
  WorkerHello hello{"w", {{"n\x1b[31m", "1\n2"}}, DeviceInfo{}, {}};
  hello.device->name = "a GPU";
  hello.device->memory_bytes = 1;
  EXPECT_THAT(refusal<WorkerHello>(write_answer(1, hello)), HasSubstr("device.sm_count: expected"));
  hello.device.reset();
  const auto read = std::get<WorkerHello>(read_answer<WorkerHello>(write_answer(1, hello), 1));
  EXPECT_EQ(read.software, (std::map<std::string, std::string>{{"n [31m", "1 2"}}));
}

TEST(Messages, OneLineHasNoControlCharactersAndAnEnd) {
  EXPECT_EQ(one_line("a\nb\tc\x1b[31m\n"), "a b c [31m");
  EXPECT_EQ(one_line("a\xc2\x9b"
                     "2J"),
            "a 2J");  // U+009B begins a sequence, as ESC [ does
  EXPECT_EQ(one_line("abcdef", 3), "abc...");
  EXPECT_EQ(one_line("ab\xe2\x82\xac|", 4), "ab...");  // not within a character
}

}  // namespace
}  // namespace headroom
