// Results files: what is written is read back, is always whole, and is refused with the place of the mistake.
#include "driver/results/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "core/error.h"
#include "core/optimizer_numbers.h"
#include "driver/run/loss_runs.h"
#include "driver/system/whole_file.h"
#include "temporary_folder.h"

namespace headroom {
namespace {

using testing::HasSubstr;

Results example() {
  Results results;
  results.run = {
      "id",         "2026-01-02T03:04:05Z", std::nullopt, {"headroom", "run"}, "quick", std::nullopt, false,
      "fnv1a64:00", {{"blocks", "16"}},     false};
  results.host.cpu = "a CPU";
  results.device = DeviceInfo{"a GPU", "GPU-1", "", 1, 132, 9, 0, 1000, 500};
  results.software = {{"torch", "2.11.0"}};
  WorkloadEntry entry;
  entry.workload = parse_workload_name("mlp-7x3-b2");
  entry.workload.seed = std::numeric_limits<std::uint64_t>::max();
  entry.dataset = {"synthetic", "ab", 10, 1, 5};
  entry.floors = {{Precision::kTf32, {3e-6, "bytes", 3e-6, 2e-6, 1e-6}}};
  entry.ladders = {{Precision::kTf32,
                    {{"left", "cuda-layered", "floor", 1e-6, 5e-7, 2e-6, "positive", ""},
                     {"python", "", "", {}, {}, {}, "missing", "no libtorch-eager has a verified time"}}}};
  entry.choices = {
      {Precision::kTf32, {{"cuda", {"cuda-b", true, {{"cuda-a", {}, "too wide"}, {"cuda-b", 2e-5, ""}}}}}}};
  results.calibration = {{"copy", {4.27e12, "bytes_per_second", "how"}}};
  results.workloads = {entry};
  Record record;
  record.workload = "mlp-7x3-b2";
  record.backend = "cuda-layered";
  record.family = Family::kOurs;
  record.precision = Precision::kBf16;
  record.contract = Contract::kLibrary;
  record.outcome = Outcome::kFailed;
  record.message = "because";
  record.setup_cache = SetupCache::kWarm;
  record.blocks = {{3, 50, 0.02, 0.021, 0.019}};
  record.step_seconds = StepSeconds{4e-4, 3e-4, 5e-4};
  record.blocks[0].gpu = GpuState{3, 1980, std::nullopt, 250.5, 41, {{"idle"}}, 0, std::nullopt};
  record.energy = Energy{4000, 2.5, 700, std::nullopt};
  record.joules_per_step = 0.175;
  record.slowdown_reasons = {{"hardware_slowdown"}};
  record.losses = {{8, {0, 1}, {2.3025851f, std::nanf("")}, 1.5, 0.25, {}}};
  record.verification = {Verdict::kFail,
                         {{"step_update", "weight1", {0, 7}, std::nan(""), INFINITY, 1e-3, false}}};
  results.records = {record};
  return results;
}

TEST(ResultsFile, WhatIsWrittenIsReadBack) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "a.json";
  const Results results = example();
  write_whole(to_json(results), file);
  const Results read = read_results(file);
  EXPECT_EQ(to_json(read), to_json(results));
  EXPECT_EQ(read.workloads[0].workload.seed, results.workloads[0].workload.seed);
  EXPECT_EQ(read.records[0].contract, Contract::kLibrary);
  EXPECT_FALSE(read.run.finished_utc);
  const Choice* choice = read.find_choice("mlp-7x3-b2", "cuda", Precision::kTf32);
  ASSERT_NE(choice, nullptr);
  EXPECT_EQ(choice->taken, "cuda-b");
  EXPECT_EQ(choice->candidates.at(0).left_out, "too wide");
  EXPECT_EQ(choice->candidates.at(1).step_seconds, 2e-5);
  EXPECT_EQ(read.find_choice("mlp-7x3-b2", "cuda", Precision::kFp16), nullptr);
  EXPECT_FALSE(read.records[0].setup_seconds);
  EXPECT_EQ(read.records[0].setup_cache, SetupCache::kWarm);
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".tmp"));
}

