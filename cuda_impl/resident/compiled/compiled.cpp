#include "resident/compiled/compiled.h"

#include <optional>
#include <utility>
#include <variant>

#include "core/error.h"
#include "device/device.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "jit/kernel.h"
#include "resident/compiled/requests.h"

namespace headroom {
namespace {

using namespace resident;

class CompiledKernel : public PlanKernel {
 public:
  CompiledKernel(const jit::Cubin& cubin, int threads, std::string note)
      : kernel_(cubin), threads_(threads), was_kept_(cubin.was_kept), note_(std::move(note)) {}
  const void* function() const override { return kernel_.handle(); }
  int threads() const override { return threads_; }
  bool was_kept() const override { return was_kept_; }
  std::string note() const override { return note_; }

 private:
  jit::Kernel kernel_;
  int threads_;
  bool was_kept_;
  std::string note_;
};

struct Compiled {
  jit::Cubin cubin;
  std::string note;  ///< for a record
};

/// Throws jit::CompileError.
Compiled compiled(const AnyPlan& plan, Precision precision, PlanForm form,
                  const jit::Architecture& architecture, const std::string& cache_folder) {
  const auto made = [&](PlanForm its_form) {
    return jit::compile(request_of(plan, precision, its_form), architecture, jit::found_compiler(),
                        jit::cubins_in(cache_folder));
  };
  try {
    const jit::Cubin cubin = made(form);
    return {cubin, jit::note_of(cubin)};
  } catch (const jit::CompileError& error) {
    const auto* slices = std::get_if<SlicePlan>(&plan);
    const bool has_constants =
        slices != nullptr &&
        (form == PlanForm::kConstants ||
         (form == PlanForm::kChosen && plan_form_of(*slices, precision) == PlanForm::kConstants));
    if (!has_constants) throw;
    const jit::Cubin cubin = made(PlanForm::kArgument);
    return {cubin, jit::note_of(cubin) + "; its plan is an argument, as with constants: " + error.what()};
  }
}

class Maker : public KernelMaker {
 public:
  Maker(const jit::Architecture& architecture, const std::string& cache_folder, PlanForm form)
      : architecture_(architecture), cache_folder_(cache_folder), form_(form) {}
  std::shared_ptr<const PlanKernel> make(const AnyPlan& plan, Precision precision) const override {
    try {
      const auto [cubin, note] = compiled(plan, precision, form_, architecture_, cache_folder_);
      return std::make_shared<CompiledKernel>(cubin, threads_of(plan, precision), note);
    } catch (const jit::CompileError& error) {
      // Where constants are the only form, some plans spill, and another one may not.
      if (std::holds_alternative<ColumnPlan>(plan) || std::holds_alternative<SlotPlan>(plan))
        throw UnsupportedError(error.what());
      throw;
    }
  }

 private:
  jit::Architecture architecture_;
  std::string cache_folder_;
  PlanForm form_;
};

/// Remembers what it was asked for first, and has no kernel.
class Listener : public KernelMaker {
 public:
  mutable std::optional<AnyPlan> plan;
  std::shared_ptr<const PlanKernel> make(const AnyPlan& asked, Precision precision) const override {
    (void)request_of(asked, precision);  // throws if there is no such kernel
    if (!plan) plan = asked;
    throw UnsupportedError("no kernel is wanted");
  }
};

}  // namespace

std::unique_ptr<Trainer> make_resident_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const std::string& cache_folder,
                                               const ResidentOptions& options) {
  jit::Architecture architecture;
  if (!resident_unavailable(device)) {  // else make_resident_trainer() says why
    const DeviceInfo info = device_info(device);
    architecture = {.major = info.compute_major, .minor = info.compute_minor};
  }
  return make_resident_trainer(workload, precision, data, initial, device,
                               Maker(architecture, cache_folder, options.plan_form), options);
}

jit::Cubin compile_resident(const Workload& workload, Precision precision, const Limits& limits,
                            const std::string& cache_folder, const ResidentOptions& options) {
  validate(workload);
  const Listener listener;
  const std::string reason = offer_plans(workload, precision, limits, options, listener);
  if (!listener.plan) throw UnsupportedError(reason);
  return compiled(*listener.plan, precision, options.plan_form, {}, cache_folder).cubin;
}

}  // namespace headroom
