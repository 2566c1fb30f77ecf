// The step checks: one prepared trainer against the oracle, before it is timed. The judging itself is
// analysis.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/record.h"
#include "driver/run/training_files.h"
#include "oracle/oracle.h"
#include "worker/client.h"
#include "worker/mapped_file.h"
#include "worker/reference_files.h"

namespace headroom {

/// The oracle's points for one (workload, precision), as files: the state before each step, and what the step adds to it under each
/// contract of its backends. Made once and shared by all backends; up to 60 GB, so they are read where they lie.
struct Reference {
  using Points = std::vector<std::unique_ptr<MappedFile<float>>>;
  struct OfContract {
    Points updates{};              ///< of each of `steps`
    std::vector<Copies> copies{};  ///< of each of `steps`
    double free_spread = 0;        ///< StepCopies::free_spread()
  };

  ReferenceFiles files;
  std::vector<std::int64_t> steps;
  int copies = 0;  ///< of each step, under each contract
  double largest_loss = 0;
  bool has_probe = false;  ///< whether the points have one more at the end: probe_state()
  Points starts{};         ///< of each of `steps`
  std::map<Contract, OfContract> contracts{};
  std::unique_ptr<MappedFile<float>> end{};  ///< of the free steps
};

/// Whether following the oracle is too long a work for the CPU.
bool wants_gpu_oracle(const Workload& workload);

/// What is checked: at kCheckSteps with kCopies copies; where that would cost the oracle (on the CPU, or on the GPU) more than about a
/// minute, or some seconds, with fewer copies; then at kEarlyCheckSteps.
struct CheckPlan {
  std::vector<std::int64_t> steps;
  int copies = kCopies;
};
CheckPlan check_plan(const Workload& workload, bool on_gpu);
/// Of the oracle's in one step: those of the products, and what activations and the optimizer's update take beside plain ReLU
/// and sgd, counted in as many operations of a product.
double oracle_operations(const Workload& workload);
/// Of the oracle, to the last step that is checked, for the points themselves and for their copies under one contract.
double reference_operations(const Workload& workload, bool on_gpu);

Reference cpu_reference(const TrainingFiles& files, Precision precision,
                        const std::vector<Contract>& contracts, const std::filesystem::path& folder);
/// By `backend` of `client`, a reference on the device.
Reference gpu_reference(WorkerClient& client, const std::string& backend, const TrainingFiles& files,
                        Precision precision, const std::vector<Contract>& contracts,
                        const std::filesystem::path& folder);

/// How many backends are checked at once, each in its own process: moving a large network's parameters in and out of one
/// is mostly one core's work. Each needs a few copies of them.
int checks_side_by_side(const Workload& workload);

/// Trains single steps from the oracle's parameters and ten free ones from the initial parameters, and
/// compares. Leaves the trainer with the initial parameters. `trained_file` is for the worker to write over. Throws what
/// the client throws.
Verification check_trainer(WorkerClient& client, const TrainingFiles& files, const Reference& reference,
                           Contract contract, Precision precision, const std::filesystem::path& trained_file,
                           const std::function<void()>& between_steps);

}  // namespace headroom
