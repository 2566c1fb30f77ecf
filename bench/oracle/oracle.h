// Double-precision reference trainer with the precision contract's roundings at the contract's points.
//
// It is what every backend is compared with, and never a competitor: plain loops, double sums, and a rounding
// only where the contract asks for one (see precision_rounding.h).
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/record.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "oracle/copies.h"

namespace headroom {

/// One step trained by the oracle from `start`: update = what the step adds to parameters and slots, computed in double and
/// rounded to fp32 only for storage (relative error 6e-8).
struct ReferencePoint {
  std::int64_t step = 0;
  State start;
  State update;
  double loss = 0;  ///< before the update
  /// Whose roundings the update has: of a library's tf32 it is the mean of what rounds to nearest and what cuts off.
  Contract contract = Contract::kExact;
  Copies copies{};
  bool is_probe = false;
};

/// For which contracts the points are wanted, and with how many perturbed copies of each step. The trajectory is always that of the
/// exact contract.
struct ReferenceWanted {
  std::vector<Contract> contracts = {Contract::kExact};
  int copies = 0;
  bool probe = false;  ///< first of all the point of probe_state(), at kProbeStep
};

/// What the steps of a trajectory may not tell in fp32 shows from a state of its own: gelu by its tanh form, which is as far off as
/// 5e-4 only for sums of some size, and an epsilon inside Adam's root. There the sums of the first layer reach from about -4 to 4, and
/// the average of squares is that of gradients of 3e-4. So late a step hardly corrects Adam's bias.
inline constexpr std::int64_t kProbeStep = 9999;
bool wants_probe(const Workload& workload, Precision precision);
State probe_state(const Workload& workload, const Parameters& initial);

/// The eight steps at which a backend's update is compared with the oracle's.
inline constexpr std::int64_t kCheckSteps[] = {0, 1, 7, 29, 71, 131, 211, 299};
/// The same for a network whose trajectory to step 299 would take minutes: as many steps, early ones.
inline constexpr std::int64_t kEarlyCheckSteps[] = {0, 1, 2, 3, 4, 5, 7, 9};
static_assert(std::size(kEarlyCheckSteps) == std::size(kCheckSteps));
/// Free-running steps of the second check.
inline constexpr std::int64_t kFreeSteps = 10;

/// Follows the oracle's trajectory from `initial`, with slots of zeros, and calls `point` at each of `steps` (ascending) for each
/// contract, with the state of the trajectory rounded to fp32 as `start`. `rounding` false gives plain double arithmetic.
/// If `steps` reach kFreeSteps - 1 the parameters after kFreeSteps steps are handed to `after_free_steps`. Then returns, with copies,
/// StepCopies::free_spread() for each contract.
std::vector<double> follow_reference(const Workload& workload, Precision precision, bool rounding,
                                     const DatasetView& data, const Parameters& initial,
                                     const std::vector<std::int64_t>& steps,
                                     const std::function<void(const ReferencePoint&)>& point,
                                     const std::function<void(const Parameters&)>& after_free_steps,
                                     const ReferenceWanted& wanted = {});

/// One step from any state, with so many copies.
ReferencePoint reference_step(const Workload& workload, Precision precision, Contract contract,
                              const DatasetView& data, const State& start, std::int64_t step, int copies);

/// The oracle behind the trainer contract (CPU, fp32 in and out), for tests and for `./headroom run` without a GPU.
std::unique_ptr<Trainer> make_oracle_trainer(const Workload& workload, Precision precision, bool rounding,
                                             const DatasetView& data, const Parameters& initial);

/// Gradient of the mean loss over batch `batch` in plain double precision, flat order; for numerical differentiation.
std::vector<double> oracle_gradient(const Workload& workload, const DatasetView& data,
                                    const std::vector<double>& parameters, std::int64_t batch, double* loss);

/// Fraction of samples whose largest logit is their label; plain fp32 arithmetic, as in r_squared().
double accuracy(const Model& model, const Parameters& parameters, const DatasetView& data);
/// For fp32 targets t: 1 - sum (y - t)^2 / sum (t - mean of t)^2 over all samples and outputs, the mean for each output; with binary
/// cross-entropy y is the probability.
double r_squared(const Workload& workload, const Parameters& parameters, const DatasetView& data);

}  // namespace headroom
