// Compiles the kernels that the tests of cuda-resident take, as many side by side as there are cores, into the folder that
// HEADROOM_TEST_CUBINS names: a run of all tests then compiles nothing. `compile_resident_kernels [WORDS]`: only those whose name has
// these words. Needs no GPU; the plans are those of an H200.
//
// Slices, blocks and patches with their plan as an argument are found by trying plans of many shapes, since networks share them.
#include <string>
#include <vector>

#include "column_kernels.h"
#include "compile_side_by_side.h"
#include "core/error.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "kept_kernels.h"
#include "resident/requests.h"
#include "step_time.h"

namespace headroom {
namespace {

using resident::PlanForm;
using Kernel = ResidentOptions::Kernel;
constexpr resident::Limits kH200{.sm_count = 132, .shared_bytes = 232448};

std::vector<Workload> shapes() {
  std::vector<Workload> result;
  for (const int layers : {2, 3, 4, 5})
    for (const int width : {8, 72, 136, 200, 256, 304, 512, 1024}) {
      std::string name = "mlp-196";
      for (int layer = 1; layer < layers; ++layer) name += "x" + std::to_string(width);
      result.push_back(parse_workload_name(name + "x10-b32"));
    }
  return result;
}

void add_with_arguments(NamedKernels& kernels) {
  const auto add = [&](Precision precision, const auto& make_plan) {
    try {
      const jit::Request request = request_of(make_plan(), precision, PlanForm::kArgument);
      kernels[request.kernel] = [=] {
        return jit::compile(request, {}, jit::found_compiler(), jit::cubins_in(folder_of_kept_kernels()));
      };
    } catch (const UnsupportedError&) {  // no such plan, or no kernel for it
    }
  };
  for (const Workload& workload : shapes())
    for (const Precision precision : kAllPrecisions) {
      for (const auto form : {resident::Form::kCluster, resident::Form::kGrid})
        for (const int team : {1, 2, 3, 4})
          for (const int own : {1, 2})
            for (const int gram_teams : {0, resident::kGramTeams})
              add(precision, [&] {
                return resident::make_slice_plan(workload, precision, form, kH200, team, own, gram_teams);
              });
      add(precision, [&] { return resident::make_block_plan(workload, precision, kH200); });
      add(precision, [&] { return resident::make_patch_plan(workload, precision, kH200); });
    }
}

void add_with_constants(NamedKernels& kernels) {
  const auto add = [&](const char* name, Precision precision, Kernel kernel) {
    const ResidentOptions options{.kernel = kernel, .plan_form = PlanForm::kConstants};
    const char* const divided = kernel == Kernel::kColumns ? "columns " : "slices ";
    kernels[divided + std::string(name) + " " + std::string(to_string(precision))] = [=] {
      return compile_resident(parse_workload_name(name), precision, kH200, folder_of_kept_kernels(), options);
    };
  };
  for (const Cell& cell : kFormCells) add(cell.name, cell.precision, Kernel::kSlices);
  for (const Cell& cell : kDepthCells) add(cell.name, cell.precision, Kernel::kSlices);
  const auto add_columns = [&](const auto& names, Precision precision) {
    for (const char* name : names) add(name, precision, Kernel::kColumns);
  };
  for (const Precision precision : {Precision::kFp16, Precision::kBf16}) {
    add_columns(kSmallColumns, precision);
    add_columns(kColumns, precision);
    add_columns(kSmallColumnsWithSlots, precision);
    add_columns(kColumnsWithSlots, precision);
    add_columns(kSmallColumnsWithRules, precision);
    add_columns(kColumnsWithRules, precision);
    add_columns(kSmallHalves, precision);
    add_columns(kHalves, precision);
  }
  add_columns(kDeepColumns, Precision::kBf16);
  for (const Precision precision : {Precision::kFp16, Precision::kBf16}) {
    add_columns(kSmallRanks, precision);
    add_columns(kRanks, precision);
  }
  for (const Cell& cell : kSmallSliceRanks) add(cell.name, cell.precision, Kernel::kSlices);
  for (const Cell& cell : kSliceRanks) add(cell.name, cell.precision, Kernel::kSlices);
  for (const auto* cases : {&kSmallSlots, &kSlots})
    for (const SlotCase& of : *cases)
      for (const Precision precision : of.precisions) add(of.name, precision, Kernel::kSlices);
}

int compile_all(int argc, char** argv) {
  NamedKernels all;
  add_with_arguments(all);
  add_with_constants(all);
  return compile_side_by_side(all, argc < 2 ? "" : argv[1]);
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  return headroom::run_program("compile_resident_kernels", [&] { return headroom::compile_all(argc, argv); });
}
