#include "resident/compiled/compiled.h"

#include <utility>

#include "core/error.h"
#include "device/device.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "jit/kernel.h"
#include "resident/column_arguments.h"
#include "resident/slice_arguments.h"
#include "resident/slice_slots.h"

namespace headroom {
namespace {

using namespace resident;

class CompiledKernel : public PlanKernel {
 public:
  CompiledKernel(const jit::Cubin& cubin, int threads)
      : kernel_(cubin), threads_(threads), was_kept_(cubin.was_kept) {
    note_ = jit::note_of(cubin);
  }
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

/// The kernel compiled ahead, where the one with constants was refused.
class AheadKernel : public PlanKernel {
 public:
  AheadKernel(const SliceKernel& kernel, const std::string& why)
      : kernel_(kernel), note_("its kernel is the one compiled ahead, as with constants: " + why) {}
  const void* function() const override { return kernel_.function; }
  int threads() const override { return kernel_.threads; }
  bool was_kept() const override { return true; }
  std::string note() const override { return note_; }

 private:
  SliceKernel kernel_;
  std::string note_;
};

int threads_of(const SlicePlan& plan, Precision precision) { return slice_kernel(precision, plan).threads; }
int threads_of(const ColumnPlan&, Precision) { return kColumnThreads; }
int threads_of(const SlotPlan& plan, Precision) { return plan.threads; }

class Maker : public KernelMaker {
 public:
  Maker(const jit::Architecture& architecture, const std::string& cache_folder)
      : architecture_(architecture), cache_folder_(cache_folder) {}
  std::shared_ptr<const PlanKernel> make(const SlicePlan& plan, Precision precision) const override {
    try {
      return made(plan, precision);
    } catch (const jit::CompileError& error) {
      return std::make_shared<AheadKernel>(slice_kernel(precision, plan), error.what());
    }
  }
  std::shared_ptr<const PlanKernel> make(const ColumnPlan& plan, Precision precision) const override {
    return made_or_refused(plan, precision);
  }
  std::shared_ptr<const PlanKernel> make(const SlotPlan& plan, Precision precision) const override {
    return made_or_refused(plan, precision);
  }

 private:
  template <class AnyPlan>
  std::shared_ptr<const PlanKernel> made_or_refused(const AnyPlan& plan, Precision precision) const {
    try {
      return made(plan, precision);
    } catch (const jit::CompileError& error) {  // another plan may have a kernel
      throw UnsupportedError(error.what());
    }
  }
  template <class AnyPlan>
  std::shared_ptr<const PlanKernel> made(const AnyPlan& plan, Precision precision) const {
    const jit::Cubin cubin = jit::compile(compiled_request(plan, precision), architecture_,
                                          jit::found_compiler(), jit::cubins_in(cache_folder_));
    return std::make_shared<CompiledKernel>(cubin, threads_of(plan, precision));
  }

  jit::Architecture architecture_;
  std::string cache_folder_;
};

/// Remembers what it was asked for first, and has no kernel.
class Listener : public KernelMaker {
 public:
  mutable std::optional<jit::Request> request;
  std::shared_ptr<const PlanKernel> make(const SlicePlan& plan, Precision precision) const override {
    return remember(plan, precision);
  }
  std::shared_ptr<const PlanKernel> make(const ColumnPlan& plan, Precision precision) const override {
    return remember(plan, precision);
  }
  std::shared_ptr<const PlanKernel> make(const SlotPlan& plan, Precision precision) const override {
    return remember(plan, precision);
  }

