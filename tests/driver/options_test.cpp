// The command line: what is understood, and that every mistake is one line that names it.
#include "driver/plan/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "temporary_folder.h"

namespace headroom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RunOptions parse(std::vector<std::string> words) {
  words.insert(words.begin(), {"headroom", "run"});
  return parse_command_line(words).run;
}

TEST(Options, ListsAreSplitAtCommasAndMayBeRepeated) {
  const RunOptions options =
      parse({"--backend", "a,b", "--backend", "c", "--precision=fp32,bf16", "--loss-seeds", "7,8"});
  EXPECT_THAT(options.backends, ElementsAre("a", "b", "c"));
  EXPECT_THAT(options.precisions, ElementsAre(Precision::kFp32, Precision::kBf16));
  EXPECT_THAT(options.loss_seeds, ElementsAre(7u, 8u));
}

TEST(Options, WorkerCommandsKeepQuotedArgumentsTogether) {
  const RunOptions options = parse({"--worker", "mine=python3 -c 'print(1, 2)' \"a b\""});
  ASSERT_EQ(options.workers.size(), 1u);
  EXPECT_EQ(options.workers[0].name, "mine");
  EXPECT_THAT(options.workers[0].command, ElementsAre("python3", "-c", "print(1, 2)", "a b"));
}

TEST(Options, SettingsHoldWhatDecidesTheMeasurementAndPathsAsBaseNames) {
  const RunOptions options =
      parse({"--blocks", "16", "--data", "/home/somebody/mnist/", "--output", "x.json", "--json"});
  EXPECT_EQ(options.settings, (std::map<std::string, std::string>{{"blocks", "16"}, {"data", "mnist"}}));
}

TEST(Options, JsonIsAFormat) {
  EXPECT_EQ(parse({}).format, SummaryFormat::kText);
  EXPECT_EQ(parse({"--json"}).format, SummaryFormat::kJson);
  EXPECT_EQ(parse({"--format=csv"}).format, SummaryFormat::kCsv);
}

TEST(Options, AProfileIsOfOneCell) {
  const ProfileOptions options =
      parse_command_line({"headroom", "profile", "mlp-4x2-b1", "cuda", "bf16", "--steps", "9"}).profile;
  EXPECT_THAT(options.trained.workload_names, ElementsAre("mlp-4x2-b1"));
  EXPECT_THAT(options.trained.backends, ElementsAre("cuda"));
  EXPECT_THAT(options.trained.precisions, ElementsAre(Precision::kBf16));
  EXPECT_EQ(options.steps, 9);
  const RunOptions of_suite =
      parse_command_line({"headroom", "profile", "ppo", "cuda", "bf16", "--suite", "users"}).profile.trained;
  EXPECT_EQ(of_suite.suite, "users");
  EXPECT_THAT(of_suite.suite_workloads, ElementsAre("ppo"));
}

TEST(Options, GoogleBenchmarkFlagsAreTaken) {
  const RunOptions options = parse(
      {"--benchmark_filter=fp32$", "--blocks", "13", "--benchmark_out=x", "--benchmark_out_format=csv"});
  EXPECT_EQ(options.google_benchmark.filter, "fp32$");
  EXPECT_EQ(options.google_benchmark.out_format, "csv");
  EXPECT_EQ(options.blocks, 13);
}

TEST(Options, HelpAndVersionArePrinted) {
  EXPECT_THAT(parse_command_line({"headroom", "--version"}).text, HasSubstr("headroom "));
  EXPECT_THAT(parse_command_line({"headroom", "run", "--help"}).text, HasSubstr("--block-seconds"));
  EXPECT_THAT(parse_command_line({"headroom"}).text, HasSubstr("run"));
}

struct Mistake {
  std::vector<std::string> words;
  std::string said;
};

class OptionMistakes : public testing::TestWithParam<Mistake> {};

