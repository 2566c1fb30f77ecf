#include "resident/compiled.h"

#include <optional>
#include <variant>

#include "core/error.h"
#include "device/device.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "resident/requests.h"

namespace headroom {
namespace {

using namespace resident;

struct Compiled {
  jit::Cubin cubin;
  std::string note;  ///< for a record
};

/// Throws jit::CompileError, and UnsupportedError if there is no compiler and the kernel was not kept.
Compiled compiled(const AnyPlan& plan, Precision precision, PlanForm form,
                  const jit::Architecture& architecture, const std::string& cache_folder) {
  const auto made = [&](PlanForm its_form) {
    return jit::compile(request_of(plan, precision, its_form), architecture, jit::found_compiler(),
                        jit::cubins_in(cache_folder));
  };
  const auto* slices = std::get_if<SlicePlan>(&plan);
  if (slices != nullptr && form == PlanForm::kChosen) form = plan_form_of(*slices, precision);
  if (slices == nullptr || form == PlanForm::kArgument) {
    const jit::Cubin cubin = made(form);
    return {cubin, jit::note_of(cubin)};
  }
  std::string refusal;
  bool was_compiled = false;
  try {
    const jit::Cubin cubin = made(form);
    return {cubin, jit::note_of(cubin)};
  } catch (const jit::CompileError& error) {
    refusal = error.what();
    was_compiled = true;
  } catch (const UnsupportedError& error) {  // a kernel of another network may have been kept
    refusal = error.what();
  }
  jit::Cubin cubin = made(PlanForm::kArgument);
  if (was_compiled) cubin.was_kept = false;  // it took as long
  return {cubin, jit::note_of(cubin) + "; its plan is an argument, as with constants: " + refusal};
}

class Maker : public KernelMaker {
 public:
  Maker(const jit::Architecture& architecture, const std::string& cache_folder, PlanForm form)
      : architecture_(architecture), cache_folder_(cache_folder), form_(form) {}
  PlanKernel make(const AnyPlan& plan, Precision precision) const override {
    try {
      const auto [cubin, note] = compiled(plan, precision, form_, architecture_, cache_folder_);
      PlanKernel kernel{.ready = jit::ready(cubin), .threads = threads_of(plan, precision)};
      kernel.ready.note = note;
      return kernel;
    } catch (const jit::CompileError& error) {
      // Where constants are the only form, some plans spill, and another one may not.
      if (std::holds_alternative<ColumnPlan>(plan) || std::holds_alternative<RankPlan>(plan) ||
          std::holds_alternative<SlotPlan>(plan))
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
  PlanKernel make(const AnyPlan& asked, Precision precision) const override {
    (void)request_of(asked, precision);  // throws if there is no such kernel
    if (!plan) plan = asked;
    throw UnsupportedError("no kernel is wanted");
  }
};

}  // namespace

namespace {

/// Without a GPU that can run it: make_resident_trainer() says why.
jit::Architecture architecture_of(int device) {
  if (resident_unavailable(device)) return {};
  const DeviceInfo info = device_info(device);
  return {.major = info.compute_major, .minor = info.compute_minor};
}

}  // namespace

std::unique_ptr<Trainer> make_resident_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const std::string& cache_folder,
                                               const ResidentOptions& options) {
  return make_resident_trainer(workload, precision, data, initial, device,
                               Maker(architecture_of(device), cache_folder, options.plan_form), options);
}

std::unique_ptr<Trainer> make_resident_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial,
                                               const std::vector<int>& devices,
                                               const std::string& cache_folder,
                                               const ResidentOptions& options) {
  return make_resident_trainer(workload, precision, data, initial, devices,
                               Maker(architecture_of(devices.front()), cache_folder, options.plan_form),
                               options);
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
