#include "streamed/compiled.h"

#include <algorithm>

#include "core/error.h"
#include "device/device.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "streamed/arguments.h"

namespace headroom {
namespace streamed {

jit::Request compiled_request(const KernelShape& shape) {
  jit::Request request;
  request.headers = {"streamed/step.cuh"};
  request.kernel = kernel_name(shape);
  request.name = "cuda-streamed " + short_name(shape);
  request.argument_type = "headroom::streamed::Arguments";
  request.argument_bytes = sizeof(Arguments);
  // Of quotients and roots: exact ones are most of Adam's update; these are good to two units in the last place.
  if (shape.rule) request.options = {"--prec-div=false", "--prec-sqrt=false"};
  // At its usual level ptxas reorders fp32's multiply-adds until neighbours share no operand: a tenth slower
  // (docs/kernels/log/streamed.md).
  if (shape.precision == Precision::kFp32) request.options.push_back("--ptxas-options=-O1");
  // A batch of several groups of rows has more sums than there are registers. Of one group tf32 keeps up to 64 bytes of an H200's thread in local memory,
  // with slots others too (docs/kernels/log/streamed.md); newer GPUs may keep more.
  request.most_local_bytes = shape.groups > 1 ? 1024 : 512;
  return request;
}

}  // namespace streamed

using namespace streamed;

std::unique_ptr<Trainer> make_compiled_streamed_trainer(const Workload& workload, Precision precision,
                                                        const DatasetView& data, const Parameters& initial,
                                                        int device, const std::string& cache_folder,
                                                        const StreamedOptions& options) {
  return make_streamed_trainer(
      workload, precision, data, initial, device, options, [&](const KernelShape& shape) {
        const DeviceInfo info = device_info(device);
        return jit::ready(jit::compile(compiled_request(shape),
                                       {.major = info.compute_major, .minor = info.compute_minor},
                                       jit::found_compiler(), jit::cubins_in(cache_folder)));
      });
}

jit::Cubin compile_streamed(const Workload& workload, Precision precision, const Limits& limits,
                            const std::string& cache_folder, std::int64_t l2_bytes,
                            const StreamedOptions& options) {
  validate(workload);
  Limits members = limits;
  if (options.most_members > 0) members.sm_count = std::min(members.sm_count, options.most_members);
  KernelShape shape = plan_with_kernel(workload, precision, members, l2_bytes, options.hold).kernel;
  if (shape.rule && options.told >= 0) shape.told = options.told;
  return jit::compile(compiled_request(shape), {}, jit::found_compiler(), jit::cubins_in(cache_folder));
}

}  // namespace headroom
