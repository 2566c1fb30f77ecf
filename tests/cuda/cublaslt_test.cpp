// cublaslt-graph: its updates against the double-precision reference in every plan,
// and its worker on machines that lack a GPU or the library.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "analysis/verification.h"
#include "core/error.h"
#include "cublaslt/library.h"
#include "cublaslt/matrix_rates.h"
#include "cublaslt/trainer.h"
#include "gpu_test.h"
#include "not_finite.h"
#include "oracle/oracle.h"
#include "rules_workload.h"
#include "scratch.h"
#include "shortened.h"
#include "trainer_contract.h"
#include "worker/client.h"

namespace headroom {
namespace {

using testing::HasSubstr;

/// The driver gives the worker PyTorch's folders as LD_LIBRARY_PATH, which is too late for this process; but a
/// library that is loaded already is found by its name.
void load_cublaslt_beside_pytorch() {
  const char* folders = std::getenv("HEADROOM_TORCH_LIBRARY_PATH");
  std::istringstream list(folders != nullptr ? folders : "");
  for (std::string folder; std::getline(list, folder, ':');)
    if (dlopen((folder + "/" + cublaslt::library_file()).c_str(), RTLD_NOW) != nullptr) return;
}

std::optional<std::string> cublaslt_missing() {
  static const bool loaded = (load_cublaslt_beside_pytorch(), true);
  return loaded ? cublaslt_unavailable(0) : std::nullopt;
}

#define HEADROOM_NEEDS_CUBLASLT() \
  if (const auto missing = cublaslt_missing()) GTEST_SKIP() << *missing

WorkerClient start_worker(const Scratch& scratch, const std::string& library_path) {
  return WorkerClient({"cublaslt",
                       {(program_folder() / "headroom-cublaslt-worker").string()},
                       {{"LD_LIBRARY_PATH", library_path}},
                       scratch.folder / "log"},
                      -1);
}

TEST(CublasltWorker, StartsAndSaysThatThereIsNoDevice) {
  const Scratch scratch(small_workload());
  WorkerClient worker = start_worker(scratch, "");
  const WorkerHello hello = worker.hello();
  ASSERT_EQ(hello.backends.size(), 1u);
  EXPECT_EQ(hello.backends[0].name, "cublaslt-graph");
  for (const Precision precision : kAllPrecisions) {
    const OfferedPrecision& offer = hello.backends[0].precisions.at(precision);
    EXPECT_EQ(offer.unavailable, "no CUDA device");
    EXPECT_EQ(offer.contract, precision == Precision::kTf32 ? Contract::kLibrary : Contract::kExact);
  }
}

TEST(MatrixRates, AreThereInEveryPrecisionAndRiseAsItFalls) {
  HEADROOM_NEEDS_CUBLASLT();
  const Calibration rates = calibrate_matrix_products(0);
  ASSERT_EQ(rates.size(), 4u);
  for (const auto& [name, rate] : rates) {
    EXPECT_EQ(rate.unit, "flops_per_second");
    EXPECT_GT(rate.value, 1e12) << name;
    RecordProperty(name, std::to_string(rate.value));
  }
  EXPECT_GT(rates.at("matrix_tf32").value, rates.at("matrix_fp32").value);
  EXPECT_GT(rates.at("matrix_fp16").value, rates.at("matrix_tf32").value);
}

struct Trained : Problem {
  using Problem::Problem;
  std::unique_ptr<Trainer> trainer(Precision precision, std::optional<CublasltPlan> plan = {}) const {
    // Measuring plans takes thousands of steps.
    if (!plan && is_shortened()) plan = CublasltPlan{2, false};
    return make_cublaslt_trainer(workload, precision, data.train(), initial, 0, plan);
  }
};

/// The driver's step check.
void check_updates(const Trained& trained, Precision precision, std::optional<CublasltPlan> plan,
                   const std::vector<std::int64_t>& steps) {
  const Contract contract = precision == Precision::kTf32 ? Contract::kLibrary : Contract::kExact;
  SCOPED_TRACE(trained.workload.name + ", seed " + std::to_string(trained.workload.seed));
  auto trainer = trained.trainer(precision, plan);
  std::vector<StepErrors> errors;
  follow_reference(
      trained.workload, precision, true, trained.data.train(), trained.initial, steps,
      [&](const ReferencePoint& point) {
        trainer->set_state(point.start);
        trainer->train(point.step, 1);
        errors.push_back(compare_step(trained.workload.optimizer, point, trainer->state()));
        EXPECT_NEAR(trainer->losses(point.step, 1)[0], point.loss, 1e-3 * (1 + point.loss));
      },
      [](const Parameters&) {}, {{contract}, kCopies});
  const Verification verification = judge(step_update_checks(trained.workload, errors, precision));
  EXPECT_NE(verification.verdict, Verdict::kFail) << failure_message(verification);
}

Trained network(std::vector<int> widths, int batch_size, Activation activation, Loss loss,
                const Optimizer& optimizer) {
  return Trained(rules_workload(std::move(widths), batch_size, activation, loss, optimizer), 1 << 14);
}
Trained adam_network() {
  return network({20, 24, 10}, 8, Activation::kTanh, Loss::kMeanSquaredError,
                 {.kind = Optimizer::Kind::kAdam});
}

class CublasltTrainer : public testing::TestWithParam<Precision> {
 protected:
  void SetUp() override { HEADROOM_NEEDS_CUBLASLT(); }
};
INSTANTIATE_TEST_SUITE_P(, CublasltTrainer, testing::ValuesIn(kAllPrecisions),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

TEST_P(CublasltTrainer, EveryPlanUpdatesAsTheReference) {
  const Trained trained({784, 128, 128, 128, 10}, 32);
  for (const bool masks_in_product : {false, true})
    for (const int side_streams : {0, 1, 2}) {
      SCOPED_TRACE("side streams " + std::to_string(side_streams) + ", masks " +
                   std::to_string(masks_in_product));
      try {
        check_updates(trained, GetParam(), CublasltPlan{side_streams, masks_in_product}, {0, 1, 7});
      } catch (const UnsupportedError& error) {
        EXPECT_THAT(error.what(), HasSubstr("ReLU's mask"));
      }
    }
}
TEST_P(CublasltTrainer, TheSeedNetworkUpdatesAsTheReference) {
  check_updates(Trained({784, 128, 128, 128, 10}, 32), GetParam(), {}, {0, 1, 7, 29, 71, 131, 211, 299});
}
TEST_P(CublasltTrainer, OddWidthsUpdateAsTheReference) {
  check_updates(Trained({33, 7}, 31), GetParam(), {}, {0, 1, 7});
  check_updates(Trained({7, 33, 5}, 1), GetParam(), {}, {0, 1, 7});
  check_updates(Trained({50, 65, 7, 12}, 32), GetParam(), {}, {0, 1, 7});
}
TEST_P(CublasltTrainer, LargeBatchesThatStayWhereTheyAreUpdateAsTheReference) {
  const Trained trained({2048, 64, 10}, 1024, std::int64_t{24} << 20);  // 4 MB or 8 a batch
  EXPECT_THAT(trained.trainer(GetParam())->note(), HasSubstr("a graph for each batch"));
  check_updates(trained, GetParam(), {}, {0, 1, 7});
}

TEST_P(CublasltTrainer, EveryActivationLossAndOptimizerUpdatesAsTheReference) {
  const std::pair<std::vector<int>, int> shapes[] = {
      {{17, 33, 5, 3}, 7}, {{17, 33, 5, 1}, 7}, {{5, 9, 2}, 1}};
  // The bounds of a library's tf32 are for real networks, with one combination after another.
  const bool exact = GetParam() != Precision::kTf32;
  std::size_t turn = 0;
  for (const Activation activation : kAllActivations)
    for (const Loss loss : kAllLosses)
      for (const Optimizer& optimizer : all_optimizers()) {
        const auto& [widths, batch_size] = shapes[turn++ % std::size(shapes)];
        if (exact)
          check_updates(network(widths, batch_size, activation, loss, optimizer), GetParam(),
                        CublasltPlan{2, false}, {0, 1, 7});
        else if (turn % 4 == static_cast<std::size_t>(activation) % 4)
          check_updates(network({784, 128, 128, 10}, 32, activation, loss, optimizer), GetParam(),
                        CublasltPlan{2, false}, {0, 1, 7});
      }
}
TEST_P(CublasltTrainer, EverySideStreamPlanUpdatesSlotsAsTheReference) {
  for (const int side_streams : {0, 1, 2})
    for (const Activation activation : {Activation::kRelu, Activation::kGelu})
      check_updates(network({784, 128, 128, 10}, 32, activation, Loss::kMeanSquaredError,
                            {.kind = Optimizer::Kind::kAdam}),
                    GetParam(), CublasltPlan{side_streams, false}, {0, 1, 7});
}
TEST_P(CublasltTrainer, ALargeBatchWithSlotsUpdatesAsTheReference) {
  check_updates(network({784, 64, 12}, 2048, Activation::kElu, Loss::kMeanSquaredError,
                        {.kind = Optimizer::Kind::kAdamW}),
                GetParam(), {}, {0, 1, 7});
}

TEST_P(CublasltTrainer, SlotsComeBackAsTheyWereSet) {
  const Trained trained = adam_network();
  auto trainer = trained.trainer(GetParam());
  const std::vector<int>& widths = trained.workload.model.widths;
  const std::vector<Parameters> slots = {initial_parameters(widths, trained.workload.seed + 1),
                                         initial_parameters(widths, trained.workload.seed + 2)};
  const std::vector<Parameters> at_first = trainer->slots();
  ASSERT_EQ(at_first.size(), 2u);
  for (const Parameters& slot : at_first)
    for (const float value : slot.flat()) ASSERT_EQ(value, 0);
  trainer->set_slots(slots);
  const std::vector<Parameters> found = trainer->slots();
  for (const std::size_t slot : {0u, 1u})
    EXPECT_TRUE(std::ranges::equal(slots[slot].flat(), found[slot].flat()));
  EXPECT_THROW(trainer->set_slots({slots[0]}), InputError);
}

TEST_P(CublasltTrainer, AnySplitOfTheStepsTrainsTheSame) {
  for (const Trained& trained : {Trained({20, 24, 10}, 8), adam_network()}) {
    auto trainer = trained.trainer(GetParam());
    trainer->train(0, 60);
    const std::vector<float> whole = trainer->losses(0, 60);
    trainer->set_state(State::initial(trained.initial, trained.workload.optimizer.slots()));
    for (const auto& [first, count] : {std::pair{0, 1}, {1, 7}, {8, 33}, {41, 0}, {41, 3}, {44, 16}})
      trainer->train(first, count);
    const std::vector<float> pieces = trainer->losses(0, 60);
    for (std::size_t step = 0; step < whole.size(); ++step)
      EXPECT_NEAR(whole[step], pieces[step], 1e-4)
          << "step " << step << ", " << trained.workload.name << " seed " << trained.workload.seed;
  }
}

TEST_P(CublasltTrainer, StepNumbersChooseTheBatch) {
  const Trained trained({20, 24, 10}, 8);
  const std::int64_t batches = trained.data.train().batches(8);
  auto trainer = trained.trainer(GetParam());
  for (const std::int64_t step :
       {std::int64_t{0}, batches - 1, batches, 3 * batches + 5, std::int64_t{1} << 40}) {
    trainer->set_parameters(trained.initial);
    trainer->train(step, 1);
    auto oracle =
        make_oracle_trainer(trained.workload, GetParam(), true, trained.data.train(), trained.initial);
    oracle->train(step, 1);
    EXPECT_NEAR(trainer->losses(step, 1)[0], oracle->losses(step, 1)[0], 1e-2) << "step " << step;
  }
}

TEST_P(CublasltTrainer, ANonFiniteWeightIsSeenInTheLoss) {
  const Trained trained({20, 24, 10}, 8);
  expect_a_non_finite_weight_in_the_loss(*trained.trainer(GetParam()), trained);
}

TEST_P(CublasltTrainer, ANaNComesOutAsNaNLosses) {
  for (const char* name : {"mlp-33x7-b31", "mlp-20x24x33x10-b8", "mlp-20x24x33x5-b8-elu-mse-adam"}) {
    NotFiniteProblem problem(name);
    expect_nans_in_the_losses(problem, GetParam(), NaNPlaces::kFew, [&] {
      return make_cublaslt_trainer(problem.workload, GetParam(), problem.dataset.train(), problem.initial, 0,
                                   CublasltPlan{2, false});
    });
  }
}

TEST_P(CublasltTrainer, MemoryIsCountedAndGivenBack) {
  const Trained trained({20, 24, 10}, 8);
  expect_memory_counted_and_given_back([&] { return trained.trainer(GetParam()); });
}

}  // namespace
}  // namespace headroom
