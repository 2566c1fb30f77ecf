// The reference on the GPU against the one on the CPU: the same arithmetic, so nearly the same bits.
#include "oracle/reference.h"

#include "core/error.h"
#include "gpu_test.h"
#include "not_finite.h"
#include "oracle/device_gradient.h"
#include "oracle/gradient.h"
#include "oracle/oracle.h"
#include "oracle/step_copies.h"

namespace headroom {
namespace {

std::vector<double> doubles(const Parameters& parameters) {
  return {parameters.flat().begin(), parameters.flat().end()};
}

void compare_references(const std::vector<int>& widths, int batch_size, Precision precision,
                        const std::vector<std::int64_t>& steps, Contract contract = Contract::kExact,
                        Loss loss = Loss::kCrossEntropy) {
  Workload workload = test_workload(widths, batch_size, fresh_seed());
  workload.loss = loss;
  workload.name = default_name(workload);
  const Dataset data = make_dataset(workload, 1 << 20);
  const Parameters initial = initial_parameters(widths, workload.seed);
  std::vector<ReferencePoint> expected, found;
  std::vector<Parameters> expected_free, found_free;
  follow_reference(
      workload, precision, true, data.train(), initial, steps,
      [&](const ReferencePoint& point) { expected.push_back(point); },
      [&](const Parameters& parameters) { expected_free.push_back(parameters); }, {.contracts = {contract}});
  follow_reference_on_device(
      workload, precision, data.train(), initial, 0, steps, kFreeSteps,
      [&](const ReferencePoint& point) { found.push_back(point); },
      [&](const Parameters& parameters) { found_free.push_back(parameters); }, {.contracts = {contract}});
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_EQ(found_free.size(), expected_free.size());
  // Sums in another order move a value by 1e-16, and only a value next to a rounding's edge by more.
  constexpr double kBound = 1e-4;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].step, expected[i].step);
    EXPECT_NEAR(found[i].loss, expected[i].loss, kBound * expected[i].loss + 1e-12);
    const double start =
        relative_error(doubles(found[i].start.parameters), doubles(expected[i].start.parameters));
    const double update =
        relative_error(doubles(found[i].update.parameters), doubles(expected[i].update.parameters));
    EXPECT_FALSE(!(start <= kBound)) << start << ", seed " << workload.seed;
    EXPECT_FALSE(!(update <= kBound)) << update << ", step " << found[i].step << ", seed " << workload.seed;
  }
  ASSERT_EQ(found_free.empty(), steps.back() < kFreeSteps - 1);
  if (found_free.empty()) return;
  const double free = relative_error(doubles(found_free[0]), doubles(expected_free[0]));
  EXPECT_FALSE(!(free <= kBound)) << free;
}

const std::vector<std::int64_t> kSteps = {0, 1, 7, 29};

