// headroom-torch-worker: the LibTorch rows behind the worker protocol. A new row is one file in libtorch/ and
// one entry in kRows.
#include "core/trainer.h"
#include "device/device.h"
#include "libtorch/eager.h"
#include "libtorch/installation.h"
#include "worker/server.h"

namespace headroom {
namespace {

using MakeTrainer = std::unique_ptr<Trainer> (*)(const Workload&, Precision, const DatasetView&,
                                                 const Parameters&, int device);

struct Row {
  const char* name;
  MakeTrainer make_trainer;
};

constexpr Row kRows[] = {
    {"libtorch-eager", libtorch::make_eager},
};

Contract contract_of(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return Contract::kExact;
    case Precision::kTf32:
      return Contract::kLibrary;
    case Precision::kFp16:
    case Precision::kBf16:
      break;
  }
  return Contract::kAutocast;
}

WorkerDescription describe(int device) {
  const std::optional<std::string> missing = libtorch::device_missing(device);
  WorkerDescription description{"libtorch", libtorch::software(), std::nullopt, {}};
  if (!missing) description.device = device_info(device);
  for (const Row& row : kRows) {
    Backend backend;
    backend.name = row.name;
    for (const Precision precision : kAllPrecisions) {
      const bool on_cpu = device < 0 && precision == Precision::kFp32;
      backend.precisions.push_back({precision, contract_of(precision), on_cpu ? std::nullopt : missing});
    }
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
