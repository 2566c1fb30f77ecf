#include "fused/compiled/compiled.h"

#include <utility>

#include "core/error.h"
#include "device/device.h"
#include "fused/trainer.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "narrow/compiled/compiled.h"

namespace headroom {
namespace {

using namespace fused;

class CompiledPlanKernel : public PlanKernel {
 public:
  CompiledPlanKernel(const Plan& plan, const Limits& limits, const jit::Cubin& cubin)
      : plan_(plan), shared_limit_(limits.shared_bytes), kernel_(cubin), was_kept_(cubin.was_kept) {
    note_ = jit::note_of(cubin);
    kernel_.allow_shared_bytes(launch_shape(plan, 1, shared_limit_).shared_bytes);
  }
  void launch(const ChainArguments& arguments, int workers, Stream& stream) const override {
    kernel_.launch(launch_shape(plan_, workers, shared_limit_), stream.get(), arguments);
  }
  void launch(const PipelineArguments& arguments, int workers, Stream& stream) const override {
    kernel_.launch(launch_shape(plan_, workers, shared_limit_), stream.get(), arguments);
  }
  bool was_kept() const override { return was_kept_; }
  std::string note() const override { return note_; }

 private:
  Plan plan_;
  int shared_limit_;
  jit::Kernel kernel_;
  bool was_kept_;
  std::string note_;
};

/// Whether this workload is one for the kernel of narrow/.
bool goes_to_narrow(const Workload& workload, Precision precision, const Limits& limits) {
  const bool trained =
      beyond_plain_training(workload).empty() || pipeline_trains_rules(workload, precision, limits);
  return !trained || fused_refusal(workload, precision, limits).has_value();
}

}  // namespace

namespace fused {

jit::Request compiled_request(const Plan& plan, Precision precision) {
  const std::string format =
      precision == Precision::kBf16 ? "headroom::fused::Bf16" : "headroom::fused::Fp16";
  const std::string hidden = std::to_string(plan.hidden);
  jit::Request request;
  const auto take = [&](const std::string& header, const std::string& kernel, const std::string& arguments) {
    request.headers = {"machine/formats.cuh", "fused/" + header};
    request.kernel = "headroom::fused::" + kernel + "<" + format + arguments + ">";
    request.name = "cuda-fused " + kernel + ", " + std::string(to_string(precision)) + ", " + hidden +
                   " hidden layers, batch " + std::to_string(plan.batch);
  };
  switch (plan.form) {
    case Form::kGeneral:
      take("chain.cuh", "chain_kernel",
           ", " + std::to_string(plan.width) + ", " + std::to_string(plan.class_rows));
      break;
    case Form::kWarps:
      take("warps.cuh", "warp_kernel", ", " + hidden);
      break;
    case Form::kPipeline:
      take("pipeline.cuh", "pipeline_kernel", ", " + hidden);
      break;
    case Form::kApart:
      take("apart.cuh", "apart_kernel", ", " + hidden);
      break;
    case Form::kCluster:
      take("cluster.cuh", "cluster_kernel", ", " + hidden);
      break;
    case Form::kPair:
      take("pair.cuh", "pair_kernel", "");
      break;
  }
  // With targets the last owner of four has a few registers too few.
  if (plan.loss != static_cast<std::int32_t>(Loss::kCrossEntropy)) request.most_local_bytes = 96;
  const bool is_general = plan.form == Form::kGeneral;
  request.constants = {{"FUSED_PLAN", jit::as_words(plan)}};
  request.argument_type =
      is_general ? "headroom::fused::ChainArguments" : "headroom::fused::PipelineArguments";
  request.argument_bytes = is_general ? sizeof(ChainArguments) : sizeof(PipelineArguments);
  return request;
}

}  // namespace fused

std::unique_ptr<Trainer> make_compiled_fused_trainer(const Workload& workload, Precision precision,
                                                     const DatasetView& data, const Parameters& initial,
                                                     int device, const std::string& cache_folder) {
  validate(workload);
  if (const auto reason = fused_unavailable(device))
    throw UnsupportedError("cuda-fused-compiled: " + *reason);
  const narrow::Limits device_limits = narrow::limits_of(device);
  if (goes_to_narrow(workload, precision, {device_limits.sm_count, device_limits.shared_bytes}))
    return make_compiled_narrow_trainer(workload, precision, data, initial, device, jit::found_compiler(),
                                        jit::cubins_in(cache_folder));
  const auto compile = [&](const Plan& plan, const Limits& limits) -> std::unique_ptr<PlanKernel> {
    const DeviceInfo info = device_info(device);
    const jit::Architecture architecture{.major = info.compute_major, .minor = info.compute_minor};
    return std::make_unique<CompiledPlanKernel>(
        plan, limits,
        jit::compile(compiled_request(plan, precision), architecture, jit::found_compiler(),
                     jit::cubins_in(cache_folder)));
  };
  return make_fused_trainer(workload, precision, data, initial, device, compile);
}

jit::Cubin compile_fused(const Workload& workload, Precision precision, const Limits& limits,
                         const std::string& cache_folder) {
  validate(workload);
  if (goes_to_narrow(workload, precision, limits))
    return compile_narrow(workload, precision, {limits.sm_count, limits.shared_bytes}, jit::found_compiler(),
                          jit::cubins_in(cache_folder));
  return jit::compile(compiled_request(make_plan(workload, precision, limits), precision), {},
                      jit::found_compiler(), jit::cubins_in(cache_folder));
}

}  // namespace headroom
