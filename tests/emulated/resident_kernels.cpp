// The kernels of cuda-resident that tests have in place of a compiler, and how one is called.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernel_instance.h"
#include "resident/block_arguments.h"
#include "resident/column_peers.h"
#include "resident/patch_arguments.h"
#include "resident/requests.h"
#include "resident/slice_arguments.h"
#include "resident/slice_ranks.h"
#include "resident/slice_slots.h"
#include "resident_test_trainer.h"
#include "runtime.h"

namespace headroom::emulated {
namespace {

/// All kernels of cuda-resident have one parameter, a struct passed by value; the trainer holds them in a variant, so that as
/// many bytes as the largest has can be read. By the x86-64 ABI such a parameter lies on the stack, where a kernel looks at
/// the first bytes of this one.
struct AnyArguments {
  alignas(16) unsigned char bytes[std::max(
      {sizeof(resident::SliceArguments), sizeof(resident::PatchArguments), sizeof(resident::BlockArguments),
       sizeof(resident::ColumnArguments), sizeof(resident::SlotArguments), sizeof(resident::RankArguments),
       sizeof(resident::SliceRankArguments)})];
};
static_assert(alignof(resident::ColumnArguments) <= 16);
static_assert(alignof(resident::SliceArguments) <= 16 && alignof(resident::PatchArguments) <= 16 &&
              alignof(resident::BlockArguments) <= 16);

/// The name in a request, without namespaces.
std::string short_name(std::string name) {
  constexpr std::string_view kOurs = "headroom::resident::";
  for (std::size_t at; (at = name.find(kOurs)) != name.npos;) name.erase(at, kOurs.size());
  return name;
}

class Maker : public resident::KernelMaker {
 public:
  resident::PlanKernel make(const resident::AnyPlan& plan, Precision precision) const override {
    const std::string name = short_name(request_of(plan, precision, resident::PlanForm::kArgument).kernel);
    for (const auto& instances : {fp32_instances(), tf32_instances(), fp16_instances(), bf16_instances(),
                                  column_instances(), column_rules_instances(), column_halves_instances(),
                                  column_ranks_instances(), slot_instances(), slice_ranks_instances()})
      for (const KernelInstance& instance : instances)
        if (instance.name == name)
          return {{.function = instance.function,
                   .was_kept = false,
                   .note = "its kernel is an instance of the tests",
                   .code = {}},
                  threads_of(plan, precision)};
    throw std::logic_error("tests/emulated has no instance of " + name);
  }
};

}  // namespace

const resident::KernelMaker& resident_kernels() {
  static const Maker maker;
  return maker;
}

std::function<void()> call_of(const void* kernel, const void* argument) {
  return call_with<AnyArguments>(kernel, argument);
}

}  // namespace headroom::emulated
