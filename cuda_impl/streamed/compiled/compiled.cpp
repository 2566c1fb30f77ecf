#include "streamed/compiled/compiled.h"

#include <algorithm>

#include "core/error.h"
#include "device/device.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "jit/kernel.h"
#include "streamed/arguments.h"

namespace headroom {
namespace {

using namespace streamed;

class CompiledSlotKernel : public SlotKernel {
 public:
  explicit CompiledSlotKernel(const jit::Cubin& cubin) : kernel_(cubin), was_kept_(cubin.was_kept) {
    note_ = jit::note_of(cubin);
  }
  const void* function() const override { return kernel_.handle(); }
  bool was_kept() const override { return was_kept_; }
  std::string note() const override { return note_; }

 private:
  jit::Kernel kernel_;
  bool was_kept_;
  std::string note_;
};

std::string format_of(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "Fp32";
    case Precision::kTf32:
      return "Tf32";
    case Precision::kFp16:
      return "Fp16";
    case Precision::kBf16:
      return "Bf16";
  }
  throw std::logic_error("format_of: not a Precision");
}
std::string name_of(SlotRule rule, Precision precision) {
  if (precision == Precision::kTf32 && rule != SlotRule::kMomentum) return "PlainAdam";
  switch (rule) {
    case SlotRule::kMomentum:
      return "Momentum";
    case SlotRule::kAdam:
      return "Adam";
    case SlotRule::kAdamW:
      return "AdamW";
  }
  throw std::logic_error("name_of: not a SlotRule");
}
/// The last of the arguments of WithSlots, left out where it is the usual one.
std::string loss_of(Loss loss) {
  switch (loss) {
    case Loss::kCrossEntropy:
      return "";
    case Loss::kMeanSquaredError:
      return ", headroom::Loss::kMeanSquaredError";
    case Loss::kBinaryCrossEntropy:
      return ", headroom::Loss::kBinaryCrossEntropy";
  }
  throw std::logic_error("loss_of: not a Loss");
}

}  // namespace

namespace streamed {

jit::Request compiled_request(const SlotKernelShape& shape) {
  const std::string rule = name_of(shape.rule, shape.precision);
  const std::string numbers =
      std::to_string(shape.groups == 1 ? 1 : kMostGroups) + ", " + std::to_string(shape.panels);
  jit::Request request;
  request.headers = {"streamed/step.cuh"};
  request.kernel = "headroom::streamed::streamed_steps<headroom::streamed::WithSlots<headroom::streamed::" +
                   format_of(shape.precision) + ", headroom::streamed::" + rule + ", " +
                   std::to_string(shape.told) + loss_of(shape.loss) + ">, " + numbers + ">";
  request.name = "cuda-streamed with " + rule + ", " + std::string(to_string(shape.precision)) +
                 std::string(", ") + std::string(to_string(shape.loss)) + ", groups and panels " + numbers +
                 ", L2 told " + std::to_string(shape.told);
  request.argument_type = "headroom::streamed::Arguments";
  request.argument_bytes = sizeof(Arguments);
  // Of quotients and roots: exact ones are most of Adam's update; these are good to two units in the last place.
  request.options = {"--prec-div=false", "--prec-sqrt=false"};
  // As for the kernels compiled ahead: at its usual level ptxas reorders fp32's multiply-adds.
  if (shape.precision == Precision::kFp32) request.options.push_back("--ptxas-options=-O1");
  // A batch of several groups of rows has more sums than there are registers, also in the kernels compiled ahead.
  request.most_local_bytes = shape.groups > 1 ? 1024 : 64;
  return request;
}

}  // namespace streamed

std::unique_ptr<Trainer> make_compiled_streamed_trainer(const Workload& workload, Precision precision,
                                                        const DatasetView& data, const Parameters& initial,
                                                        int device, const std::string& cache_folder,
                                                        const StreamedOptions& options) {
  if (const auto reason = streamed_unavailable(device))
    throw UnsupportedError("cuda-streamed-compiled: " + *reason);
  const DeviceInfo info = device_info(device);
  const jit::Architecture architecture{.major = info.compute_major, .minor = info.compute_minor};
  return make_streamed_trainer(
      workload, precision, data, initial, device, options,
      [&](const SlotKernelShape& shape) -> std::unique_ptr<SlotKernel> {
        return std::make_unique<CompiledSlotKernel>(jit::compile(
            compiled_request(shape), architecture, jit::found_compiler(), jit::cubins_in(cache_folder)));
      });
}

jit::Cubin compile_streamed(const Workload& workload, Precision precision, const Limits& limits,
                            const std::string& cache_folder, std::int64_t l2_bytes,
                            const StreamedOptions& options) {
  validate(workload);
  if (const auto reason = cannot_stream_slots(workload)) throw UnsupportedError(*reason);
  Limits members = limits;
  if (options.most_members > 0) members.sm_count = std::min(members.sm_count, options.most_members);
  int held = 0;
  SlotKernelShape shape =
      slot_kernel_shape(make_plan(workload, members), workload, precision, l2_bytes, held);
  if (options.told >= 0) shape.told = options.told;
  return jit::compile(compiled_request(shape), {}, jit::found_compiler(), jit::cubins_in(cache_folder));
}

}  // namespace headroom
