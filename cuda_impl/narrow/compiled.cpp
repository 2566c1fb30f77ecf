#include "narrow/compiled.h"

#include <utility>

#include "core/error.h"
#include "device/device.h"
#include "jit/kernel.h"

namespace headroom {
namespace {

using namespace narrow;

// A plan has rules by their numbers, and jit/standard/core/workload.h names these for the kernel.
static_assert(static_cast<int>(Precision::kFp32) == 0 && static_cast<int>(Precision::kTf32) == 1 &&
              static_cast<int>(Precision::kFp16) == 2 && static_cast<int>(Precision::kBf16) == 3);
static_assert(static_cast<int>(Activation::kRelu) == 0 && static_cast<int>(Activation::kTanh) == 1 &&
              static_cast<int>(Activation::kSilu) == 2 && static_cast<int>(Activation::kGelu) == 3 &&
              static_cast<int>(Activation::kElu) == 4);
static_assert(static_cast<int>(Loss::kCrossEntropy) == 0 && static_cast<int>(Loss::kMeanSquaredError) == 1 &&
              static_cast<int>(Loss::kBinaryCrossEntropy) == 2);

class CompiledStep : public StepKernel {
 public:
  CompiledStep(const Plan& plan, const jit::Cubin& cubin)
      : plan_(plan), kernel_(cubin), was_kept_(cubin.was_kept) {
    shape_.blocks = plan.blocks;
    shape_.threads = threads(plan);
    shape_.shared_bytes = shared_bytes(plan);
    if (plan.is_clustered != 0)
      shape_.cluster = plan.blocks;
    else
      shape_.is_cooperative = plan.blocks > 1;
    note_ = jit::note_of(cubin);
    kernel_.allow_shared_bytes(shape_.shared_bytes);
  }
  void launch(const Arguments& arguments, Stream& stream) const override {
    kernel_.launch(shape_, stream.get(), arguments);
  }
  const Plan& plan() const override { return plan_; }
  bool was_kept() const override { return was_kept_; }
  std::string note() const override { return note_; }

 private:
  const Plan plan_;
  jit::Kernel kernel_;
  jit::LaunchShape shape_;
  bool was_kept_;
  std::string note_;
};

/// take(plan) for the best plan; if that takes more registers than were counted, for the best one of fewer.
template <class Take>
auto with_fitting_plan(const Workload& workload, Precision precision, const Limits& limits,
                       const std::optional<Plan>& chosen, const Take& take) {
  if (chosen) return take(*chosen);
  constexpr int kSpare = 24;
  for (int spare = 0;; spare += kSpare) {
    try {
      return take(make_plan(plan_of(workload, precision), limits, spare));
    } catch (const jit::CompileError&) {
      if (make_plan(plan_of(workload, precision), limits, spare + kSpare).blocks == 0) throw;
    }
  }
}

}  // namespace

namespace narrow {

jit::Request compiled_request(const Plan& plan, const std::string& workload) {
  jit::Request request;
  request.name =
      "cuda-fused, " + workload + ", " + std::string(to_string(static_cast<Precision>(plan.precision)));
  request.headers = {"narrow/step.cuh"};
  request.text =
      "namespace headroom::narrow {\n"
      "struct PlanWords { std::uint32_t words[sizeof(Plan) / 4]; };\n"
      "struct Network {\n"
      "  static constexpr Plan kPlan = __builtin_bit_cast(Plan, PlanWords{{" +
      jit::as_words(plan) +
      "}});\n"
      "};\n"
      "}\n";
  request.kernel = "headroom::narrow::narrow_kernel<headroom::narrow::Network>";
  request.argument_type = "headroom::narrow::Arguments";
  request.argument_bytes = sizeof(Arguments);
  // Of quotients and roots: exact ones are most of Adam's update; these are good to two units in the last place.
  request.most_local_bytes = 64;
  request.options = {"--prec-div=false", "--prec-sqrt=false"};
  return request;
}

}  // namespace narrow

std::unique_ptr<Trainer> make_compiled_narrow_trainer(const Workload& workload, Precision precision,
                                                      const DatasetView& data, const Parameters& initial,
                                                      int device, const jit::Compiler* compiler,
                                                      const jit::Cache& cache, const Options& options) {
  const CompileStep compile = [&](const Workload& of, Precision in, const Limits& limits,
                                  const std::optional<Plan>& chosen) {
    const DeviceInfo info = device_info(device);
    const jit::Architecture architecture{.major = info.compute_major, .minor = info.compute_minor};
    return with_fitting_plan(of, in, limits, chosen, [&](const Plan& plan) -> std::unique_ptr<StepKernel> {
      jit::Request request = compiled_request(plan, of.name);
      if (options.trace != nullptr) request.constants.emplace_back("NARROW_TRACE", "1");
      return std::make_unique<CompiledStep>(plan, jit::compile(request, architecture, compiler, cache));
    });
  };
  return make_narrow_trainer(workload, precision, data, initial, device, compile, options);
}

jit::Cubin compile_narrow(const Workload& workload, Precision precision, const Limits& limits,
                          const jit::Compiler* compiler, const jit::Cache& cache) {
  validate(workload);
  if (const auto reason = refusal(workload, precision, limits))
    throw UnsupportedError("cuda-fused: " + *reason);
  return with_fitting_plan(workload, precision, limits, {}, [&](const Plan& plan) {
    return jit::compile(compiled_request(plan, workload.name), {}, compiler, cache);
  });
}

}  // namespace headroom
