// The fused trainer against the double-precision oracle: every padding, one and several groups of classes, streamed
// inputs, remainders of rows, 2 to 10 layers.
//
// Tests named Small also run under the sanitizers. What a failure prints says which tensor is wrong, and so which
// product: weight gradients and biases of one layer only, or of all layers below one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <tuple>

#include "core/error.h"
#include "data/dataset.h"
#include "fused/plan.h"
#include "fused/trainer.h"
#include "kept_fused_trainer.h"
#include "not_finite.h"
#include "step_check.h"

namespace headroom {
namespace {

#define NEEDS_GPU() \
  if (const auto reason = fused_unavailable(0)) GTEST_SKIP() << *reason

constexpr std::int64_t kSanitizedSteps = 3;
constexpr fused::Limits kH200{.sm_count = 132, .shared_bytes = 232448};

struct Problem : NamedProblem {
  using NamedProblem::NamedProblem;
  std::unique_ptr<Trainer> trainer(Precision precision) {
    return make_kept_fused_trainer(workload, precision, dataset.train(), initial, 0);
  }
};

void check_against_oracle(const std::string& name, Precision precision,
                          const std::vector<std::int64_t>& steps) {
  Problem problem(name, fresh_seed());
  const auto trainer = problem.trainer(precision);
  check_against_oracle(problem, precision, *trainer, steps, kSanitizedSteps);
}

/// The networks of a test that one run of it plays. Where tests are shortened, large batches are left to a device of few
/// multiprocessors (HEADROOM_EMULATED_SMS), which gets its share of an H200's batch: as many rows for each, so the same form. Small
/// batches are left to a device of the usual size.
std::vector<std::string> played(const std::vector<std::string>& names, Precision precision) {
  if (!is_shortened()) return names;
  const char* given = std::getenv("HEADROOM_EMULATED_SMS");
  const int sms = given != nullptr ? std::atoi(given) : kH200.sm_count;
  std::vector<std::string> result;
  for (const std::string& name : names) {
    const Workload whole = parse_workload_name(name);
    if ((whole.batch_size >= kLargeBatch) != (sms < kH200.sm_count)) continue;
    if (sms == kH200.sm_count) {
      result.push_back(name);
      continue;
    }
    const int batch = (whole.batch_size * sms + kH200.sm_count - 1) / kH200.sm_count;
    result.push_back(name.substr(0, name.find("-b") + 2) + std::to_string(batch));
    EXPECT_EQ(fused::make_plan(parse_workload_name(result.back()), precision,
                               {.sm_count = sms, .shared_bytes = kH200.shared_bytes})
                  .form,
              fused::make_plan(whole, precision, kH200).form)
        << result.back();
  }
  return result;
}

class FusedTrainer : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Every, FusedTrainer, testing::Values(Precision::kFp16, Precision::kBf16),
                         [](const auto& precision) { return std::string(to_string(precision.param)); });

const std::vector<std::int64_t> kFewSteps = {0, 1, 9}, kMoreSteps = {0, 1, 7, 9, 12};

TEST_P(FusedTrainer, SmallStepsMatchTheOracle) {
  NEEDS_GPU();
  for (const std::string& name :
       played({"mlp-16x16x16x10-b300", "mlp-64x64x64x16-b200", "mlp-128x100x128x16-b150",
               "mlp-128x70x128x100x128x16-b150", "mlp-65x66x70x66x68x5-b33000", "mlp-100x128x77x20-b150",
               "mlp-9x16x5-b8400", "mlp-530x100x10-b300",
               // More rows of a warp than its ring of inputs holds.
               "mlp-3x5x2-b110000",
               // Hidden layers of different widths, whose biases a warp sums together.
               "mlp-20x9x32x4x17x3-b300"},
              GetParam()))
    check_against_oracle(name, GetParam(), kFewSteps);
}
TEST_P(FusedTrainer, SmallTilesApartFromSumsMatchTheOracle) {
  NEEDS_GPU();
  // One round of a thread block's tiles, of an odd number of them and with rows to spare; then several.
  for (const std::string& name : played({"mlp-64x64x64x64x64x16-b300", "mlp-50x40x64x33x7-b140",
                                         "mlp-64x64x10-b257", "mlp-64x64x64x64x64x16-b26001"},
                                        GetParam()))
    check_against_oracle(name, GetParam(), kFewSteps);
}
TEST_P(FusedTrainer, SmallPipelineMatchesTheOracle) {
  NEEDS_GPU();
  for (const std::string& name : played({"mlp-64x40x64x5-b18001"}, GetParam()))
    check_against_oracle(name, GetParam(), kFewSteps);
}
TEST_P(FusedTrainer, EveryDepthOfThePipelineMatchesTheOracle) {
  NEEDS_GPU();
  for (const std::string& name : played({"mlp-50x64x7-b18001", "mlp-64x33x64x16-b25001",
                                         "mlp-40x64x50x64x10-b18001", "mlp-64x50x64x64x40x16-b18001"},
                                        GetParam()))
    check_against_oracle(name, GetParam(), kFewSteps);
}
#ifdef HEADROOM_EMULATED  // a GPU gives batches that do not fill its pipeline to another kernel (fused_kernels_test.cpp)
TEST_P(FusedTrainer, LossesAndOptimizersOfThePipelineMatchTheOracle) {
  for (const char* name : {"mlp-20x40x33x5-b300-mse-adam", "mlp-64x64x16-b200-bce-momentum0.9",
                           "mlp-33x40x9-b150-adamw", "mlp-40x64x50x64x1-b400-mse"})
    check_against_oracle(name, GetParam(), kFewSteps);
}
#endif
TEST_P(FusedTrainer, LogitsFarFromZeroMatchTheOracle) {
  NEEDS_GPU();
  // 2 to the power of these is no fp32 number, or 0: a row's largest logit has to be subtracted. Labels' rows differ by
  // little, so the softmax is that of logits near 0.
  for (const std::string& name :
       played({"mlp-64x40x64x5-b18001", "mlp-64x64x64x64x10-b140", "mlp-30x20x7-b200"}, GetParam()))
    for (const float shift : {200.0f, -200.0f}) {
      Problem problem(name, fresh_seed());
      for (float& bias : problem.initial.bias(problem.workload.layers() - 1)) bias += shift;
      const auto trainer = problem.trainer(GetParam());
      check_against_oracle(problem, GetParam(), *trainer, kFewSteps, kSanitizedSteps);
    }
}
TEST_P(FusedTrainer, SmallNarrowPanelsMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name : {"mlp-140x100x70x10-b300", "mlp-72x30x20-b300", "mlp-90x60x10-b300",
                           "mlp-270x100x10-b300", "mlp-330x70x20-b300"})
    check_against_oracle(name, GetParam(), kFewSteps);
}
TEST_P(FusedTrainer, OddShapesMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name : {"mlp-1x3x2-b129", "mlp-33x17x5-b191", "mlp-130x31x33x64x17-b1000",
                           "mlp-7x65x100x3-b517", "mlp-200x128x65-b130"})
    check_against_oracle(name, GetParam(), kMoreSteps);
}
TEST_P(FusedTrainer, ManyClassesMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name : {"mlp-40x32x256-b300", "mlp-40x64x48x130-b300", "mlp-40x128x100x256-b300"})
    check_against_oracle(name, GetParam(), kMoreSteps);
}
TEST_P(FusedTrainer, WideInputsMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name : {"mlp-1024x32x10-b256", "mlp-784x128x128x10-b700", "mlp-1000x64x64x256-b333"})
    check_against_oracle(name, GetParam(), kMoreSteps);
}
TEST_P(FusedTrainer, EveryDepthMatchesTheOracle) {
  NEEDS_GPU();
  std::string middle;
  for (int hidden = 1; hidden <= 9; ++hidden) {
    middle += "64x";
    check_against_oracle("mlp-64x" + middle + "16-b256", GetParam(), kFewSteps);
  }
  for (const char* name :
       {"mlp-128x128x128x16-b300", "mlp-100x90x128x70x16-b300", "mlp-128x128x128x128x128x16-b512"})
    check_against_oracle(name, GetParam(), kFewSteps);
  check_against_oracle("mlp-32x32x32x32x32x16-b512", GetParam(), kFewSteps);
}
TEST_P(FusedTrainer, LargeBatchesMatchTheOracle) {
  NEEDS_GPU();
  // More tiles than thread blocks have at once, and a last tile that is not full.
  check_against_oracle("mlp-64x64x64x64x64x16-b20001", GetParam(), kFewSteps);
  check_against_oracle("mlp-64x64x64x64x64x16-b45001", GetParam(), kFewSteps);
  check_against_oracle("mlp-32x32x32x32x32x16-b20001", GetParam(), kFewSteps);
  check_against_oracle("mlp-128x128x128x128x128x16-b17001", GetParam(), kFewSteps);
  // The general form: two tiles a warpgroup, and more panels of inputs than stages.
  check_against_oracle("mlp-530x128x64x10-b20001", GetParam(), kFewSteps);
  // More tiles of a pair than it keeps in device memory.
  check_against_oracle("mlp-128x128x128x128x128x16-b40001", GetParam(), kFewSteps);
}

