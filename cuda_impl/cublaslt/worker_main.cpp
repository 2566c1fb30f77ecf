// The worker program of cublaslt-graph. Its tf32 is the library's own: which way it rounds inputs is not documented.
#include <optional>
#include <string>

#include "cublaslt/library.h"
#include "cublaslt/matrix_rates.h"
#include "cublaslt/trainer.h"
#include "device/device.h"
#include "device/profiler_range.h"
#include "worker/server.h"

namespace headroom {
namespace {

WorkerDescription describe(int device) {
  WorkerDescription description;
  description.name = "cublaslt";
  description.software = {{"cuda_runtime", cuda_runtime_version()}, {"nvcc", HEADROOM_NVCC_VERSION}};
  if (const std::string version = cublaslt::library_version(); !version.empty())
    description.software["cublaslt"] = version;
  if (!device_missing(device)) description.device = device_info(device);
  const std::optional<std::string> unavailable = cublaslt_unavailable(device);
  Backend backend;
  backend.name = "cublaslt-graph";
  backend.family = Family::kVendor;
  backend.description = "the vendor's products and their epilogues without a framework, in a CUDA graph";
  for (const Precision precision : kAllPrecisions)
    backend.precisions.push_back(
        {precision, precision == Precision::kTf32 ? Contract::kLibrary : Contract::kExact, unavailable});
  backend.make_trainer = [](const TrainerRequest& request) {
    return make_cublaslt_trainer(request.workload, request.precision, request.data, request.initial,
                                 request.device);
  };
  backend.trains_everything = true;
  description.backends.push_back(std::move(backend));
  description.range = profiler_ranges();
  if (!unavailable)
    description.calibrate = [device](const auto&) { return calibrate_matrix_products(device); };
  return description;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) { return headroom::serve(argc, argv, headroom::describe); }
