// The worker's end where a well-behaved client cannot reach: wrong arguments and wrong lines.
#include "worker/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "scratch.h"

namespace headroom {
namespace {

using ::testing::HasSubstr;

/// What the fault worker answers to `lines`, straight from a shell.
std::string answers(const std::string& lines, const std::string& arguments = "--device -1") {
  const std::string command = "printf '%s\\n' " + lines + " | '" +
                              (program_folder() / "headroom-fault-worker").string() + "' " + arguments +
                              " 2>&1; echo \"status $?\"";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(::popen(command.c_str(), "r"), ::pclose);
  std::string text;
  std::array<char, 4096> bytes;
  while (std::fgets(bytes.data(), bytes.size(), stream.get()) != nullptr) text += bytes.data();
  return text;
}

TEST(Server, AnswersWrongLinesAndGoesOn) {
  const std::string text = answers(R"('rubbish' '{"id": 7}' '{"id": 8, "call": "release"}')");
  EXPECT_THAT(text, HasSubstr(R"("id":null,"ok":false)"));
  EXPECT_THAT(text, HasSubstr(R"("message":"call: missing"},"id":7)"));
  EXPECT_THAT(text, HasSubstr(R"({"id":8,"ok":true,"result":{"peak_device_bytes":null}})"));
  EXPECT_THAT(text, HasSubstr("status 0"));
}

TEST(Server, RefusesAnotherProtocolVersion) {
  EXPECT_THAT(answers(R"('{"id": 1, "call": "hello", "protocol": 9}')"),
              HasSubstr("asked for version 9 of the worker protocol, worker fault speaks version 2"));
}

TEST(Server, AWorkerWithoutRangesSaysSo) {
  EXPECT_THAT(answers(R"('{"id": 1, "call": "hello", "protocol": 2}')"), HasSubstr(R"("ranges":false)"));
  EXPECT_THAT(answers(R"('{"id": 1, "call": "range", "name": "check"}')"),
              HasSubstr("worker fault has no ranges"));
}

TEST(Server, ABackendThatCompilesNothingSaysSo) {
  const std::string workload =
      R"({"name": "w", "widths": [2, 3], "activation": "relu", "loss": "cross-entropy", "batch_size": 1, )"
      R"("optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0}, "seed": 1})";
  const std::string target =
      R"({"compute_major": 9, "compute_minor": 0, "sm_count": 132, "shared_bytes": 1})";
  EXPECT_THAT(answers(R"('{"id": 1, "call": "compile", "backend": "oracle-honest", "precision": "fp32", )"
                      R"("cache_folder": "/tmp", "workload": )" +
                      workload + R"(, "target": )" + target + "}'"),
              HasSubstr("backend oracle-honest compiles nothing for a device that is not there"));
}

TEST(Server, WrongArgumentsEndItWithStatusTwo) {
  for (const char* arguments : {"", "--device", "--device x", "--device -2"}) {
    EXPECT_THAT(answers("''", arguments), HasSubstr("expected --device N")) << arguments;
    EXPECT_THAT(answers("''", arguments), HasSubstr("status 2")) << arguments;
  }
}

TEST(ServerDeathTest, ADuplicateBackendNameOrOneThatIsNoneThrows) {
  const auto serve_two = [](const std::string& first, const std::string& second) {
    std::string program = "worker", option = "--device", device = "-1";
    char* arguments[] = {program.data(), option.data(), device.data(), nullptr};
    try {
      serve(3, arguments, [&](int) {
        WorkerDescription description;
        description.name = "twins";
        description.backends.resize(2);
        description.backends[0].name = first;
        description.backends[1].name = second;
        return description;
      });
    } catch (const std::logic_error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(7);
    }
  };
  EXPECT_EXIT(serve_two("same", "same"), ::testing::ExitedWithCode(7), "two backends are called same");
  EXPECT_EXIT(serve_two("one", "../two"), ::testing::ExitedWithCode(7), "expected a name of letters");
}

}  // namespace
}  // namespace headroom
