// headroom-torch-worker: the LibTorch rows behind the worker protocol. A new row is one file in libtorch/ and
// one entry in kRows.
#include "core/trainer.h"
#include "device/device.h"
#include "device/profiler_range.h"
#include "libtorch/eager.h"
#include "libtorch/expert.h"
#include "libtorch/graph.h"
#include "libtorch/installation.h"
#include "worker/server.h"

namespace headroom {
namespace {

using MakeTrainer = std::unique_ptr<Trainer> (*)(const Workload&, Precision, const DatasetView&,
                                                 const Parameters&, int device);

/// Which roundings a row has in 16 bits.
enum class In16Bits { kAutocast, kExact };

struct Row {
  const char* name;
  const char* description;
  MakeTrainer make_trainer;
  In16Bits in_16_bits;
  bool on_cpu;                                           ///< trains there too, in fp32
  std::optional<std::string> (*unavailable)(Precision);  ///< in this PyTorch; null: never
};

constexpr Row kRows[] = {
    {"libtorch-eager", "PyTorch from C++, operation by operation", libtorch::make_eager, In16Bits::kAutocast,
     true, nullptr},
    {"libtorch-graph", "libtorch-eager's step, captured in a CUDA graph", libtorch::make_graph,
     In16Bits::kAutocast, false, nullptr},
    {"libtorch-expert", "a step written by hand in PyTorch's operations, in a CUDA graph",
     libtorch::make_expert, In16Bits::kExact, true, libtorch::expert_unavailable},
};

Contract contract_of(const Row& row, Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return Contract::kExact;
    case Precision::kTf32:
      return Contract::kLibrary;
    case Precision::kFp16:
    case Precision::kBf16:
      break;
  }
  return row.in_16_bits == In16Bits::kExact ? Contract::kExact : Contract::kAutocast;
}

/// Why this machine cannot run it; `missing`: why PyTorch can use no CUDA device.
std::optional<std::string> unavailable(const Row& row, Precision precision, int device,
                                       const std::optional<std::string>& missing) {
  if (device < 0 && precision == Precision::kFp32 && row.on_cpu) return std::nullopt;
  if (missing) return missing;
  return row.unavailable == nullptr ? std::nullopt : row.unavailable(precision);
}

WorkerDescription describe(int device) {
  const std::optional<std::string> missing = libtorch::device_missing(device);
  WorkerDescription description{"libtorch", libtorch::software(), std::nullopt, {}};
  if (!missing) description.device = device_info(device);
  description.range = profiler_ranges();
  for (const Row& row : kRows) {
    Backend backend;
    backend.name = row.name;
    backend.family = Family::kLibtorch;
    backend.description = row.description;
    for (const Precision precision : kAllPrecisions) {
      backend.precisions.push_back(
          {precision, contract_of(row, precision), unavailable(row, precision, device, missing)});
    }
    backend.trains_everything = true;
    backend.make_trainer = [make_trainer = row.make_trainer](const TrainerRequest& request) {
      return make_trainer(request.workload, request.precision, request.data, request.initial, request.device);
    };
    description.backends.push_back(std::move(backend));
  }
  return description;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) { return headroom::serve(argc, argv, headroom::describe); }