class DeviceReference : public testing::TestWithParam<Precision> {
 protected:
  void SetUp() override { HEADROOM_NEEDS_DEVICE(); }
};
INSTANTIATE_TEST_SUITE_P(, DeviceReference, testing::ValuesIn(kAllPrecisions),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

TEST_P(DeviceReference, SmallAgreesWithTheCpuOnOddShapes) {
  compare_references({33, 7}, 31, GetParam(), {0, 1});
  compare_references({7, 33, 65, 5}, 1, GetParam(), {0, 1});
}
TEST_P(DeviceReference, FollowsTheCpuOnOddShapes) {
  compare_references({33, 7}, 31, GetParam(), kSteps);
  compare_references({7, 33, 65, 5}, 1, GetParam(), kSteps);
}
// Several blocks share the sums over a batch, in parts of which the last is shorter.
TEST_P(DeviceReference, SmallAgreesWithTheCpuOnALargeBatch) {
  compare_references({7, 33, 5}, 2731, GetParam(), {0, 1});
}
TEST_P(DeviceReference, SmallAgreesWithTheCpuInContractsThatRoundOtherwise) {
  for (const Contract contract : {Contract::kAutocast, Contract::kLibrary}) {
    compare_references({7, 33, 5}, 31, GetParam(), {0, 1}, contract);
    compare_references({7, 33, 1}, 31, GetParam(), {0, 1}, contract, Loss::kMeanSquaredError);
  }
}
TEST_P(DeviceReference, SmallAgreesWithTheCpuInWhatEachCopyOfAutocastRounds) {
  if (GetParam() != Precision::kFp16 && GetParam() != Precision::kBf16) return;  // nothing is left out
  for (const std::vector<int>& widths : std::vector<std::vector<int>>{{7, 33, 1}, {7, 33, 3}, {9, 1}}) {
    Workload workload = test_workload(widths, 31, fresh_seed());
    workload.model.activation = Activation::kSilu;
    workload.loss = Loss::kMeanSquaredError;
    workload.name = default_name(workload);
    const Dataset data = make_dataset(workload, 1 << 20);
    const Parameters initial = initial_parameters(widths, workload.seed);
    const Values parameters(initial.flat().begin(), initial.flat().end());
    GradientOfBatch of_cpu(workload, data.train());
    DeviceGradient of_device(workload, data.train());
    Stream stream;
    DeviceBuffer<double> device_parameters(std::ssize(parameters)), found(std::ssize(parameters));
    device_parameters.copy_from(parameters);
    for (int copy = 0; copy < kCopies; ++copy) {
      const Roundings roundings = copy_roundings(workload, GetParam(), Contract::kAutocast, copy, kCopies);
      Values expected;
      of_cpu(parameters, 1, roundings, expected);
      of_device(device_parameters.data(), 1, roundings, found.data(), stream);
      const double error = relative_error(found.to_host(), {expected.begin(), expected.end()});
      EXPECT_FALSE(!(error <= 1e-6)) << error << ", copy " << copy << ", seed " << workload.seed;
    }
  }
}
TEST_P(DeviceReference, AgreesWithTheCpuOnTheSeedNetwork) {
  compare_references({784, 128, 128, 128, 10}, 32, GetParam(), kSteps);
}

TEST(DeviceReferenceTrainer, TrainsAsTheCpuTrainer) {
  HEADROOM_NEEDS_DEVICE();
  const Workload workload = test_workload({20, 24, 10}, 8, fresh_seed());
  const Dataset data = make_dataset(workload, 1 << 16);
  const Parameters initial = initial_parameters(workload.model.widths, workload.seed);
  auto cpu = make_oracle_trainer(workload, Precision::kFp32, true, data.train(), initial);
  auto gpu = make_device_oracle_trainer(workload, Precision::kFp32, data.train(), initial, 0);
  cpu->train(0, 20);
  gpu->train(0, 12);
  gpu->train(12, 8);
  EXPECT_EQ(gpu->losses(0, 20).size(), 20u);
  EXPECT_NEAR(gpu->losses(19, 1)[0], cpu->losses(19, 1)[0], 1e-6);
  EXPECT_FALSE(!(relative_error(doubles(gpu->parameters()), doubles(cpu->parameters())) <= 1e-6));
  EXPECT_THROW(gpu->losses(20, 1), InputError);
}

TEST(DeviceReferenceTrainer, SmallANaNComesOutAsNaNLosses) {
  HEADROOM_NEEDS_DEVICE();
  for (const Precision precision : kAllPrecisions)
    for (const char* name : {"mlp-33x7-b31", "mlp-20x24x33x10-b8", "mlp-20x24x33x1-b8-silu-mse-adam"}) {
      NotFiniteProblem problem(name);
      expect_nans_in_the_losses(problem, precision, NaNPlaces::kFew, [&] {
        return make_device_oracle_trainer(problem.workload, precision, problem.dataset.train(),
                                          problem.initial, 0);
      });
    }
}

TEST(DeviceReferenceTrainer, ThrowsUnsupportedWithoutADevice) {
  const Workload workload = test_workload({4, 3}, 2, 1);
  const Dataset data = make_dataset(workload, 1);
  EXPECT_THROW(
      make_device_oracle_trainer(workload, Precision::kFp32, data.train(), initial_parameters({4, 3}, 1), -1),
      UnsupportedError);
}

}  // namespace
}  // namespace headroom
