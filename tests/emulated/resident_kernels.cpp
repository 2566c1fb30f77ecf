#include <algorithm>

#include "resident/block_arguments.h"
#include "resident/column_arguments.h"
#include "resident/patch_arguments.h"
#include "resident/slice_arguments.h"
#include "resident/slice_slots.h"
#include "runtime.h"

namespace headroom::emulated {
namespace {

/// All kernels of cuda-resident have one parameter, a struct passed by value; the trainer holds them in a variant, so that as
/// many bytes as the largest has can be read. By the x86-64 ABI such a parameter lies on the stack, where a kernel looks at
/// the first bytes of this one.
struct AnyArguments {
  alignas(16) unsigned char bytes[std::max(
      {sizeof(resident::SliceArguments), sizeof(resident::PatchArguments), sizeof(resident::BlockArguments),
       sizeof(resident::ColumnArguments), sizeof(resident::SlotArguments)})];
};
static_assert(alignof(resident::ColumnArguments) <= 16);
static_assert(alignof(resident::SliceArguments) <= 16 && alignof(resident::PatchArguments) <= 16 &&
              alignof(resident::BlockArguments) <= 16);

}  // namespace

std::function<void()> call_of(const void* kernel, const void* argument) {
  return call_with<AnyArguments>(kernel, argument);
}

}  // namespace headroom::emulated