TEST(ResultsFile, FilesOfBeforeTheGpuWasWatchedAreRead) {
  const TemporaryFolder folder;
  Results results = example();
  results.records[0].blocks[0].gpu.reset();
  results.records[0].energy.reset();
  results.records[0].setup_cache.reset();
  results.records[0].slowdown_reasons.reset();
  std::string text = to_json(results);
  for (const char* field : {R"(,"gpu":null)", R"("energy":null,)", R"("setup_cache":null,)",
                            R"("slowdown_reasons":null,)", R"(,"ecc_enabled":null)"}) {
    const std::size_t at = text.find(field);
    ASSERT_NE(at, std::string::npos) << field;
    text.erase(at, std::string(field).size());
  }
  EXPECT_EQ(to_json(read_results(folder.write("old.json", text))), to_json(results));
}

// What version 1 wrote: the text without what came later.
std::string as_version_1(std::string text) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {R"("schema_version":2)", R"("schema_version":1)"},
           {R"("about":null,)", ""},
           {R"("activation":"relu","loss":"cross-entropy",)", ""},
           {R"(,"momentum":0.0)", ""},
           {R"(,"held_out_r_squared":null)", ""},
           {R"("family":"ours",)", ""}}) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  }
  return text;
}

TEST(ResultsFile, FilesOfVersion1AreReadWithWhatWasMeantThen) {
  const TemporaryFolder folder;
  const Results read = read_results(folder.write("old.json", as_version_1(to_json(example()))));
  EXPECT_EQ(read.version, 1);
  EXPECT_EQ(to_json(read), to_json(example()));  // what is written is of the latest version
}

TEST(ResultsFile, FamiliesThatAFileDoesNotSayAreThoseOfTheNamesOfThen) {
  const TemporaryFolder folder;
  std::string text = to_json(example());
  const std::string family = R"("family":"ours",)", name = R"("backend":"cuda-layered")";
  text.erase(text.find(family), family.size());
  const auto family_of = [&](const std::string& backend) {
    std::string changed = text;
    changed.replace(changed.find(name), name.size(), R"("backend":")" + backend + '"');
    return read_results(folder.write("a.json", changed)).records[0].family;
  };
  EXPECT_EQ(family_of("cuda-layered"), Family::kOurs);
  EXPECT_EQ(family_of("cuda"), Family::kOurs);
  EXPECT_EQ(family_of("oracle-cuda"), Family::kReference);
  EXPECT_EQ(family_of("pytorch-compile-graph"), Family::kPytorch);
  EXPECT_EQ(family_of("libtorch-expert"), Family::kLibtorch);
  EXPECT_EQ(family_of("jax-scan"), Family::kJax);
  EXPECT_EQ(family_of("cublaslt-graph"), Family::kVendor);
  EXPECT_EQ(family_of("eager-fused"), Family::kOther);
}

TEST(ResultsFile, AFamilyThatAFileSaysIsKeptWhateverTheName) {
  const TemporaryFolder folder;
  Results results = example();
  results.records[0].family = Family::kJax;
  EXPECT_EQ(read_results(folder.write("a.json", to_json(results))).records[0].family, Family::kJax);
}

TEST(ResultsFile, AFileOfVersion1HasNothingThatCameLater) {
  const TemporaryFolder folder;
  std::string text = as_version_1(to_json(example()));
  text.replace(text.find(R"("kind":"sgd")"), 0, R"("momentum":0.5,)");
  const std::string said = message_of<InputError>([&] { read_results(folder.write("old.json", text)); });
  EXPECT_THAT(said, HasSubstr("workloads[0].optimizer.momentum: unknown field"));
}

