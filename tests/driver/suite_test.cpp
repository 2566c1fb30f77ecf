// Suite files and what a run makes of them.
#include "driver/plan/suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_THAT(suite.workloads[0].precisions, ElementsAre(Precision::kFp32));
  const SuiteWorkload& own = suite.workloads[1];
  EXPECT_EQ(own.workload.name, "mine");
  EXPECT_EQ(own.workload.seed, 9u);
  EXPECT_EQ(own.workload.optimizer.learning_rate, 0.1);
  EXPECT_EQ(own.workload.dataset.folder, (folder.path() / "idx").string());
  EXPECT_THAT(own.backends, ElementsAre("all", "oracle"));
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
  Plan plan() const { return make_plan(options_, installation_, backend_table()); }
  std::string refusal() const {
    return message_of<InputError>([this] { plan(); });
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const PlannedWorkload& planned : plan().workloads) all.push_back(planned.workload.name);
    return all;
  }

  TemporaryFolder folder_;
  Installation installation_;
  RunOptions options_;
};

TEST_F(PlanTest, AllIsEveryBackendThatCompetes) {
  std::vector<std::string> competing;
  for (const BackendRow& row : backend_table())
    if (row.family != Family::kReference && !row.repeats) competing.push_back(row.name);
  for (const char* name : {"pytorch-eager", "libtorch-eager", "cuda-layered"})
    EXPECT_THAT(competing, ::testing::Contains(name));
  EXPECT_EQ(plan().workloads[0].groups[0].backends, competing);
  options_.backends = {"oracle", "all"};
  EXPECT_EQ(plan().workloads[0].groups[0].backends.front(), "oracle");
}

TEST_F(PlanTest, ABackendThatRepeatsAnotherIsMeasuredWhereItIsNamed) {
  EXPECT_THAT(plan().workloads[0].groups[0].backends, ::testing::Not(::testing::Contains("cuda")));
  options_.backends = {"all", "cuda"};
  EXPECT_THAT(plan().workloads[0].groups[0].backends, ::testing::Contains("cuda"));
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

TEST_F(PlanTest, WorkloadsOnTheCommandLine) {
  options_.workload_names = {"mlp-7x3-b2", "mlp-7x3-b2"};
  EXPECT_THAT(refusal(), HasSubstr("twice"));
  options_.workload_names = {"mlp-7x0-b2"};
  EXPECT_NE(refusal(), "");
  options_.workload_names = {"mlp-7x3-b2"};
  options_.seed = 5;
  options_.learning_rate = 0.5;
  const Plan made = plan();
  EXPECT_FALSE(made.suite);
  EXPECT_EQ(made.workloads[0].workload.seed, 5u);
  EXPECT_EQ(made.workloads[0].workload.optimizer.learning_rate, 0.5);
  EXPECT_EQ(made.workloads[0].workload.name, "mlp-7x3-b2");  // docs/add-a-workload.md says so
  EXPECT_THAT(made.loss_seeds, ElementsAre(1u, 2u, 3u, 4u, 5u));
}

}  // namespace
}  // namespace headroom
