// cuda-resident with its kernel compiled for the network. Requests are compiled without a GPU too.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "column_kernels.h"
#include "kept_resident_trainer.h"
#include "not_finite.h"
#include "resident/column_plan.h"
#include "step_check.h"

namespace headroom {
namespace {

#define NEEDS_GPU() \
  if (const auto reason = resident_unavailable(0)) GTEST_SKIP() << *reason

using Kernel = ResidentOptions::Kernel;
constexpr resident::Limits kH200{.sm_count = 132, .shared_bytes = 232448};

struct Cell {
  const char* name;
  Precision precision;
};
/// Each kernel of slices once, then depths that have none ahead.
const std::vector<Cell> kSlices = {{"mlp-784x128x128x128x10-b32", Precision::kBf16},
                                   {"mlp-784x256x256x256x10-b32", Precision::kFp16},
                                   {"mlp-784x512x512x512x10-b32", Precision::kBf16},
                                   {"mlp-784x1024x1024x1024x10-b32", Precision::kBf16},
                                   {"mlp-784x128x128x128x10-b32", Precision::kTf32},
                                   {"mlp-784x256x256x256x10-b32", Precision::kTf32},
                                   {"mlp-784x1024x1024x1024x10-b32", Precision::kTf32},
                                   {"mlp-784x128x128x128x10-b32", Precision::kFp32},
                                   {"mlp-784x256x256x256x256x10-b32", Precision::kFp32},
                                   {"mlp-784x128x128x128x128x10-b32", Precision::kTf32},
                                   {"mlp-784x512x512x512x512x10-b32", Precision::kFp16}};

TEST(CompiledResident, SmallNetworksOfSlicesTrainWithTheBitsOfTheKernelCompiledAhead) {
  NEEDS_GPU();
  for (const auto& [name, precision] : kSlices) {
    NamedProblem problem(name, fresh_seed());
    if (problem.workload.layers() != 4) continue;  // unrolled, sums are made in another order
    const auto trained = [&](Trainer& trainer) {
      trainer.train(0, 20);
      const Parameters end = trainer.parameters();
      std::vector<float> values(end.flat().begin(), end.flat().end());
      for (const float loss : trainer.losses(0, 20)) values.push_back(loss);
      return values;
    };
    const ResidentOptions options{.kernel = Kernel::kSlices};
    const auto ahead = make_resident_trainer(problem.workload, precision, problem.dataset.train(),
                                             problem.initial, 0, options);
    const auto compiled =
        make_compiled_resident_trainer(problem.workload, precision, problem.dataset.train(), problem.initial,
                                       0, folder_of_kept_kernels(), options);
    EXPECT_EQ(trained(*compiled), trained(*ahead))
        << problem.described(precision) << ", " << compiled->note();
  }
}
TEST(CompiledResident, SlicesOfOtherDepthsMatchTheOracle) {
  NEEDS_GPU();
  for (const auto& [name, precision] : {Cell{"mlp-784x128x128x128x128x10-b32", Precision::kTf32},
                                        {"mlp-33x72x17x7x9x5-b17", Precision::kTf32},
                                        {"mlp-784x512x512x512x512x10-b32", Precision::kFp16},
                                        {"mlp-784x256x256x256x256x256x256x10-b32", Precision::kFp32}}) {
    NamedProblem problem(name, fresh_seed());
    const auto trainer =
        make_compiled_resident_trainer(problem.workload, precision, problem.dataset.train(), problem.initial,
                                       0, folder_of_kept_kernels(), {.kernel = Kernel::kSlices});
    check_against_oracle(problem, precision, *trainer, {0, 1, 7, 29, 71}, 3);
  }
}

TEST(CompiledResident, ANaNComesOutOfSlicesAsNaNLosses) {
  NEEDS_GPU();
  for (const auto& [name, precision] : {Cell{"mlp-33x72x17x7x9x5-b17", Precision::kTf32},
                                        {"mlp-33x72x17x7x9x5-b17", Precision::kFp32},
                                        {"mlp-784x512x512x512x512x10-b32", Precision::kFp16}}) {
    NotFiniteProblem problem(name);
    expect_nans_in_the_losses(problem, precision, NaNPlaces::kFew, [&] {
      return make_compiled_resident_trainer(problem.workload, precision, problem.dataset.train(),
                                            problem.initial, 0, folder_of_kept_kernels(),
                                            {.kernel = Kernel::kSlices});
    });
  }
}

/// All of them only where they are to be kept: it takes a minute.
TEST(CompiledResident, RequestsCompileWithoutAGpu) {
  const std::string folder = folder_of_kept_kernels();
  std::vector<std::pair<Cell, Kernel>> cells;
  for (const char* name : {"mlp-784x256x10-b32", "mlp-784x256x256x256x256x10-b32"})
    cells.push_back({{name, Precision::kBf16}, Kernel::kColumns});
  cells.push_back({{"mlp-33x24x17x120x9x5-b17", Precision::kFp16}, Kernel::kColumns});
  cells.push_back({{"mlp-784x256x256x256x10-b64", Precision::kBf16}, Kernel::kColumns});
  cells.push_back({kSlices.front(), Kernel::kSlices});
  cells.push_back({{"mlp-784x128x128x128x10-b32-adam", Precision::kBf16}, Kernel::kColumns});
  cells.push_back({{"mlp-784x128x128x128x10-b32-adam", Precision::kFp32}, Kernel::kSlices});
  if (!folder.empty()) {
    for (const Cell& cell : kSlices) cells.push_back({cell, Kernel::kSlices});
    for (const Precision precision : {Precision::kFp16, Precision::kBf16}) {
      for (const char* name : kSmallColumns) cells.push_back({{name, precision}, Kernel::kColumns});
      for (const char* name : kColumns) cells.push_back({{name, precision}, Kernel::kColumns});
    }
    for (const char* name : kDeepColumns) cells.push_back({{name, Precision::kBf16}, Kernel::kColumns});
    for (const Precision precision : {Precision::kFp16, Precision::kBf16}) {
      for (const char* name : kSmallColumnsWithSlots) cells.push_back({{name, precision}, Kernel::kColumns});
      for (const char* name : kColumnsWithSlots) cells.push_back({{name, precision}, Kernel::kColumns});
      for (const char* name : kSmallColumnsWithRules) cells.push_back({{name, precision}, Kernel::kColumns});
      for (const char* name : kColumnsWithRules) cells.push_back({{name, precision}, Kernel::kColumns});
      for (const char* name : kSmallHalves) cells.push_back({{name, precision}, Kernel::kColumns});
      for (const char* name : kHalves) cells.push_back({{name, precision}, Kernel::kColumns});
    }
    for (const auto* cases : {&kSmallSlots, &kSlots})
      for (const SlotCase& of : *cases)
        for (const Precision precision : of.precisions)
          cells.push_back({{of.name, precision}, Kernel::kSlices});
  }
  for (const auto& [cell, kernel] : cells) try {
      EXPECT_GT(
          compile_resident(parse_workload_name(cell.name), cell.precision, kH200, folder, {.kernel = kernel})
              .registers,
          0)
          << cell.name;
    } catch (const jit::CompileError& error) {
      // Of slices without slots those that spill are taken as they were compiled ahead.
      EXPECT_EQ(kernel, Kernel::kSlices) << error.what();
      EXPECT_EQ(parse_workload_name(cell.name).optimizer.slots(), 0) << error.what();
      EXPECT_NE(std::string(error.what()).find("local memory"), std::string::npos) << error.what();
    } catch (const UnsupportedError& error) {
      GTEST_SKIP() << error.what();
    }
}

}  // namespace
}  // namespace headroom