TEST(ResultsFile, EveryOptimizerIsReadBackWithTheNumbersOfItsKind) {
  const TemporaryFolder folder;
  for (const Optimizer::Kind kind : kAllOptimizers) {
    Results results = example();
    WorkloadEntry& entry = results.workloads[0];
    entry.about = "From a paper.";
    entry.workload.model.activation = Activation::kSilu;
    entry.workload.loss = Loss::kBinaryCrossEntropy;
    Optimizer& optimizer = entry.workload.optimizer;
    optimizer.kind = kind;
    double value = 0.125;
    for (const std::string_view name : kOptimizerNumbers)
      if (double* number = optimizer_number(optimizer, name)) *number = value /= 2;
    results.records[0].losses[0].held_out_accuracy.reset();
    results.records[0].losses[0].held_out_r_squared = -0.5;
    const Results read = read_results(folder.write("a.json", to_json(results)));
    EXPECT_EQ(read.workloads[0].about, entry.about);
    EXPECT_EQ(read.workloads[0].workload.model, entry.workload.model);
    EXPECT_EQ(read.workloads[0].workload.loss, entry.workload.loss);
    EXPECT_EQ(read.workloads[0].workload.optimizer, optimizer);
    EXPECT_EQ(read.records[0].losses[0].held_out_r_squared, -0.5);
  }
}

TEST(ResultsFile, NothingThatIsNotFiniteIsWrittenAndLossesHaveSevenDigits) {
  const std::string text = to_json(example());
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf"), std::string::npos);
  EXPECT_THAT(text, HasSubstr("[2.302585,null]"));
}

TEST(ResultsFile, WritingReplacesTheFileOrLeavesItAlone) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.write("a.json", "before");
  EXPECT_THROW(write_whole(to_json(example()), folder.path() / "missing" / "a.json"), OutputError);
  write_whole(to_json(example()), file);
  EXPECT_EQ(read_results(file).records.size(), 1u);
}

TEST(ResultsFile, MistakesSayWhereTheyAre) {
  const TemporaryFolder folder;
  const auto complaint = [&](const std::string& from, const std::string& to) {
    std::string text = to_json(example());
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const std::filesystem::path file = folder.write("b.json", text);
    return message_of<InputError>([&] { read_results(file); });
  };
  EXPECT_THAT(complaint(R"("backend":"cuda-layered")", R"("backend":null)"),
              HasSubstr("records[0].backend: expected a string, found null"));
  EXPECT_THAT(complaint(R"("bf16")", R"("fp8")"), HasSubstr("records[0].precision: expected one of fp32"));
  EXPECT_THAT(complaint(R"("schema_version":2)", R"("schema_version":3)"),
              HasSubstr("schema_version: expected 1 or 2, found 3"));
  EXPECT_THAT(complaint(R"("id":)", R"("idd":)"), HasSubstr("run.id: is missing"));
  EXPECT_THAT(complaint("{", "["), HasSubstr("found no JSON"));
  EXPECT_EQ(message_of<InputError>([&] { read_results(folder.write("c.json", "[]")); }),
            (folder.path() / "c.json").string() + ": expected an object, found []");
  EXPECT_THAT(message_of<InputError>([&] { read_results(folder.path() / "none.json"); }),
              HasSubstr("cannot be read"));
}

class ResultsReader : public testing::Test {
 protected:
  /// What is said of the example with `from` replaced by `to`; empty if it is accepted.
  std::string complaint(const std::string& from, const std::string& to) {
    std::string text = to_json(example());
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return refusal(text);
  }
  std::string refusal(const std::string& text) {
    const std::filesystem::path file = folder_.write("b.json", text);
    try {
      read_results(file);
      return "";
    } catch (const InputError& error) {
      const std::string message = error.what(), begin = file.string() + ": ";
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      EXPECT_THAT(message, testing::StartsWith(begin));
      return message.substr(std::min(message.size(), begin.size()));
    }
  }
  TemporaryFolder folder_;
};

