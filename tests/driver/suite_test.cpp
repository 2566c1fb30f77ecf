// Suite files and what a run makes of them.
#include "driver/plan/suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/error.h"
#include "driver/plan/plan.h"
#include "temporary_folder.h"

namespace headroom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string suite_text(const std::string& workloads, const std::string& more = "") {
  return R"({"description": "d", "precisions": ["fp32"], "backends": ["all"], )" + more +
         R"("workloads": [)" + workloads + "]}";
}

constexpr const char* kGood = R"({"widths": [4, 3], "batch_size": 2})";

std::string complaint(const std::string& text) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.write("s.json", text);
  const std::string message = message_of<InputError>([&] { read_suite(file); });
  EXPECT_THAT(message, testing::StartsWith(file.string())) << text;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(Suite, WorkloadsTakeTheSuitesDefaultsOrTheirOwn) {
  const TemporaryFolder folder;
  const Suite suite = read_suite(folder.write(
      "s.json",
      suite_text(std::string(kGood) + R"(, {"name": "mine", "widths": [5, 2], "batch_size": 1, "seed": 9,
                "learning_rate": 0.1, "precisions": ["bf16"], "backends": ["all", "oracle"], "data": "idx"})")));
  ASSERT_EQ(suite.workloads.size(), 2u);
  EXPECT_EQ(suite.name, "s");
  EXPECT_EQ(suite.workloads[0].workload.name, "mlp-4x3-b2");
  EXPECT_THAT(suite.workloads[0].cells[0].precisions, ElementsAre(Precision::kFp32));
  const SuiteWorkload& own = suite.workloads[1];
  EXPECT_EQ(own.workload.name, "mine");
  EXPECT_EQ(own.workload.seed, 9u);
  EXPECT_EQ(own.workload.optimizer.learning_rate, 0.1);
  EXPECT_EQ(own.workload.dataset.folder, (folder.path() / "idx").string());
  EXPECT_THAT(own.cells[0].backends, ElementsAre("all", "oracle"));
}

TEST(Suite, AWorkloadSaysWhatIsTrained) {
  const TemporaryFolder folder;
  const Suite suite = read_suite(folder.write(
      "s.json",
      suite_text(
          R"({"widths": [4, 3], "batch_size": 2, "activation": "gelu", "loss": "mse", "optimizer": "adam"},
      {"name": "mine.2", "about": "From a paper.", "widths": [5, 2], "batch_size": 1, "loss": "bce",
       "optimizer": {"kind": "adamw", "learning_rate": 0.1, "beta1": 0.5, "weight_decay": 0}},
      {"widths": [5, 2], "batch_size": 1, "optimizer": {"kind": "sgd", "momentum": 0.5}, "devices": 2})")));
  const Workload& first = suite.workloads[0].workload;
  EXPECT_EQ(first.name, "mlp-4x3-b2-gelu-mse-adam");
  EXPECT_EQ(first.model.activation, Activation::kGelu);
  EXPECT_EQ(first.loss, Loss::kMeanSquaredError);
  Optimizer adam{.kind = Optimizer::Kind::kAdam};
  EXPECT_EQ(first.optimizer, adam);
  EXPECT_EQ(suite.workloads[0].about, "");
  EXPECT_EQ(suite.workloads[1].workload.name, "mine.2");
  EXPECT_EQ(suite.workloads[1].about, "From a paper.");
  Optimizer adamw{.kind = Optimizer::Kind::kAdamW};
  adamw.learning_rate = 0.1;
  adamw.beta1 = 0.5;
  adamw.weight_decay = 0;
  EXPECT_EQ(suite.workloads[1].workload.optimizer, adamw);
  EXPECT_EQ(suite.workloads[2].workload.name, "mlp-5x2-b1-momentum0.5-g2");
}

TEST(Suite, MistakesInWhatIsTrainedNameTheNearest) {
  const auto said = [](const std::string& fields) {
    return complaint(suite_text(R"({"widths": [4, 3], "batch_size": 2, )" + fields + "}"));
  };
  EXPECT_THAT(said(R"("activation": "tahn")"), HasSubstr("workloads[0].activation"));
  EXPECT_THAT(said(R"("activation": "tahn")"), HasSubstr("did you mean 'tanh'"));
  EXPECT_THAT(said(R"("loss": "mes")"), HasSubstr("did you mean 'mse'"));
  EXPECT_THAT(said(R"("optimizer": "adamm")"), HasSubstr("did you mean 'adam'"));
  EXPECT_THAT(said(R"("optimizer": {"kind": "adamv"})"), HasSubstr("did you mean 'adam"));
  EXPECT_THAT(said(R"("optimizer": {"kind": "adam", "beta3": 1})"), HasSubstr("did you mean 'beta"));
  EXPECT_THAT(said(R"("optimizer": {"kind": "adam", "momentum": 0.9})"),
              HasSubstr("adam has no 'momentum'; it has learning_rate, beta1, beta2, epsilon"));
  EXPECT_THAT(said(R"("optimizer": {"kind": "sgd", "beta1": 0.9})"),
              HasSubstr("sgd has no 'beta1'; it has learning_rate, momentum"));
  EXPECT_THAT(said(R"("optimizer": {"kind": "adam", "beta2": 1})"), HasSubstr("beta2 1 is not"));
  EXPECT_THAT(said(R"("optimizer": {"learning_rate": 1})"), HasSubstr("optimizer: key 'kind' is missing"));
  EXPECT_THAT(said(R"("optimizer": 3)"), HasSubstr("expected a name or an object, found 3"));
  EXPECT_THAT(said(R"("optimizer": {"kind": "adam", "learning_rate": 1}, "learning_rate": 1)"),
              HasSubstr("the optimizer has one already"));
  EXPECT_THAT(said(R"("about": "")"), HasSubstr("about: expected a sentence"));
  EXPECT_THAT(said(R"("about": ")" + std::string(501, 'a') + '"'), HasSubstr("about: expected a sentence"));
}

TEST(Suite, ANameOfItsOwnIsSmallLettersAndSaysNothingFalse) {
  const auto said = [](const std::string& name) {
    return complaint(suite_text(R"({"widths": [4, 3], "batch_size": 2, "name": ")" + name + R"("})"));
  };
  for (const char* name : {"Mine", "my_net", "-a", ".a", "", "a/b", "a b"})
    EXPECT_THAT(said(name), HasSubstr("expected a name of small letters")) << name;
  EXPECT_THAT(said("mlp-4x3-b2-adam"), HasSubstr("that is another network, this is 'mlp-4x3-b2'"));
}

TEST(Suite, AByteOrderMarkIsTaken) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_suite(folder.write("s.json", "\xef\xbb\xbf" + suite_text(kGood))).workloads.size(), 1u);
}

TEST(Suite, MistakesSayWhereTheyAre) {
  EXPECT_THAT(complaint(suite_text(kGood, R"("precison": 1, )")),
              HasSubstr("unknown key 'precison'; did you mean 'precisions'"));
  EXPECT_THAT(complaint(suite_text(R"({"widths": [4, 3]})")),
              HasSubstr("workloads[0]: key 'batch_size' is missing"));
  EXPECT_THAT(complaint(suite_text(R"({"widths": [4, 0, 3], "batch_size": 2})")), HasSubstr("workloads[0]"));
  EXPECT_THAT(complaint(suite_text(R"({"widths": [4, 3], "batch_size": 0})")), HasSubstr("workloads[0]"));
  EXPECT_THAT(complaint(suite_text(R"({"widths": [4, -3], "batch_size": 2})")),
              HasSubstr("widths[1]: expected a whole number, 1 to 65536, found -3"));
  EXPECT_THAT(complaint(suite_text(R"({"widths": [4, 3.5], "batch_size": 2})")), HasSubstr("widths[1]"));
  EXPECT_THAT(complaint(suite_text(R"({"widths": "4x3", "batch_size": 2})")),
              HasSubstr("widths: expected a list"));
  EXPECT_THAT(complaint(suite_text(std::string(kGood) + "," + kGood)),
              HasSubstr("workload 'mlp-4x3-b2' already"));
  EXPECT_THAT(complaint(suite_text("")), HasSubstr("not empty"));
  EXPECT_THAT(complaint(suite_text(kGood, R"("loss_seeds": [1, 1], )")),
              HasSubstr("loss_seeds[1]: is there twice"));
  EXPECT_THAT(complaint(suite_text(kGood, R"("loss_steps": -1, )")), HasSubstr("loss_steps"));
  EXPECT_THAT(complaint(suite_text(kGood, R"("description": "e", )")),
              HasSubstr("'description' is there twice"));
  EXPECT_THAT(complaint(suite_text(R"({"widths": [4, 3], "batch_size": 2, "precisions": ["fp8"]})")),
              HasSubstr("precisions[0]"));
  EXPECT_THAT(complaint(suite_text(R"({"widths": [4, 3], "batch_size": 2, "learning_rate": -1})")),
              HasSubstr("workloads[0]"));
  EXPECT_THAT(complaint(suite_text(R"({"name": "a/b", "widths": [4, 3], "batch_size": 2})")),
              HasSubstr("a/b"));
  EXPECT_THAT(complaint("{\n\"a\": }"), HasSubstr("line 2"));
  EXPECT_THAT(complaint("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(complaint(std::string(100'000, '[')),
              HasSubstr("expected a suite file, found brackets more than"));
}

TEST(Suite, AnEntryStandsForEachOfItsWidthsBatchesAndDevices) {
  const TemporaryFolder folder;
  const Suite suite = read_suite(folder.write(
      "s.json",
      suite_text(R"({"widths": [7, "H", "H", 3], "H": [4, 5], "batch_size": [2, 6], "devices": [1, 2]})")));
  std::vector<std::string> names;
  for (const SuiteWorkload& entry : suite.workloads) names.push_back(entry.workload.name);
  EXPECT_THAT(names,
              ElementsAre("mlp-7x4x4x3-b2", "mlp-7x4x4x3-b2-g2", "mlp-7x4x4x3-b6", "mlp-7x4x4x3-b6-g2",
                          "mlp-7x5x5x3-b2", "mlp-7x5x5x3-b2-g2", "mlp-7x5x5x3-b6", "mlp-7x5x5x3-b6-g2"));
}

TEST(Suite, AWorkloadHasTheCellsOfEveryEntryThatMeansIt) {
  const TemporaryFolder folder;
  const Suite suite =
      read_suite(folder.write("s.json", suite_text(R"({"widths": [4, "H", 3], "H": [5, 6], "batch_size": 2},
                              {"widths": [4, 5, 3], "batch_size": 2, "precisions": ["bf16"], "backends": ["cuda"]})")));
  ASSERT_EQ(suite.workloads.size(), 2u);
  EXPECT_EQ(suite.workloads[1].cells.size(), 1u);
  ASSERT_EQ(suite.workloads[0].cells.size(), 2u);
  EXPECT_THAT(suite.workloads[0].cells[1].precisions, ElementsAre(Precision::kBf16));
  EXPECT_THAT(suite.workloads[0].cells[1].backends, ElementsAre("cuda"));
}

TEST(Suite, MistakesInAnEntryOfSeveralWorkloadsAreNamed) {
  const auto said = [](const std::string& entry) { return complaint(suite_text(entry)); };
  EXPECT_THAT(said(R"({"widths": [4, "H", 3], "batch_size": 2})"), HasSubstr(R"(say which by "H")"));
  EXPECT_THAT(said(R"({"widths": [4, 3], "H": [5], "batch_size": 2})"), HasSubstr("workloads[0].H: no"));
  EXPECT_THAT(said(R"({"widths": [4, "K", 3], "batch_size": 2})"), HasSubstr("widths[1]: expected"));
  EXPECT_THAT(said(R"({"widths": [4, 3], "batch_size": [2, 2]})"),
              HasSubstr("batch_size[1]: is there twice"));
  EXPECT_THAT(said(R"({"widths": [4, 3], "batch_size": []})"), HasSubstr("not empty"));
  EXPECT_THAT(said(R"({"name": "mine", "widths": [4, 3], "batch_size": [2, 3]})"),
              HasSubstr("stands for 2 workloads"));
  EXPECT_THAT(
      said(R"({"widths": [4, 3], "batch_size": 2}, {"widths": [4, 3], "batch_size": [1, 2], "seed": 2})"),
      HasSubstr("workload 'mlp-4x3-b2' already"));
}

// What a suite that draws its networks says beside "drawn".
std::string drawing_text(const std::string& drawn) {
  return R"({"description": "d", "precisions": ["fp32", "bf16"], "backends": ["all"], "drawn": )" + drawn +
         "}";
}
constexpr const char* kTenDrawn = R"({"networks": 10, "layers": 8, "width": 3000, "batch_size": 20000})";

TEST(DrawnSuite, TheSameWordDrawsTheSameNetworksOnEveryMachine) {
  const TemporaryFolder folder;
  const Suite suite = read_suite(folder.write("s.json", drawing_text(kTenDrawn)));
  const auto names = [&](const std::string& word) {
    std::vector<std::string> all;
    for (const SuiteWorkload& entry : workloads_of(suite, word)) all.push_back(entry.workload.name);
    return all;
  };
  EXPECT_THAT(
      names("0123456789"),
      ElementsAre("mlp-4x1599x2313x8x206x199x2583x583x1-b11-tanh-mse",
                  "mlp-10x841x579x509-b3699-gelu-bce-momentum0.9", "mlp-942x590x15x823-b3-gelu",
                  "mlp-1x6x18x50x4-b2392-tanh-bce-adam", "mlp-21x55-b28-elu-bce-momentum0.9",
                  "mlp-24x14x718x18x903x324x8-b1069-mse", "mlp-1218x36x1674x6x1857-b3-silu-momentum0.9",
                  "mlp-905x941x401x13x63x13x773x1379-b3-tanh-mse-adam",
                  "mlp-22x50x5x2161x4x2x592x2325x25-b37-elu-mse-adamw",
                  "mlp-1x3x390x1476x2-b300-elu-momentum0.9"));
  EXPECT_NE(names("0123456789"), names("0123456788"));
  EXPECT_THAT(message_of<InputError>([&] { names(""); }), HasSubstr("give a word with --draw"));
}

TEST(DrawnSuite, EveryNetworkIsWithinTheLimitsAndIsAsLikelySmallAsLarge) {
  const TemporaryFolder folder;
  const Suite suite = read_suite(folder.write(
      "s.json", drawing_text(R"({"networks": 1000, "layers": 8, "width": 3000, "batch_size": 20000})")));
  std::set<std::string> names;
  std::map<std::string, int> of_rules;
  std::map<int, int> of_layers;
  int narrow = 0, widths = 0;
  for (const SuiteWorkload& entry : workloads_of(suite, "word")) {
    const Workload& workload = entry.workload;
    EXPECT_NO_THROW(validate(workload)) << workload.name;
    EXPECT_EQ(workload.name, default_name(workload));
    EXPECT_TRUE(names.insert(workload.name).second) << workload.name;
    EXPECT_TRUE(workload.outputs() > 1 || workload.loss != Loss::kCrossEntropy) << workload.name;
    EXPECT_LE(workload.batch_size, 20000);
    ++of_layers[workload.layers()];
    for (const int width : workload.model.widths) {
      EXPECT_LE(width, 3000);
      ++widths;
      narrow += width <= 54;  // half of the logarithm
    }
    ASSERT_EQ(entry.cells.size(), 1u);
    ASSERT_EQ(entry.cells[0].precisions.size(), 1u);
    ++of_rules["precision " + std::string(to_string(entry.cells[0].precisions[0]))];
    ++of_rules["activation " + std::string(to_string(workload.model.activation))];
    ++of_rules["loss " + std::string(to_string(workload.loss))];
    ++of_rules["optimizer " + std::string(to_string(workload.optimizer.kind)) +
               std::to_string(workload.optimizer.momentum > 0)];
  }
  EXPECT_EQ(of_rules.size(), 2u + 5 + 3 + 4);
  for (const auto& [rule, count] : of_rules) EXPECT_GT(count, 150) << rule;
  EXPECT_EQ(of_layers.size(), 8u);
  for (const auto& [layers, count] : of_layers) EXPECT_GT(count, 80) << layers;
  EXPECT_NEAR(static_cast<double>(narrow) / widths, 0.5, 0.05);
}

TEST(DrawnSuite, MistakesSayWhereTheyAre) {
  EXPECT_THAT(complaint(R"({"description": "d", "precisions": ["fp32"], "backends": ["all"]})"),
              HasSubstr("expected either key 'workloads' or key 'drawn'"));
  EXPECT_THAT(complaint(suite_text(kGood, std::string(R"("drawn": )") + kTenDrawn + ", ")),
              HasSubstr("expected either key 'workloads' or key 'drawn'"));
  EXPECT_THAT(complaint(drawing_text(R"({"networks": 10})")), HasSubstr("drawn: key 'layers' is missing"));
  EXPECT_THAT(complaint(drawing_text(R"({"networks": 10, "layers": 17, "width": 3000, "batch_size": 1})")),
              HasSubstr("drawn.layers: expected a whole number, 1 to 16"));
  EXPECT_THAT(complaint(drawing_text(R"({"networks": 10, "layers": 1, "width": 9, "batch_size": 1})")),
              HasSubstr("drawn.width: expected a whole number, 100 to"));
}

class PlanTest : public testing::Test {
 protected:
  PlanTest() {
    std::filesystem::create_directories(folder_.path() / "bench" / "suites");
    folder_.write(
        "bench/suites/s.json",
        suite_text(std::string(kGood) +
                   R"(, {"widths": [5, 3], "batch_size": 2}, {"widths": [6, 3], "batch_size": 2})"));
    installation_.root = folder_.path();
    options_.suite = "s";
  }
  Plan plan() const {
    return make_plan(options_, installation_,
                     [this](const std::vector<std::string>&) -> const auto& { return table_; });
  }
  std::string refusal() const {
    return message_of<InputError>([this] { plan(); });
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const PlannedWorkload& planned : plan().workloads) all.push_back(planned.workload.name);
    return all;
  }

  // As workers offer them.
  const std::vector<BackendRow> table_ = {
      {.name = "oracle", .worker = "oracle", .family = Family::kReference},
      {.name = "pytorch-eager", .worker = "python", .family = Family::kPytorch, .in_all = true},
      {.name = "pytorch-graph", .worker = "python", .family = Family::kPytorch, .in_all = true},
      {.name = "pytorch-compile",
       .worker = "python",
       .family = Family::kPytorch,
       .compiles = true,
       .in_all = true},
      {.name = "pytorch-compile-graph", .worker = "python", .family = Family::kPytorch, .in_all = true},
      {.name = "pytorch-ddp",
       .worker = "python",
       .family = Family::kPytorch,
       .in_all = true,
       .min_devices = 2},
      {.name = "libtorch-eager", .worker = "libtorch", .family = Family::kLibtorch, .in_all = true},
      {.name = "cuda-layered", .worker = "cuda", .family = Family::kOurs, .in_all = true},
      {.name = "cuda", .worker = "cuda", .family = Family::kOurs},
      {.name = "mine", .worker = "mine"},
  };
  TemporaryFolder folder_;
  Installation installation_;
  RunOptions options_;
};

TEST_F(PlanTest, AllIsEveryBackendThatCompetes) {
  EXPECT_THAT(plan().workloads[0].groups[0].backends,
              ElementsAre("pytorch-eager", "pytorch-graph", "pytorch-compile", "pytorch-compile-graph",
                          "libtorch-eager", "cuda-layered"));
  options_.backends = {"oracle", "all"};
  EXPECT_EQ(plan().workloads[0].groups[0].backends.front(), "oracle");
}

TEST_F(PlanTest, AllLeavesOutWhatTrainsOnMoreDevicesThanTheWorkloadHas) {
  options_.workload_names = {"mlp-4x3-b2", "mlp-4x3-b2-g2"};
  const Plan made = plan();
  EXPECT_THAT(made.workloads[0].groups[0].backends, ::testing::Not(::testing::Contains("pytorch-ddp")));
  EXPECT_THAT(made.workloads[1].groups[0].backends, ::testing::Contains("pytorch-ddp"));
  options_.backends = {"pytorch-ddp"};  // asked for by its name it is a row that says why not
  EXPECT_THAT(plan().workloads[0].groups[0].backends, ElementsAre("pytorch-ddp"));
}

TEST_F(PlanTest, ASuiteThatDrawsTakesTheWordOfTheCommandLine) {
  folder_.write("bench/suites/d.json", drawing_text(kTenDrawn));
  options_.suite = "d";
  EXPECT_THAT(refusal(), HasSubstr("no commit is known; give a word with --draw"));
  options_.draw = "0123456789";
  const std::vector<std::string> drawn = names();
  EXPECT_EQ(drawn.size(), 10u);
  options_.suite_workloads = {drawn[3]};
  EXPECT_THAT(names(), ElementsAre(drawn[3]));
  options_.suite_workloads.clear();
  options_.suite = "s";
  EXPECT_THAT(refusal(), HasSubstr("--draw: suite s draws nothing"));
  options_.workload_names = {"mlp-4x3-b2"};
  EXPECT_THAT(refusal(), HasSubstr("--draw: goes with --suite drawn"));
}

TEST_F(PlanTest, ABackendThatRepeatsAnotherIsMeasuredWhereItIsNamed) {
  EXPECT_THAT(plan().workloads[0].groups[0].backends, ::testing::Not(::testing::Contains("cuda")));
  options_.backends = {"all", "cuda"};
  EXPECT_THAT(plan().workloads[0].groups[0].backends, ::testing::Contains("cuda"));
}

TEST_F(PlanTest, TheBackendsAreAskedForOnceByEveryNameAndAfterAllElseWasChecked) {
  std::vector<std::vector<std::string>> asked;
  const auto ask = [&](const std::vector<std::string>& names) -> const auto& {
    asked.push_back(names);
    return table_;
  };
  options_.backends = {"all", "-cuda-layered", "mine"};
  make_plan(options_, installation_, ask);
  EXPECT_THAT(asked, ElementsAre(options_.backends));
  options_.suite_workloads = {"mlp-5x3-b1"};
  EXPECT_THROW(make_plan(options_, installation_, ask), InputError);
  EXPECT_EQ(asked.size(), 1u);
}

TEST_F(PlanTest, CellsOfAWorkloadAreMeasuredInTheirOwnPrecisionsOnly) {
  folder_.write("bench/suites/s.json",
                suite_text(R"({"widths": [4, 3], "batch_size": 2, "backends": ["cuda"]},
      {"widths": [4, 3], "batch_size": 2, "precisions": ["fp32", "bf16"], "backends": ["pytorch-graph"]})"));
  const auto groups = [&] {
    std::vector<std::string> all;
    const Plan made = plan();
    for (const Group& group : made.workloads.at(0).groups)
      for (const std::string& backend : group.backends)
        all.push_back(std::string(to_string(group.precision)) + " " + backend);
    return all;
  };
  EXPECT_THAT(groups(), ElementsAre("fp32 pytorch-graph", "fp32 cuda", "bf16 pytorch-graph"));
  options_.precisions = {Precision::kBf16, Precision::kFp16};
  EXPECT_THAT(groups(), ElementsAre("fp16 pytorch-graph", "fp16 cuda", "bf16 pytorch-graph"));
  options_.backends = {"cuda-layered"};
  EXPECT_THAT(groups(), ElementsAre("fp16 cuda-layered", "bf16 cuda-layered"));
}

TEST_F(PlanTest, ANameAfterAMinusIsLeftOut) {
  options_.backends = {"all", "-pytorch-compile", "-pytorch-compile-graph"};
  const std::vector<std::string> chosen = plan().workloads[0].groups[0].backends;
  EXPECT_THAT(chosen, ::testing::Contains("pytorch-graph"));
  EXPECT_THAT(chosen, ::testing::Not(::testing::Contains("pytorch-compile")));
  EXPECT_THAT(chosen, ::testing::Not(::testing::Contains("pytorch-compile-graph")));
  options_.backends = {"all", "-pytorch-compil"};
  EXPECT_THAT(refusal(), HasSubstr("did you mean 'pytorch-compile'"));
}

TEST_F(PlanTest, PartsOfASuite) {
  options_.suite_workloads = {"mlp-5x3-b2"};
  EXPECT_THAT(names(), ElementsAre("mlp-5x3-b2"));
  options_.suite_workloads = {};
  options_.shard_index = 1;
  options_.shard_count = 2;
  EXPECT_THAT(names(), ElementsAre("mlp-4x3-b2", "mlp-6x3-b2"));
  options_.shard_index = 2;
  EXPECT_THAT(names(), ElementsAre("mlp-5x3-b2"));
  options_.shard_count = options_.shard_index = 4;
  EXPECT_THAT(refusal(), HasSubstr("--shard 4/4"));
}

TEST_F(PlanTest, TheFilterFindsAnywhereAndMayBeNegated) {
  options_.backends = {"pytorch-eager", "libtorch-eager", "cuda-layered"};
  options_.google_benchmark.filter = "5x3.*/cuda";
  EXPECT_EQ(plan().cells(), 1);
  options_.google_benchmark.filter = "-cuda|libtorch";
  EXPECT_EQ(plan().cells(), 3);
  options_.google_benchmark.filter = "bf16";
  EXPECT_THAT(refusal(), HasSubstr("matches no"));
  options_.google_benchmark.filter = "(";
  EXPECT_THAT(refusal(), HasSubstr("not a regular expression"));
}

TEST_F(PlanTest, UnknownNamesComeWithTheNearest) {
  options_.backends = {"pytorch-eage"};
  EXPECT_THAT(refusal(), HasSubstr("did you mean 'pytorch-eager'"));
  options_.backends = {};
  options_.suite_workloads = {"mlp-5x3-b1"};
  EXPECT_THAT(refusal(), HasSubstr("did you mean 'mlp-5x3-b2'"));
  options_.suite_workloads = {};
  options_.suite = "t";
  EXPECT_THAT(refusal(), HasSubstr("did you mean 's'"));
}

TEST_F(PlanTest, TheOptimizersNumbersAreThoseOfTheCommandLine) {
  options_.workload_names = {"mlp-7x3-b2-adam", "mlp-6x3-b2-adamw"};
  options_.optimizer_numbers = {{"beta1", 0.5}, {"epsilon", 1e-5}};
  for (const PlannedWorkload& planned : plan().workloads) {
    EXPECT_EQ(planned.workload.optimizer.beta1, 0.5);
    EXPECT_EQ(planned.workload.optimizer.epsilon, 1e-5);
  }
  options_.optimizer_numbers = {{"weight_decay", 0.5}};
  EXPECT_THAT(refusal(),
              HasSubstr("--weight-decay: workload 'mlp-7x3-b2-adam' is trained by adam, which has none"));
  options_.optimizer_numbers = {{"momentum", 0.5}};
  EXPECT_THAT(refusal(), HasSubstr("--momentum: workload 'mlp-7x3-b2-adam'"));
}

TEST_F(PlanTest, MomentumIsInTheNameUnlessASuiteHasChosenIt) {
  options_.optimizer_numbers = {{"momentum", 0.5}};
  EXPECT_EQ(names().front(), "mlp-4x3-b2-momentum0.5");
  folder_.write("bench/suites/s.json",
                suite_text(R"({"name": "mine", "about": "A paper.", "widths": [4, 3], "batch_size": 2})"));
  const Plan made = plan();
  EXPECT_EQ(made.workloads[0].workload.name, "mine");
  EXPECT_EQ(made.workloads[0].workload.optimizer.momentum, 0.5);
  EXPECT_EQ(made.workloads[0].about, "A paper.");
  options_.workload_names = {"mlp-4x3-b2", "mlp-4x3-b2-momentum0.9"};
  EXPECT_THAT(refusal(), HasSubstr("makes two workloads 'mlp-4x3-b2-momentum0.5'"));
}

TEST_F(PlanTest, LabelsAreNoTargetsOfARegression) {
  for (const char* loss : {"mse", "bce"}) {
    options_.workload_names = {std::string("mlp-7x3-b2-") + loss};
    options_.data_folder = (folder_.path() / "none").string();
    EXPECT_THAT(refusal(), HasSubstr("IDX files hold labels"));
  }
}

TEST_F(PlanTest, WorkloadsOnTheCommandLine) {
  options_.workload_names = {"mlp-7x3-b2", "mlp-7x3-b2"};
  EXPECT_THAT(refusal(), HasSubstr("twice"));
  options_.workload_names = {"mlp-7x0-b2"};
  EXPECT_NE(refusal(), "");
  options_.workload_names = {"mlp-7x3-b2"};
  options_.seed = 5;
  options_.optimizer_numbers = {{"learning_rate", 0.5}};
  const Plan made = plan();
  EXPECT_FALSE(made.suite);
  EXPECT_EQ(made.workloads[0].workload.seed, 5u);
  EXPECT_EQ(made.workloads[0].workload.optimizer.learning_rate, 0.5);
  EXPECT_EQ(made.workloads[0].workload.name, "mlp-7x3-b2");  // docs/add-a-workload.md says so
  EXPECT_THAT(made.loss_seeds, ElementsAre(1u, 2u, 3u, 4u, 5u));
}

}  // namespace
}  // namespace headroom