/// Parameters and losses of `steps` steps.
std::vector<float> bits_of(Trainer& trainer, std::int64_t steps) {
  const Parameters end = trainer.parameters();
  std::vector<float> bits(end.flat().begin(), end.flat().end());
  for (const float loss : trainer.losses(0, steps)) {
    EXPECT_TRUE(std::isfinite(loss));
    bits.push_back(loss);
  }
  return bits;
}
/// The same after so many steps in two parts, or one at a time.
std::vector<float> bits_after(Problem& problem, Precision precision, std::int64_t cut,
                              std::int64_t steps = 100) {
  const auto trainer = problem.trainer(precision);
  trainer->train(0, cut);
  trainer->train(cut, steps - cut);
  return bits_of(*trainer, steps);
}
std::vector<float> bits_one_by_one(Problem& problem, Precision precision, std::int64_t steps) {
  const auto trainer = problem.trainer(precision);
  for (std::int64_t step = 0; step < steps; ++step) trainer->train(step, 1);
  return bits_of(*trainer, steps);
}
TEST_P(FusedTrainer, FewStepsGiveTheSameBitsHoweverTheyAreCut) {
  NEEDS_GPU();
  // Each form once: warps, apart (one round and two), pipeline, clusters, pairs, general. All steps but one in graphs, whose kernels
  // begin before the ones before them have ended, and one alone; then all of them alone.
  for (const std::string& name : played(
           {"mlp-20x9x32x4x3-b3000", "mlp-64x64x64x16-b300", "mlp-40x64x64x7-b16896", "mlp-64x40x64x5-b18001",
            "mlp-128x100x128x16-b600", "mlp-65x66x70x66x68x5-b33000", "mlp-140x100x70x10-b300"},
           GetParam())) {
    Problem problem(name, fresh_seed());
    const std::int64_t steps = is_shortened() ? 5 : 9;
    EXPECT_EQ(bits_after(problem, GetParam(), steps - 1, steps), bits_one_by_one(problem, GetParam(), steps))
        << problem.described(GetParam());
  }
}
/// 510 steps take one graph of each length but the shortest.
TEST_P(FusedTrainer, LongGraphsGiveTheBitsOfSingleSteps) {
  NEEDS_GPU();
  Problem problem("mlp-16x16x10-b128", fresh_seed());
  EXPECT_EQ(bits_after(problem, GetParam(), 510, 511), bits_one_by_one(problem, GetParam(), 511))
      << problem.described(GetParam());
}
/// Many times, as a race between warps that shows in one step of fifty did before version 22.
TEST_P(FusedTrainer, AStepGivesTheSameBitsEveryTime) {
  NEEDS_GPU();
  const int runs = is_shortened() ? 10 : 100;
  for (const char* name : {"mlp-128x100x128x16-b1000", "mlp-128x70x128x100x128x16-b500",
                           "mlp-64x64x64x16-b600", "mlp-140x100x70x10-b600"}) {
    Problem problem(name, fresh_seed());
    const auto trainer = problem.trainer(GetParam());
    const auto bits = [&] {
      trainer->set_parameters(problem.initial);
      trainer->train(0, 1);
      const Parameters end = trainer->parameters();
      return std::vector<float>(end.flat().begin(), end.flat().end());
    };
    const auto first = bits();
    for (int run = 0; run < runs; ++run)
      ASSERT_EQ(first, bits()) << problem.described(GetParam()) << ", run " << run;
  }
}
TEST_P(FusedTrainer, TwoRunsGiveTheSameBitsHoweverTheyAreCut) {
  NEEDS_GPU();
  for (const char* name :
       {"mlp-64x64x64x64x64x16-b30000", "mlp-64x64x64x64x64x16-b40000", "mlp-128x128x128x128x128x16-b30000",
        "mlp-128x128x128x128x128x16-b40000", "mlp-784x128x128x10-b5000", "mlp-32x32x32x16-b30000"}) {
    Problem problem(name, fresh_seed());
    const auto first = bits_after(problem, GetParam(), 50);
    EXPECT_EQ(first, bits_after(problem, GetParam(), 50)) << name;
    EXPECT_EQ(first, bits_after(problem, GetParam(), 1)) << name;
  }
}

