// The worker program of the hand-written kernels: which backends it offers, and whether this machine can run
// them.
#include <array>
#include <vector>

#include "calibration/calibration.h"
#include "choice/choice.h"
#include "device/device.h"
#include "fused/compiled/compiled.h"
#include "fused/trainer.h"
#include "layered/trainer.h"
#include "oracle/reference.h"
#include "resident/trainer.h"
#include "streamed/trainer.h"
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

/// What the machine lacks comes first; then fp32 and tf32 are refused with `reason`.
std::vector<BackendPrecision> sixteen_bits_only(const std::optional<std::string>& unavailable,
                                                const char* reason) {
  std::vector<BackendPrecision> precisions = all_precisions(unavailable);
  for (BackendPrecision& one : precisions)
    if (!unavailable && one.precision != Precision::kFp16 && one.precision != Precision::kBf16)
      one.unavailable = reason;
  return precisions;
}

WorkerDescription describe(int device) {
  const auto missing = device_missing(device);
  WorkerDescription description;
  description.name = "cuda";
  description.software = {{"cuda_runtime", cuda_runtime_version()}, {"nvcc", HEADROOM_NVCC_VERSION}};
  if (!missing) description.device = device_info(device);
  description.backends = {
      {.name = "cuda-layered",
       .precisions = all_precisions(layered_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_layered_trainer(request.workload, request.precision, request.data, request.initial,
                                         request.device);
           },
       .trains_everything = true,
       .family = Family::kOurs,
       .description = "our kernels, one for each operation, in a CUDA graph"},
      {.name = "cuda-resident",
       .precisions = all_precisions(resident_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_resident_trainer(request.workload, request.precision, request.data, request.initial,
                                          request.device);
           },
       .family = Family::kOurs,
       .description = "our kernel for small networks: weights stay on the chip, many steps a launch"},
      {.name = "cuda-streamed",
       .precisions = all_precisions(streamed_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_streamed_trainer(request.workload, request.precision, request.data, request.initial,
                                          request.device);
           },
       .family = Family::kOurs,
       .description =
           "our kernel for large weights: each is read once forward, and read and written once backward"},
      {.name = "cuda-fused",
       .precisions = sixteen_bits_only(fused_unavailable(device), "cuda-fused trains in fp16 and bf16"),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_fused_trainer(request.workload, request.precision, request.data, request.initial,
                                       request.device);
           },
       .family = Family::kOurs,
       .description = "our kernels for narrow networks: activations stay on the chip, forward to backward"},
      {.name = "cuda-tiled",
       .precisions = sixteen_bits_only(tiled_unavailable(device), "cuda-tiled trains in fp16 and bf16"),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_tiled_trainer(request.workload, request.precision, request.data, request.initial,
                                       request.device);
           },
       .trains_everything = true,
       .family = Family::kOurs,
       .description =
           "our kernel for most networks: the whole step as lists of tiles, one for each multiprocessor"},
      {.name = "cuda-fused-compiled",
       .precisions = all_precisions(fused_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_compiled_fused_trainer(request.workload, request.precision, request.data,
                                                request.initial, request.device, request.cache_folder);
           },
       .trains_everything = true,
       .family = Family::kOurs,
       .description = "our kernels for narrow networks, compiled for the network at hand; not in 'all'",
       .compiles = true,
       .repeats = true,
       .compile =
           [](const CompileRequest& request) {
             if (request.target.compute_major != 9 || request.target.compute_minor != 0)
               throw UnsupportedError("cuda-fused-compiled: needs compute capability 9.0");
             const jit::Cubin cubin = compile_fused(
                 request.workload, request.precision,
                 {.sm_count = request.target.sm_count, .shared_bytes = request.target.shared_bytes},
                 request.cache_folder);
             return Prepared{.setup_seconds = cubin.seconds,
                             .note = cubin.kernel,
                             .setup_cache = cubin.was_kept ? SetupCache::kWarm : SetupCache::kCold};
           }},
      {.name = "cuda",
       .precisions = all_precisions(choice_unavailable(device)),
       .make_trainer =
           [](const TrainerRequest& request) {
             return make_chosen_trainer(request.workload, request.precision, request.data, request.initial,
                                        request.device);
           },
       .trains_everything = true,
       .family = Family::kOurs,
       .description = "the one of ours that is the fastest for the workload; not in 'all'",
       .repeats = true},
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
  if (!missing) description.calibrate = [device] { return calibrate_device(device); };
  return description;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) { return headroom::serve(argc, argv, headroom::describe); }
