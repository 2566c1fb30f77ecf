#include "tiled/compiled.h"

#include <algorithm>

#include "core/error.h"
#include "device/device.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "tiled/arguments.h"
#include "tiled/schedule.h"

namespace headroom {
namespace {

using namespace tiled;

std::string ours(const std::string& name) { return "headroom::tiled::" + name; }
std::string number(std::int64_t value) { return std::to_string(value); }
std::string word(bool value) { return value ? "true" : "false"; }
template <class Enumeration>
std::string value_of(const std::string& type, Enumeration value) {
  return "static_cast<headroom::" + type + ">(" + number(static_cast<int>(value)) + ")";
}

std::string format_of(const KernelShape& shape) {
  switch (shape.precision) {
    case Precision::kFp32:
      return ours("PortableFp32");
    case Precision::kTf32:
      return shape.tiling.portable ? ours("PortableTf32") : ours("Tf32");
    case Precision::kFp16:
      return shape.tiling.portable ? ours("PortableFp16") : "headroom::machine::Fp16";
    case Precision::kBf16:
      return shape.tiling.portable ? ours("PortableBf16") : "headroom::machine::Bf16";
  }
  throw std::logic_error("cuda-tiled: not a Precision");
}
/// As the constants of a template, in the order of their fields.
std::string text_of(const Tiling& tiling) {
  return ours("Tiling{") + number(tiling.groups) + ", " + number(tiling.columns) + ", " +
         number(tiling.teams) + ", " + number(tiling.group_rows) + ", " + number(tiling.own_weight_rows) +
         ", " + number(tiling.own_weight_columns) + ", " + word(tiling.portable) + ", " +
         number(tiling.slabs_of_stage) + ", " + number(tiling.slab) + "}";
}
std::string text_of(const KernelRules& rules) {
  return ours("KernelRules{") + value_of("Activation", rules.activation) + ", " +
         value_of("Loss", rules.loss) + ", " + number(rules.slots) + ", " + number(rules.forms) + "u, " +
         word(rules.whole_tiles) + ", " + word(rules.timed) + ", " + word(rules.ranked) + "}";
}

/// Bytes of a thread that may lie in local memory: of the wgmma kernel a few, which a task reads once; in the portable one fp32 and tf32 keep
/// addresses there, beside their loops. One of several ranks keeps a few more words.
constexpr int kLocalBytes = 128, kRankedLocalBytes = 256, kPortableLocalBytes = 4096;

jit::Cubin compiled(const jit::Request& request, const jit::Architecture& architecture,
                    const std::string& cache_folder) {
  return jit::compile(request, architecture, jit::found_compiler(), jit::cubins_in(cache_folder));
}

MakeKernel compiler_for(int device, const std::string& cache_folder) {
  return [device, cache_folder](const KernelShape& shape) {
    const DeviceInfo info = device_info(device);
    return jit::ready(compiled(compiled_request(shape),
                               {.major = info.compute_major, .minor = info.compute_minor}, cache_folder));
  };
}

}  // namespace

namespace tiled {

jit::Request compiled_request(const KernelShape& shape) {
  const bool portable = shape.tiling.portable;
  jit::Request request;
  request.headers = {portable ? "tiled/portable.cuh" : "tiled/step.cuh"};
  request.kernel = ours(portable ? "train_portable_kernel<" : "train_kernel<") + text_of(shape.tiling) +
                   ", " + format_of(shape) + ", " + text_of(shape.rules) + ">";
  request.name = "cuda-tiled " + std::string(portable ? "portable, " : "") +
                 std::string(to_string(shape.precision)) + ", tiles of " + number(shape.tiling.rows()) + "x" +
                 number(shape.tiling.columns) + ", " + std::string(to_string(shape.rules.activation)) + ", " +
                 std::string(to_string(shape.rules.loss)) + ", " + number(shape.rules.slots) +
                 (shape.rules.slots == 1 ? " slot" : " slots") + (shape.rules.ranked ? ", ranks" : "");
  request.argument_type = ours("Arguments");
  request.argument_bytes = sizeof(Arguments);
  // Of quotients and roots: exact ones are most of Adam's update; these are good to two units in the last place.
  request.options = {"--prec-div=false", "--prec-sqrt=false"};
  request.most_local_bytes = portable             ? kPortableLocalBytes
                             : shape.rules.ranked ? kRankedLocalBytes
                                                  : kLocalBytes;
  return request;
}

}  // namespace tiled

std::unique_ptr<TiledTrainer> make_compiled_tiled_trainer(const Workload& workload, Precision precision,
                                                          const DatasetView& data, const Parameters& initial,
                                                          int device, const std::string& cache_folder,
                                                          const TiledOptions& options) {
  return make_tiled_trainer(workload, precision, data, initial, device, options,
                            compiler_for(device, cache_folder));
}
std::unique_ptr<Trainer> make_compiled_tiled_trainer(const Workload& workload, Precision precision,
                                                     const DatasetView& data, const Parameters& initial,
                                                     const std::vector<int>& devices,
                                                     const std::string& cache_folder,
                                                     const TiledOptions& options) {
  return make_tiled_trainer(workload, precision, data, initial, devices, options,
                            compiler_for(devices.empty() ? 0 : devices.front(), cache_folder));
}

jit::Request tiled_request(const Workload& workload, Precision precision, const TiledTarget& target,
                           const TiledOptions& options) {
  validate(workload);
  const auto [major, minor] = target.architecture;
  if (const auto reason = tiled_too_old(major, minor)) throw UnsupportedError("cuda-tiled: " + *reason);
  const int multiprocessors =
      options.multiprocessors > 0 ? std::min(options.multiprocessors, target.sm_count) : target.sm_count;
  const bool portable = tiled_takes_portable(workload, precision, major, minor, multiprocessors, options);
  StepPlan plan =
      plan_step(workload, precision, portable, multiprocessors, options.tiling, options.slabs_of_part);
  plan.kernel.rules.timed = options.timed;
  return compiled_request(plan.kernel);
}

jit::Cubin compile_tiled(const Workload& workload, Precision precision, const TiledTarget& target,
                         const std::string& cache_folder, const TiledOptions& options) {
  return compiled(tiled_request(workload, precision, target, options), target.architecture, cache_folder);
}

}  // namespace headroom
