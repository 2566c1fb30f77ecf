// The worker program of the hand-written kernels: which backends it offers, and whether this machine can run
// them.
#include <array>
#include <vector>

#include "calibration/calibration.h"
#include "choice/choice.h"
#include "device/device.h"
#include "device/profiler_range.h"
#include "fused/compiled.h"
#include "fused/trainer.h"
#include "layered/trainer.h"
#include "oracle/reference.h"
#include "resident/compiled.h"
#include "streamed/compiled.h"
#include "streamed/trainer.h"
#include "tiled/compiled.h"
#include "tiled/trainer.h"
#include "worker/server.h"

namespace headroom {
namespace {

std::vector<BackendPrecision> all_precisions(const std::optional<std::string>& unavailable) {
  std::vector<BackendPrecision> precisions;
  for (const Precision precision : kAllPrecisions)
    precisions.push_back({.precision = precision, .contract = Contract::kExact, .unavailable = unavailable});
  return precisions;
}

/// Of its ranks, or of the only one.
std::vector<int> devices_of(const TrainerRequest& request) {
  return request.devices.empty() ? std::vector{request.device} : request.devices;
}

/// Why `backend` cannot be asked to train this; nullopt if it can.
std::optional<std::string> not_offered(const Backend& backend, const Workload& workload,
                                       Precision precision) {
  if (!backend.trains_everything)
    if (const std::string beyond = beyond_plain_training(workload); !beyond.empty()) return beyond;
  if (workload.devices > backend.max_devices)
    return "trains on " +
           (backend.max_devices == 1 ? "one device" : "up to " + std::to_string(backend.max_devices));
  for (const BackendPrecision& one : backend.precisions)
    if (one.precision == precision) return one.unavailable;
  return "has no " + std::string(to_string(precision));
}

/// `cuda`: takes the fastest of those of `backends` that compete, as measured when it is set up.
Backend fastest_of(const std::vector<Backend>& backends, int device) {
  std::vector<Backend> strategies;
  for (const Backend& backend : backends)
    if (backend.family == Family::kOurs && !backend.repeats) strategies.push_back(backend);
  return {.name = "cuda",
          .precisions = all_precisions(layered_unavailable(device)),
          .make_trainer =
              [strategies](const TrainerRequest& request) {
                std::vector<choice::Candidate> candidates;
                for (const Backend& strategy : strategies)
                  candidates.push_back(
                      {.backend = strategy.name,
                       .set_up = [&] { return strategy.make_trainer(request); },
                       .out_of_reach = [&]() -> std::optional<std::string> {
                         if (auto why = not_offered(strategy, request.workload, request.precision))
                           return why;
                         return lacks_memory(request.workload, request.precision, request.data.samples);
                       }});
                return make_chosen_trainer({.workload = request.workload,
                                            .precision = request.precision,
                                            .initial = request.initial,
                                            .samples = request.data.samples,
                                            .gpu = device_info(request.device).name,
                                            .cache_folder = request.cache_folder,
                                            .since = choices_since()},
                                           candidates, {}, on_this_device());
              },
          .trains_everything = true,
          .family = Family::kOurs,
          .description = "the fastest of ours for the workload, as timed when it is set up; not in 'all'",
          .repeats = true,
          .max_devices = kMaxDevices};
}

/// What makes a row's kernel for a device that need not be there: compile(workload, precision, limits, cache folder).
template <class Limits, class Compile>
std::function<Prepared(const CompileRequest&)> compiled_ahead(const char* backend, Compile compile) {
  return [=](const CompileRequest& request) {
    const TargetDevice& target = request.target;
    if (target.compute_major != 9 || target.compute_minor != 0)
      throw UnsupportedError(std::string(backend) + ": needs compute capability 9.0");
    const jit::Cubin cubin = compile(request.workload, request.precision,
                                     Limits{.sm_count = target.sm_count, .shared_bytes = target.shared_bytes},
                                     request.cache_folder);
    return Prepared{.setup_seconds = cubin.seconds,
                    .note = cubin.kernel,
                    .setup_cache = cubin.was_kept ? SetupCache::kWarm : SetupCache::kCold};
  };
}

/// The same of cuda-tiled, which other GPUs run as well.
std::function<Prepared(const CompileRequest&)> tiled_compiled_ahead(const TiledOptions& options) {
  return [options](const CompileRequest& request) {
    const TargetDevice& target = request.target;
    const jit::Cubin cubin =
        compile_tiled(request.workload, request.precision,
                      {.architecture = {.major = target.compute_major, .minor = target.compute_minor},
                       .sm_count = target.sm_count},
                      request.cache_folder, options);
    return Prepared{.setup_seconds = cubin.seconds,
                    .note = cubin.kernel,
                    .setup_cache = cubin.was_kept ? SetupCache::kWarm : SetupCache::kCold};
  };
}

WorkerDescription describe(int device) {
  const auto missing = device_missing(device);
  WorkerDescription description;
  description.name = "cuda";
  description.software = {{"cuda_runtime", cuda_runtime_version()}, {"nvcc", HEADROOM_NVCC_VERSION}};
  if (!missing) {
    description.device = device_info(device);
    for (int other = 0; !device_missing(other); ++other) description.devices.push_back(device_info(other));
  }
  description.backends = {
      {.name = "cuda-layered",
       .precisions = all_precisions(layered_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_layered_trainer(request.workload, request.precision, request.data, request.initial,
                                         request.device, request.devices);
           },
       .trains_everything = true,
       .family = Family::kOurs,
       .description = "our kernels, one for each operation, in a CUDA graph",
       .max_devices = kMaxDevices},
      {.name = "cuda-resident",
       .precisions = all_precisions(resident_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_resident_trainer(request.workload, request.precision, request.data, request.initial,
                                          devices_of(request), request.cache_folder);
           },
       .trains_everything = true,
       .family = Family::kOurs,
       .description = "our kernels for small networks: weights stay on the chip, many steps a launch; "
                      "compiled at set-up",
       .compiles = true,
       .compile = compiled_ahead<resident::Limits>(
           "cuda-resident", [](const auto&... what) { return compile_resident(what...); }),
       .max_devices = resident::kMostRanks},
      {.name = "cuda-streamed",
       .precisions = all_precisions(streamed_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_compiled_streamed_trainer(request.workload, request.precision, request.data,
                                                   request.initial, request.device, request.cache_folder);
           },
       .trains_everything = true,
       .family = Family::kOurs,
       .description =
           "our kernel for large weights: each is read once forward, and read and written once backward",
       .compiles = true,
       .compile = compiled_ahead<streamed::Limits>(
           "cuda-streamed", [](const auto&... what) { return compile_streamed(what...); })},
      {.name = "cuda-fused",
       .precisions = all_precisions(fused_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_compiled_fused_trainer(request.workload, request.precision, request.data,
                                                request.initial, request.device, request.cache_folder);
           },
       .trains_everything = true,
       .family = Family::kOurs,
       .description = "our kernels for narrow networks: activations stay on the chip, forward to backward",
       .compiles = true,
       .compile = compiled_ahead<fused::Limits>("cuda-fused",
                                                [](const auto&... what) { return compile_fused(what...); })},
      {.name = "cuda-tiled",
       .precisions = all_precisions(tiled_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_compiled_tiled_trainer(request.workload, request.precision, request.data,
                                                request.initial, devices_of(request), request.cache_folder);
           },
       .trains_everything = true,
       .family = Family::kOurs,
       .description =
           "our kernel for most networks: the whole step as lists of tiles, one for each multiprocessor",
       .compiles = true,
       .compile = tiled_compiled_ahead({}),
       .max_devices = kMostTiledRanks},
      {.name = "cuda-tiled-portable",
       .precisions = all_precisions(tiled_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_compiled_tiled_trainer(request.workload, request.precision, request.data,
                                                request.initial, devices_of(request), request.cache_folder,
                                                {.portable = true});
           },
       .trains_everything = true,
       .family = Family::kOurs,
       .description = "cuda-tiled by the kernel for every GPU, without wgmma; not in 'all'",
       .compiles = true,
       .repeats = true,
       .compile = tiled_compiled_ahead({.portable = true}),
       .max_devices = kMostTiledRanks},
      {.name = "oracle-cuda",
       .precisions = all_precisions(missing),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_device_oracle_trainer(request.workload, request.precision, request.data,
                                               request.initial, request.device);
           },
       .reference =
           [](const TrainerRequest& request, const std::vector<std::int64_t>& steps, std::int64_t free_steps,
              const ReferenceWanted& wanted, const std::function<void(const ReferencePoint&)>& point,
              const std::function<void(const Parameters&)>& after_free_steps) {
             return follow_reference_on_device(request.workload, request.precision, request.data,
                                               request.initial, request.device, steps, free_steps, point,
                                               after_free_steps, wanted);
           },
       .trains_everything = true,
       .family = Family::kReference,
       .description = "the oracle's arithmetic on the GPU, for large workloads"},
  };
  description.backends.push_back(fastest_of(description.backends, device));
  if (!missing)
    description.calibrate = [device](const std::vector<int>& devices) {
      Calibration rates = calibrate_device(device);
      rates.merge(calibrate_links(devices));
      return rates;
    };
  description.range = profiler_ranges();
  return description;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) { return headroom::serve(argc, argv, headroom::describe); }