TEST_P(OptionMistakes, AreOneLineThatNamesThem) {
  const std::string message = message_of<InputError>([] { parse(GetParam().words); });
  EXPECT_THAT(message, HasSubstr(GetParam().said));
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(
    All, OptionMistakes,
    testing::Values(
        Mistake{{"--bakend", "x"}, "did you mean '--backend'"}, Mistake{{"--precision", "fp23"}, "fp23"},
        Mistake{{"--blocks", "11"}, "--blocks"}, Mistake{{"--blocks", "many"}, "--blocks"},
        Mistake{{"--block-seconds", "0.001"}, "--block-seconds"}, Mistake{{"--shard", "3/2"}, "--shard 3/2"},
        Mistake{{"--shard", "2"}, "I/N"}, Mistake{{"--seed", "-1"}, "--seed -1"},
        Mistake{{"--learning-rate", "0"}, "--learning-rate"},
        Mistake{{"--learning-rate", "nan"}, "--learning-rate"},
        Mistake{{"--momentum", "1"}, "--momentum 1: expected from 0 to below 1"},
        Mistake{{"--momentum", "-0.1"}, "--momentum -0.1"}, Mistake{{"--beta1", "1"}, "--beta1 1: expected"},
        Mistake{{"--beta2", "nan"}, "--beta2 nan: expected"},
        Mistake{{"--epsilon", "0"}, "--epsilon 0: expected"},
        Mistake{{"--weight-decay", "inf"}, "--weight-decay inf: expected"},
        Mistake{{"--beta1", "half"}, "--beta1"}, Mistake{{"--loss-seeds", "1,1"}, "twice"},
        Mistake{{"--worker", "mine"}, "NAME=COMMAND"}, Mistake{{"--worker", "mine='x"}, "quote"},
        Mistake{{"--wait", "--share-device"}, "--share-device"},
        Mistake{{"--loss", "huber", "--workload", "mlp-4x2-b1"}, "There are cross-entropy, mse, bce"},
        Mistake{{"--optimizer", "adm", "--workload", "mlp-4x2-b1"}, "did you mean 'adam'?"},
        Mistake{{"--model", ":make", "--batch", "2"}, "--model :make: expected FILE.py:NAME"},
        Mistake{{"--model", "net.py:a b", "--batch", "2"}, "expected FILE.py:NAME"},
        Mistake{{"--model", "net.py:make", "--suite", "quick"}, "--model and --suite: give one of them"},
        Mistake{{"--suite", "quick", "--workload", "mlp-4x2-b1"}, "one of them"},
        Mistake{{"--output", "a", "--resume", "b"}, "--output"},
        Mistake{{"--benchmark_repetitions=3"}, "--blocks"},
        Mistake{{"--benchmark_format=xml"}, "benchmark_format"},
        Mistake{{"--json", "--benchmark_format=json"}, "both print on standard output"},
        Mistake{{"--retry-failed"}, "--retry-failed: goes with --resume"},
        Mistake{{"--", "--backend"}, "unknown argument '--backend'"},
        Mistake{{"--", "--benchmark_format=xml"}, "unknown argument '--benchmark_format=xml'"},
        Mistake{{"--benchmark_filte=3"}, "--benchmark_filter"},
        Mistake{{"--skip-verification"}, "unknown option"}));

TEST(Options, TheOptimizersNumbersAreSettings) {
  const RunOptions options = parse(
      {"--momentum", "0", "--beta1", "0.5", "--beta2=0.9", "--epsilon", "1e-5", "--weight-decay", "0.1"});
  EXPECT_EQ(options.optimizer_numbers,
            (std::map<std::string, double>{
                {"momentum", 0}, {"beta1", 0.5}, {"beta2", 0.9}, {"epsilon", 1e-5}, {"weight_decay", 0.1}}));
  EXPECT_EQ(options.settings.at("weight-decay"), "0.1");
  EXPECT_EQ(options.settings.count("learning-rate"), 0u);
}

TEST(Resume, TakesTheFilesSettingsForWhatIsNotGiven) {
  const RunOptions options =
      parse_resumed({"headroom", "run", "--resume", "a.json", "--blocks", "16"}, "a.json",
                    {{"blocks", "16"}, {"backend", "x,y"}, {"benchmark_filter", "fp32"}});
  EXPECT_EQ(options.blocks, 16);
  EXPECT_THAT(options.backends, ElementsAre("x", "y"));
  EXPECT_EQ(options.google_benchmark.filter, "fp32");
}

TEST(Resume, RefusesOtherSettingsByName) {
  const auto resume = [](std::vector<std::string> more, const std::map<std::string, std::string>& settings) {
    std::vector<std::string> argv = {"headroom", "run", "--resume", "a.json"};
    argv.insert(argv.end(), more.begin(), more.end());
    return message_of<InputError>([&] { parse_resumed(argv, "a.json", settings); });
  };
  EXPECT_THAT(resume({"--blocks", "16"}, {{"blocks", "12"}}), HasSubstr("--blocks 12, not --blocks 16"));
  EXPECT_THAT(resume({"--backend", "x"}, {}), HasSubstr("--backend"));
  EXPECT_THAT(resume({}, {{"data", "mnist"}}), HasSubstr("give its path again"));
  EXPECT_THAT(resume({"--model", "net.py:make", "--batch", "2"}, {}), HasSubstr("leave --model out"));
}

TEST(Resume, ExecutesNothingThatAFileNames) {
  const std::vector<std::string> argv = {"headroom", "run", "--resume", "a.json"};
  for (const char* option : {"model", "worker", "cache-dir"}) {
    EXPECT_THAT(message_of<InputError>([&] { parse_resumed(argv, "a.json", {{option, "x=y.py:make"}}); }),
                HasSubstr(std::string("run.settings.") + option + ": not an option"));
  }
}

}  // namespace
}  // namespace headroom