TEST_F(ResultsReader, NamesTheFirstPlaceThatTheSchemaRefuses) {
  EXPECT_EQ(complaint(R"("kind":"sgd")", R"("kind":"adagrad")"),
            R"(workloads[0].optimizer.kind: expected one of sgd, adam, adamw, found "adagrad")");
  EXPECT_EQ(complaint(R"("kind":"sgd")", R"("kind":"adamw")"),
            "workloads[0].optimizer.momentum: expected nothing, found 0.0");
  EXPECT_EQ(complaint(R"("momentum":0.0)", R"("beta2":0.9)"),
            "workloads[0].optimizer.beta2: expected nothing, found 0.9");
  EXPECT_EQ(complaint(R"(,"momentum":0.0)", ""), "workloads[0].optimizer.momentum: is missing");
  EXPECT_EQ(complaint(R"("kind":"sgd","learning_rate":0.003,"momentum":0.0)",
                      R"("kind":"adam","learning_rate":0.003,"beta1":0.9,"beta2":0.999)"),
            "workloads[0].optimizer.epsilon: is missing");
  EXPECT_EQ(complaint(R"("activation":"relu")", R"("activation":"mish")"),
            R"(workloads[0].activation: expected one of relu, tanh, silu, gelu, elu, found "mish")");
  EXPECT_EQ(complaint(R"("loss":"cross-entropy")", R"("loss":"l1")"),
            R"(workloads[0].loss: expected one of cross-entropy, mse, bce, found "l1")");
  EXPECT_EQ(complaint(R"("held_out_r_squared":null)", R"("held_out_r_squared":0.5)"),
            "records[0].losses[0].held_out_r_squared: expected null, found 0.5");
  EXPECT_EQ(complaint(R"("kind":"synthetic")", R"("kind":"cifar")"),
            R"(workloads[0].dataset.kind: expected one of synthetic, idx, found "cifar")");
  EXPECT_EQ(complaint(R"("kind":"synthetic")", R"("kind":"idx")"),
            "workloads[0].dataset.folder: expected a string, found null");
  EXPECT_EQ(complaint(R"("contract":"library")", R"("contract":"close")"),
            R"(records[0].contract: expected one of exact, autocast, library, found "close")");
  EXPECT_EQ(complaint(R"("outcome":"failed")", R"("outcome":"lost")"),
            R"(records[0].outcome: expected one of ok, skipped, failed, found "lost")");
  EXPECT_EQ(
      complaint(R"("verdict":"fail")", R"("verdict":"maybe")"),
      R"(records[0].verification.verdict: expected one of pass, fail, cannot_be_checked, not_run, found "maybe")");
  EXPECT_EQ(complaint(R"("setup_cache":"warm")", R"("setup_cache":3)"),
            "records[0].setup_cache: expected one of cold, warm, null, found 3");
  EXPECT_EQ(complaint(R"("message":"because")", R"("message":"")"),
            R"(records[0].message: expected a string, not empty, found "")");
  EXPECT_EQ(complaint(R"("verdict":"missing","message":"no)", R"("verdict":"noise","message":"no)"),
            "workloads[0].ladders.tf32[1].high: expected a number, found null");
  EXPECT_EQ(complaint(R"("step_seconds":{)", R"("step_seconds":{"mean":1,)"),
            "records[0].step_seconds.mean: unknown field");
  EXPECT_EQ(complaint(R"("blocks":"16")", R"("blocks":16)"),
            "run.settings.blocks: expected a string, found 16");
  EXPECT_EQ(complaint(R"("steps":50)", R"("steps":0)"),
            "records[0].blocks[0].steps: expected a whole number, at least 1, at most 9.0072e+15, found 0");
  EXPECT_EQ(complaint(R"("cpu":"a CPU")", R"("hostname":"node7","cpu":"a CPU")"),
            R"(host.hostname: expected nothing, found "node7")");
}

TEST_F(ResultsReader, RefusesWhatNoSchemaSays) {
  EXPECT_EQ(complaint(R"("workload":"mlp-7x3-b2")", R"("workload":"mlp")"),
            "records[0].workload: expected the name of one of workloads, found mlp");
  EXPECT_EQ(complaint(R"("values":[2.302585,null])", R"("values":[2.5])"),
            "records[0].losses[0].values: expected 2 values, one for each of steps, found 1");
  EXPECT_EQ(complaint(R"("steps":[0,1])", R"("steps":[1,1])"),
            "records[0].losses[0].steps: expected ascending numbers");
  EXPECT_EQ(complaint(R"("id":"id")", R"("id":"id","id":"other")"), "key 'id' is there twice in one object");
}

