// A kernel that is compiled when it is set up, as one of the instances that tests have.
#pragma once

#include <span>
#include <string_view>

namespace headroom::emulated {

struct KernelInstance {
  std::string_view name;  ///< as a request has it, but for the namespace before each name
  const void* function;
};
/// In namespace headroom::resident: KERNEL_INSTANCE(slice_steps<SliceWholeMember<SliceFp16>>).
#define KERNEL_INSTANCE(...) \
  ::headroom::emulated::KernelInstance { #__VA_ARGS__, reinterpret_cast<const void*>(&__VA_ARGS__) }

std::span<const KernelInstance> fp32_instances();
std::span<const KernelInstance> tf32_instances();
std::span<const KernelInstance> fp16_instances();
std::span<const KernelInstance> bf16_instances();
std::span<const KernelInstance> column_instances();
std::span<const KernelInstance> column_rules_instances();
std::span<const KernelInstance> column_halves_instances();
std::span<const KernelInstance> column_ranks_instances();
std::span<const KernelInstance> slot_instances();
std::span<const KernelInstance> slice_ranks_instances();

}  // namespace headroom::emulated
