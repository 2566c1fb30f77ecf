// headroom-oracle-worker: serves the double-precision CPU oracle as backend `oracle`, in all four precisions
// on every machine. It never competes; it shows that the whole path works where there is no GPU.
#include <string>

#include "core/error.h"
#include "oracle/oracle.h"
#include "worker/server.h"

namespace {

using namespace headroom;

Backend oracle_backend() {
  Backend backend{.name = "oracle", .precisions = {}, .make_trainer = {}};
  for (Precision precision : kAllPrecisions) {
    backend.precisions.push_back({.precision = precision, .contract = Contract::kExact, .unavailable = {}});
  }
  backend.make_trainer = [](const TrainerRequest& request) {
    return make_oracle_trainer(request.workload.joined(), request.precision, true, request.data,
                               request.initial);
  };
  backend.max_devices = kMaxDevices;  // it trains with the joined batch
  backend.trains_everything = true;
  backend.family = Family::kReference;
  backend.description = "CPU, double precision with the contract's roundings";
  backend.reference = [](const TrainerRequest& request, const std::vector<std::int64_t>& steps,
                         std::int64_t free_steps, const ReferenceWanted& wanted,
                         const std::function<void(const ReferencePoint&)>& point,
                         const std::function<void(const Parameters&)>& after_free_steps) {
    if (free_steps != kFreeSteps) {
      throw InputError("reference: free_steps " + std::to_string(free_steps) + ", expected " +
                       std::to_string(kFreeSteps));
    }
    return follow_reference(request.workload.joined(), request.precision, true, request.data, request.initial,
                            steps, point, after_free_steps, wanted);
  };
  return backend;
}

}  // namespace

int main(int argc, char** argv) {
  return headroom::serve(argc, argv, [](int) {
    return WorkerDescription{.name = "oracle", .software = {}, .device = {}, .backends = {oracle_backend()}};
  });
}