TEST_F(ResultsReader, ReadsTheLargestSeedAndNoLargerNumber) {
  EXPECT_EQ(complaint("18446744073709551615", "9223372036854775808"), "");
  EXPECT_THAT(complaint("18446744073709551615", "18446744073709551616"),
              HasSubstr("workloads[0].seed: expected a whole number, found 1.8446744073709552e+19"));
  EXPECT_THAT(complaint("18446744073709551615", "-1"), HasSubstr("workloads[0].seed: expected"));
  EXPECT_THAT(complaint(R"("sm_count":132)", R"("sm_count":18446744073709551615)"),
              HasSubstr("at most 65536, found 18446744073709551615"));
  EXPECT_THAT(complaint(R"("sm_count":132)", R"("sm_count":1)" + std::string(400, '0')),
              HasSubstr("found no JSON: a number is out of range"));
}

TEST_F(ResultsReader, RefusesDeepBracketsWhereverTheyAre) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::string said = "expected a results file, found brackets more than 64 deep";
  EXPECT_EQ(refusal(deep), said);
  EXPECT_EQ(refusal(std::string(100'000, '[')), said);
  EXPECT_EQ(complaint(R"("cpu":"a CPU")", R"("cpu":)" + deep), said);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  EXPECT_EQ(refusal(objects), said);
}

TEST_F(ResultsReader, TakesAByteOrderMarkAndRefusesLoneSurrogates) {
  EXPECT_EQ(refusal("\xef\xbb\xbf" + to_json(example())), "");
  EXPECT_THAT(complaint(R"("a CPU")", R"("a \ud800 CPU")"), HasSubstr("found no JSON"));
  EXPECT_THAT(complaint(R"("a CPU")", "\"a \xff CPU\""), HasSubstr("found no JSON"));
}

TEST_F(ResultsReader, ReadsTextWithoutControlCharacters) {
  Results results = example();
  results.host.cpu = "a \x1b[31mred\x1b[0m\nCPU \x7f\u009b \uffff\u00e9";
  const std::filesystem::path file = folder_.write("c.json", to_json(results));
  EXPECT_EQ(read_results(file).host.cpu, "a \ufffd[31mred\ufffd[0m CPU \ufffd\ufffd \ufffd\u00e9");
  EXPECT_EQ(complaint(R"({"torch":)", R"({"to\u001brch":)"),
            R"(key "to\u001brch" holds a control character)");
}

TEST_F(ResultsReader, TakesFilesUpToAGibibyte) {
  const std::filesystem::path file = folder_.write("large.json", "[");
  std::filesystem::resize_file(file, (std::uintmax_t{1} << 30) + 1);  // takes no room on the disk
  EXPECT_THAT(message_of<InputError>([&] { read_results(file); }),
              HasSubstr("is larger than 1073741824 bytes"));
}

TEST(LossCurves, EveryStepToAHundredThenEveryTenth) {
  std::vector<float> losses(1000);
  for (std::size_t i = 0; i < losses.size(); ++i) losses[i] = static_cast<float>(i);
  const LossCurve curve = thin_losses(4, losses);
  EXPECT_EQ(curve.seed, 4u);
  EXPECT_EQ(curve.steps.size(), 101u + 89u);
  EXPECT_EQ(curve.steps[100], 100);
  EXPECT_EQ(curve.steps[101], 110);
  EXPECT_EQ(curve.values.back(), 990.0f);
  EXPECT_DOUBLE_EQ(curve.last_mean, (688 + 999) / 2.0);
}

TEST(LossCurves, AreComparedSeedBySeed) {
  const auto curve = [](std::uint64_t seed, double mean) { return LossCurve{seed, {}, {}, mean, {}, {}}; };
  const auto check =
      compare_curves({curve(2, 1.001), curve(1, 2.002)}, {curve(1, 2.0), curve(2, 1.0), curve(3, 9)});
  ASSERT_TRUE(check);
  EXPECT_TRUE(check->passed);
  EXPECT_NEAR(check->error, 1e-3, 1e-9);
  EXPECT_FALSE(compare_curves({curve(1, 1.0)}, {curve(2, 1.0)}));
  EXPECT_FALSE(compare_curves({curve(1, 1.01)}, {curve(1, 1.0)})->passed);
}

}  // namespace
}  // namespace headroom
