#include "fused/compiled.h"

#include "core/error.h"
#include "device/device.h"
#include "fused/kernels.h"
#include "fused/trainer.h"
#include "narrow/compiled.h"

namespace headroom {
namespace {

using namespace fused;

bool is_plain(const Plan& plan) {
  return plan.loss == static_cast<std::int32_t>(Loss::kCrossEntropy) && plan.slots == 0;
}

/// Whether this workload is one for the kernel of narrow/.
bool goes_to_narrow(const Workload& workload, Precision precision, const Limits& limits) {
  const bool trained =
      beyond_plain_training(workload).empty() || pipeline_trains_rules(workload, precision, limits);
  return !trained || fused_refusal(workload, precision, limits).has_value();
}

}  // namespace

namespace fused {

PlanAs plan_as(const Plan& plan) {
  switch (plan.form) {
    case Form::kWarps:  // 3 % faster
      return PlanAs::kConstants;
    case Form::
        kGeneral:  // its loops over layers have a known end: 3 to 12 % at 64 units, nothing or 2 % slower at 128
      return plan.width < 128 ? PlanAs::kConstants : PlanAs::kArgument;
    case Form::kPipeline:  // as fast; with targets the kernel is made for one plan
      return is_plain(plan) ? PlanAs::kArgument : PlanAs::kConstants;
    case Form::kApart:
    case Form::kCluster:
    case Form::kPair:  // depth and tiles are constants already: as fast
      return PlanAs::kArgument;
  }
  throw std::logic_error("plan_as: not a Form");
}

jit::Request compiled_request(const Plan& plan, Precision precision, PlanAs as) {
  const std::string format =
      precision == Precision::kBf16 ? "headroom::fused::Bf16" : "headroom::fused::Fp16";
  const std::string hidden = std::to_string(plan.hidden);
  const bool is_general = plan.form == Form::kGeneral;
  jit::Request request;
  const auto take = [&](const std::string& header, const std::string& kernel, const std::string& arguments) {
    request.headers = {"machine/formats.cuh", "fused/" + header};
    request.kernel = "headroom::fused::" + kernel + "<" + format + arguments + ">";
    request.name = "cuda-fused " + kernel + arguments + ", " + std::string(to_string(precision));
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
  if (is_plain(plan)) request.constants.emplace_back("FUSED_PLAIN", "1");
  if (as == PlanAs::kConstants) {
    request.constants.emplace_back("FUSED_PLAN", jit::as_words(plan));
    request.name += ", " + hidden + " hidden layers, batch " + std::to_string(plan.batch);
  }
  request.argument_type =
      is_general ? "headroom::fused::ChainArguments" : "headroom::fused::PipelineArguments";
  request.argument_bytes = is_general ? sizeof(ChainArguments) : sizeof(PipelineArguments);
  return request;
}

jit::Cubin compile_plan(const Plan& plan, Precision precision, const jit::Architecture& architecture,
                        const jit::Compiler* compiler, const jit::Cache& cache) {
  const auto compiled = [&](PlanAs as) {
    return jit::compile(compiled_request(plan, precision, as), architecture, compiler, cache);
  };
  if (plan_as(plan) == PlanAs::kConstants) try {
      return compiled(PlanAs::kConstants);
    } catch (const jit::CompileError&) {
      if (!is_plain(plan)) throw;
    } catch (const UnsupportedError&) {  // no compiler: perhaps the other one was kept
      if (!is_plain(plan)) throw;
    }
  return compiled(PlanAs::kArgument);
}

}  // namespace fused

std::unique_ptr<Trainer> make_compiled_fused_trainer(const Workload& workload, Precision precision,
                                                     const DatasetView& data, const Parameters& initial,
                                                     int device, const std::string& cache_folder) {
  validate(workload);
  if (const auto reason = fused_unavailable(device)) throw UnsupportedError("cuda-fused: " + *reason);
  const narrow::Limits limits = narrow::limits_of(device);
  if (goes_to_narrow(workload, precision, {limits.sm_count, limits.shared_bytes}))
    return make_compiled_narrow_trainer(workload, precision, data, initial, device, jit::found_compiler(),
                                        jit::cubins_in(cache_folder));
  return make_fused_trainer(workload, precision, data, initial, device, [&](const Plan& plan) {
    const DeviceInfo info = device_info(device);
    return jit::ready(compile_plan(plan, precision,
                                   {.major = info.compute_major, .minor = info.compute_minor},
                                   jit::found_compiler(), jit::cubins_in(cache_folder)));
  });
}

jit::Cubin compile_fused(const Workload& workload, Precision precision, const Limits& limits,
                         const std::string& cache_folder) {
  validate(workload);
  if (goes_to_narrow(workload, precision, limits))
    return compile_narrow(workload, precision, {limits.sm_count, limits.shared_bytes}, jit::found_compiler(),
                          jit::cubins_in(cache_folder));
  return compile_plan(make_plan(workload, precision, limits), precision, {}, jit::found_compiler(),
                      jit::cubins_in(cache_folder));
}

}  // namespace headroom