/// 132 multiprocessors are what the two rules were measured on.
TEST(FusedPlan, TakesTheFormThatSuitsTheDevicesMultiprocessors) {
  using fused::Form;
  for (const auto& [name, sm_count, form] : {std::tuple{"mlp-64x64x64x64x64x16-b16384", 132, Form::kApart},
                                             {"mlp-64x64x64x64x64x16-b16384", 114, Form::kPipeline},
                                             {"mlp-64x64x64x64x64x16-b14592", 114, Form::kApart},
                                             {"mlp-64x64x64x64x64x16-b131072", 132, Form::kPipeline},
                                             {"mlp-64x64x64x64x64x16-b512", 4, Form::kApart},
                                             {"mlp-64x64x64x64x64x16-b640", 4, Form::kPipeline},
                                             {"mlp-128x128x128x128x128x16-b32767", 132, Form::kCluster},
                                             {"mlp-128x128x128x128x128x16-b32768", 132, Form::kPair},
                                             {"mlp-128x128x128x128x128x16-b32768", 144, Form::kCluster},
                                             {"mlp-128x128x128x128x128x16-b28301", 114, Form::kPair},
                                             {"mlp-32x32x32x32x32x16-b16384", 1, Form::kWarps}})
    EXPECT_EQ(fused::make_plan(parse_workload_name(name), Precision::kFp16,
                               {.sm_count = sm_count, .shared_bytes = kH200.shared_bytes})
                  .form,
              form)
        << name << ", " << sm_count;
}
TEST(FusedPlan, SaysWhichBytesOfSharedMemoryAreMissing) {
  const auto refusal = fused_refusal(parse_workload_name("mlp-1024x128x128x256-b256"), Precision::kFp16,
                                     {.sm_count = 132, .shared_bytes = 101376})
                           .value_or("");
  EXPECT_NE(refusal.find("in 101376"), std::string::npos) << refusal;
}
TEST(FusedPlan, RefusesWithTheReason) {
  const auto refusal = [](const char* name, Precision precision = Precision::kFp16) {
    return fused_refusal(parse_workload_name(name), precision, kH200).value_or("");
  };
  EXPECT_EQ(refusal("mlp-64x64x10-b256"), "");
  EXPECT_EQ(refusal("mlp-1024x128x128x256-b256", Precision::kBf16), "");
  EXPECT_EQ(refusal("mlp-64x64x10-b256", Precision::kTf32), "tf32; it trains in fp16 and bf16");
  EXPECT_EQ(refusal("mlp-64x10-b256"), "1 layers; it trains 2 to 10");
  EXPECT_EQ(refusal("mlp-64x8x8x8x8x8x8x8x8x8x8x10-b256"), "11 layers; it trains 2 to 10");
  EXPECT_EQ(refusal("mlp-64x129x10-b256"), "a hidden width of 129; it trains up to 128");
  EXPECT_EQ(refusal("mlp-1025x64x10-b256"), "1025 inputs; it trains up to 1024");
  EXPECT_EQ(refusal("mlp-64x64x257-b256"), "257 classes; it trains up to 256");
  EXPECT_EQ(refusal("mlp-64x64x10-b127"), "batch size 127; it trains 128 and more");
  EXPECT_NE(refusal("mlp-64x128x128x128x128x128x128x128x128x128x256-b256").find("bytes of shared memory"),
            std::string::npos);
}
TEST(FusedPlan, EveryWeightHasItsOwnPlaceInTheImage) {
  for (const char* name : {"mlp-70x64x33x16-b256", "mlp-3x100x128x200-b256", "mlp-5x7x2-b256"}) {
    const auto plan = fused::make_plan(parse_workload_name(name), Precision::kFp16, kH200);
    std::vector<char> taken(static_cast<std::size_t>(plan.image_bytes), 0);
    const auto take = [&](int begin, int bytes) {
      for (int byte = begin; byte < begin + bytes; ++byte) {
        ASSERT_GE(byte, 0);
        ASSERT_LT(byte, plan.image_bytes);
        EXPECT_EQ(taken[static_cast<std::size_t>(byte)]++, 0) << name << " byte " << byte;
      }
    };
    for (int layer = 0; layer <= plan.hidden; ++layer)
      for (int out = 0; out < plan.widths[layer + 1]; ++out) {
        for (int in = 0; in < plan.widths[layer]; ++in)
          fused::for_each_place(plan, layer, out, in, [&](int byte) { take(byte, 2); });
        take(fused::bias_place(plan, layer, out), 4);
      }
  }
}