 private:
  template <class AnyPlan>
  std::shared_ptr<const PlanKernel> remember(const AnyPlan& plan, Precision precision) const {
    if (!request) request = compiled_request(plan, precision);
    throw UnsupportedError("no kernel is wanted");
  }
};

std::string number(int value) { return std::to_string(value); }

std::string format_of(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "SliceFp32";
    case Precision::kTf32:
      return "SliceTf32";
    case Precision::kFp16:
      return "SliceFp16";
    case Precision::kBf16:
      return "SliceBf16";
  }
  throw std::logic_error("format_of: not a Precision");
}

std::string exchange_of(const SlicePlan& plan) {
  return std::string("headroom::resident::") + (plan.form == Form::kCluster ? "SliceCluster" : "SliceGrid");
}
/// An unrolled step in fp32, or of more pairs, is longer than the instruction cache; 0 then.
int unrolled_layers(const SlicePlan& plan, Precision precision) {
  const bool sixteen = precision == Precision::kFp16 || precision == Precision::kBf16;
  const bool unrolls = precision != Precision::kFp32 && plan.own == 1 && (sixteen || plan.pairs <= 2);
  return unrolls ? plan.layers : 0;
}

/// The header and the class of the members, as nearest_slice_kernel() in resident/launch.cu chooses them; but for any depth where
/// that has one for four layers and one for any.
std::pair<std::string, std::string> members_of(const SlicePlan& plan, Precision precision) {
  const std::string format = format_of(precision);
  const bool sixteen = precision == Precision::kFp16 || precision == Precision::kBf16;
  if (sixteen && in_pair_clusters(plan))
    return {"slice_whole_pair.cuh", "SliceWholePair<" + format + ", " + number(clusters(plan)) + ">"};
  if (plan.form == Form::kGrid && divides_rows(precision, plan.team, plan.own))
    return {"slice_rows.cuh", "SliceRowsMember<" + format + ">"};
  if (turns_tiles(precision, plan.layers, plan.team, plan.own))
    return {"slice_turned.cuh",
            "SliceTurnedMember<" + (precision == Precision::kBf16 ? "SliceFiniteBf16" : format) + ">"};
  if (precision == Precision::kFp32 && sums_ahead(plan))
    return {"slice_ahead.cuh", "SliceAheadMember<" + format + ", " + number(plan.team) + ", " +
                                   number(ahead_slices(plan)) + ", " + number(gram_teams(plan)) + ">"};
  if (packs_tiles(precision, plan.layers, plan.team, plan.own))
    return {"slice_packed.cuh", "SlicePackedMember<" + format + ">"};
  if (sums_whole(precision, plan)) {
    if (sixteen) return {"slice_whole.cuh", "SliceWholeMember<" + format + ">"};
    return plan.own == 2 ? std::pair<std::string, std::string>{"slice_wide_rows.cuh",
                                                               "SliceWideRowsMember<" + format + ">"}
                         : std::pair<std::string, std::string>{"slice_whole_rows.cuh",
                                                               "SliceWholeRowsMember<" + format + ">"};
  }
  return {"slice_step.cuh", "SliceMember<" + format + ", " + exchange_of(plan) + ", " + number(plan.pairs) +
                                ", " + number(unrolled_layers(plan, precision)) + ", " + number(plan.team) +
                                ", " + number(plan.own) + ">"};
}

}  // namespace

namespace resident {

jit::Request compiled_request(const SlicePlan& plan, Precision precision) {
  (void)slice_kernel(precision, plan);  // throws if there is none
  const auto [header, members] = members_of(plan, precision);
  // The first of a template's arguments is the format.
  const std::size_t inside = members.find('<') + 1;
  jit::Request request;
  request.headers = {"resident/" + header};
  request.kernel = "headroom::resident::slice_steps<headroom::resident::" + members.substr(0, inside) +
                   "headroom::resident::" + members.substr(inside) + ">";
  request.name =
      "cuda-resident " + members + ", " + number(plan.layers) + " layers, batch " + number(plan.batch);
  request.constants = {{"SLICE_PLAN", jit::as_words(plan)}};
  request.argument_type = "headroom::resident::SliceArguments";
  request.argument_bytes = sizeof(SliceArguments);
  return request;
}

jit::Request compiled_request(const ColumnPlan& plan, Precision precision) {
  const ColumnShape& shape = plan.shape;
  const std::string numbers = "{" + number(shape.hidden) + ", " + number(shape.members) + ", " +
                              number(shape.clusters) + ", " + number(shape.input_pairs) + ", " +
                              number(shape.register_masters) + ", " + number(shape.slots) + ", " +
                              number(shape.memory_slots) + ", " + number(shape.activation) + ", " +
                              number(shape.loss) + ", " + number(shape.halves) + "}";
  jit::Request request;
  request.headers = {"resident/column_step.cuh"};
  request.kernel = "headroom::resident::column_steps<headroom::resident::ColumnStep<headroom::resident::" +
                   format_of(precision) + ", headroom::resident::ColumnShape" + numbers + ">>";
  request.name = "cuda-resident columns, " + std::string(to_string(precision)) + ", " + number(shape.hidden) +
                 " hidden layers, batch " + number(plan.batch);
  request.constants = {{"COLUMN_PLAN", jit::as_words(plan)}};
  request.argument_type = "headroom::resident::ColumnArguments";
  request.argument_bytes = sizeof(ColumnArguments);
  // Exact quotients and roots, and subnormal ones, are most of Adam's update; these are good to two units in the last place. A gradient
  // of less than 1e-38 is nothing beside its epsilon.
  if (shape.slots > 0 || shape.activation != static_cast<int>(Activation::kRelu) ||
      shape.loss != static_cast<int>(Loss::kCrossEntropy)) {
    request.options = {"--prec-div=false", "--prec-sqrt=false", "--ftz=true"};
    request.most_local_bytes = 128;  // GELU at 256 columns; with Adam alone 8 there in fp16
  }
  if (shape.halves > 1)
    request.most_local_bytes = 128;  // at 256 columns, most of it addresses, which stay for the whole launch
  return request;
}

jit::Request compiled_request(const SlotPlan& plan, Precision precision) {
  const SlicePlan& slices = plan.slices;
  jit::Request request;
  request.headers = {"resident/slice_slots.cuh"};
  request.kernel =
      "headroom::resident::slice_slots_steps<headroom::resident::SliceSlotsMember<headroom::resident::" +
      format_of(precision) + ", " + exchange_of(slices) + ", " + number(slices.pairs) + ", " +
      number(unrolled_layers(slices, precision)) + ", " + number(slices.team) + ", " + number(plan.slots) +
      ">>";
  request.name = "cuda-resident slices with " + number(plan.slots) +
                 (plan.slots == 1 ? " slot, " : " slots, ") + std::string(to_string(precision)) + ", " +
                 number(slices.layers) + " layers, batch " + number(slices.batch);
  request.constants = {{"SLICE_PLAN", jit::as_words(slices)}};
  request.argument_type = "headroom::resident::SlotArguments";
  request.argument_bytes = sizeof(SlotArguments);
  request.options = {"--prec-div=false", "--prec-sqrt=false", "--ftz=true"};
  request.most_local_bytes = 256;  // tf32 at 512 columns; none elsewhere
  return request;
}

}  // namespace resident

std::unique_ptr<Trainer> make_compiled_resident_trainer(const Workload& workload, Precision precision,
                                                        const DatasetView& data, const Parameters& initial,
                                                        int device, const std::string& cache_folder,
                                                        const ResidentOptions& options) {
  if (const auto reason = resident_unavailable(device))
    throw UnsupportedError("cuda-resident-compiled: " + *reason);
  const DeviceInfo info = device_info(device);
  const Maker maker({.major = info.compute_major, .minor = info.compute_minor}, cache_folder);
  return make_resident_trainer(workload, precision, data, initial, device, options, &maker);
}

jit::Cubin compile_resident(const Workload& workload, Precision precision, const Limits& limits,
                            const std::string& cache_folder, const ResidentOptions& options) {
  validate(workload);
  const Listener listener;
  const std::string reason = offer_plans(workload, precision, limits, options, listener);
  if (!listener.request) throw UnsupportedError(reason);
  return jit::compile(*listener.request, {}, jit::found_compiler(), jit::cubins_in(cache_folder));
}

}  // namespace headroom