/// Each form: warps, apart, clusters, the general one with one group of classes and with several, pipeline, pairs.
constexpr const char *kWarps = "mlp-16x16x10-b130", *kApart = "mlp-40x64x33x7-b140",
                     *kClusters = "mlp-128x100x70x16-b150", *kGeneral = "mlp-140x100x70x10-b140",
                     *kManyClasses = "mlp-40x32x40-b130", *kPipeline = "mlp-40x33x64x5-b18001",
                     *kPair = "mlp-128x100x70x128x66x16-b33000";

void expect_nans_in_the_losses_of(const std::vector<std::string>& names, Precision precision,
                                  NaNPlaces places) {
  for (const std::string& name : names) {
    NotFiniteProblem problem(name);
    expect_nans_in_the_losses(problem, precision, places, [&] {
      return make_kept_fused_trainer(problem.workload, precision, problem.dataset.train(), problem.initial,
                                     0);
    });
  }
}
TEST_P(FusedTrainer, ANaNComesOutOfEveryFormForFewRowsAsNaNLosses) {
  NEEDS_GPU();
  expect_nans_in_the_losses_of({kWarps, kApart, kClusters, kGeneral, kManyClasses}, GetParam(),
                               NaNPlaces::kFew);
}
TEST_P(FusedTrainer, ANaNComesOutOfThePipelineAndOfPairsAsNaNLosses) {
  NEEDS_GPU();
  expect_nans_in_the_losses_of(played({kPipeline, kPair}, GetParam()), GetParam(), NaNPlaces::kFew);
}
#ifdef HEADROOM_EMULATED  // as above
TEST_P(FusedTrainer, ANaNComesOutOfThePipelineWithOtherRulesAsNaNLosses) {
  expect_nans_in_the_losses_of({"mlp-20x40x33x5-b300-mse-adam", "mlp-33x40x9-b150-adamw"}, GetParam(),
                               NaNPlaces::kFew);
}
#endif
TEST_P(FusedTrainer, ANaNInAnyPlaceComesOutOfEveryFormAsNaNLosses) {
  NEEDS_GPU();
  expect_nans_in_the_losses_of({kWarps, kApart, kClusters, kGeneral, kManyClasses, kPipeline, kPair},
                               GetParam(), NaNPlaces::kEvery);
}

}  // namespace
}  // namespace headroom
