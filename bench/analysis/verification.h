// Did two backends train the same thing? Errors of one step against the oracle's, and the bounds they must meet.
//
// The bounds come from the oracle itself: from copies of its step that sum in another order (oracle/copies.h). Whatever such a copy
// does, correct code may do too. There is no table of networks.
//
// Pure functions. Every comparison is written so that NaN fails. An error can be infinite (the oracle adds nothing and the backend
// does) or NaN; the results file holds null then, and the check has failed.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/parameters.h"
#include "core/record.h"
#include "oracle/oracle.h"

namespace headroom {

/// Error of each tensor's update, in flat order (weight1, bias1, ...), with Frobenius norms of whole tensors:
///   max(0, |trained - end| - 2^-24 |start|) / |end - start|,   end: the oracle's, rounded to fp32.
/// The slack is for the rounding of fp32 storage; it is taken from the norms, not from each element, so that it cannot hide many small
/// errors of one sign in a few elements. If the oracle adds nothing the error is 0 or infinite. A NaN or infinity in `trained` gives
/// NaN. Works on all cores; throws if the networks differ.
std::vector<double> update_errors_from_end(const ParametersView& start, const ParametersView& trained,
                                           const ParametersView& oracle_end);

/// What was found of one tensor in one step. Every number is relative to the Frobenius norm of what the oracle adds.
struct TensorStep {
  double error = 0;          ///< of update_errors_from_end()
  double scale = 0;          ///< signed: how much longer the step is along the oracle's
  double storage = 0;        ///< the rounding of fp32 storage; infinite where the oracle adds nothing
  double scale_storage = 0;  ///< what that can make of the scale
  double spread = 0;         ///< the largest distance of a copy, or of a gradient rounded the other way
  /// Of a slot: the difference along what the slot was before the step, for each unit of that, and what storage can make of it. With
  /// momentum it says how much more of the slot was kept.
  double decay = 0, decay_storage = std::numeric_limits<double>::infinity();
};

/// What was found at one of the checked steps.
struct StepErrors {
  std::int64_t step = 0;
  std::vector<TensorStep>
      tensors;  ///< of each slot, one after the other; of the parameters where there are no slots
  Copies copies;
  /// With slots: the error of each parameter's tensor against what the optimizer makes of the trainer's own new slots. Which gradient a
  /// step came from shows in the slots; what became of it (learning rate, bias correction, epsilon, weight decay), in the parameters.
  std::vector<double> rule_errors;
  bool rounds_gradients = false;  ///< the gradients pass through a 16-bit format
};
/// The 16-bit format that the gradients of weights and biases pass through, if they do: autocast's.
struct GradientFormat {
  int bits = 0;         ///< after the leading one; 0: they are not rounded
  double smallest = 0;  ///< how far apart values near zero are, without the loss scale
};
GradientFormat gradient_format(Precision precision, Contract contract, int batch_size);

/// Compares one step. With a `format` each tensor's spread is at least what the rounding of its largest gradient the other way makes: in a
/// tensor of a few values that is as likely in correct code as in a copy, and may be in none of them.
/// Throws if the networks or optimizers differ, or the copies are of another.
StepErrors compare_step(std::int64_t step, const Optimizer& optimizer, const StateView& start,
                        const StateView& trained, const StateView& oracle_update, Copies copies,
                        const GradientFormat& format = {});
inline StepErrors compare_step(const Optimizer& optimizer, const ReferencePoint& point,
                               const StateView& trained, const GradientFormat& format = {}) {
  return compare_step(point.step, optimizer, point.start, trained, point.update, point.copies, format);
}

/// How far a correct backend may be off.
struct BoundRule {
  double spreads = 3;                            ///< times the largest distance among the copies
  double least_fp32 = 3e-5, least_other = 1e-3;  ///< distance that is always allowed
  double scale_spreads = 3, least_scale = 3e-3;  ///< the same of the scale
  /// Of a tensor whose gradients pass through 16 bits, times the median of the sizes of a copy's scales. In a trained regression the
  /// residual is small against the output, so how the output is rounded makes every gradient longer or shorter, at one step so, at
  /// another the other way. The median of the signed scales of a copy may then be near zero by chance.
  double scale_size_spreads = 2;
  double least_decay = 1e-3;  ///< of momentum
  double rule = 1e-5;         ///< of `update_rule`, beside what fp32 makes of a bias correction
  /// A tensor is evidence at a step where what the oracle adds is so many times the rounding of storage, and the bound of its distance
  /// is at most this.
  double evident_storage = 16, evident_bound = 0.5;
  double evident_scale_storage = 2e-3;  ///< of a tensor whose scale counts
  /// Without slots a learning rate that is 1 % off shows in the scale alone: its bound has to be below that. With slots the scale tells
  /// of wrong betas and gradients.
  double evident_scale = 5e-3, evident_slot_scale = 5e-2;
  /// A momentum that is 1 % off shows along the slot as 0.01 times the momentum; of a momentum below 0.25 less is asked for.
  double evident_decay = 7.5e-3, least_evident_decay = 2e-3;
  double ten_steps = 2e-1, ten_steps_spreads = 3;
};

/// Whether a tensor that is not trained at all would be seen at this step.
bool is_evidence(const TensorStep& step, Precision precision, const BoundRule& rule = {});

/// The checks of a tensor over the steps, "step_update" and "step_scale", one "step_scale" of all tensors together (of no tensor),
/// with slots "update_rule" for each of the parameters' tensors, and "evidence".
///
/// step_update: the distance at each step is at most max(rule.spreads * the copies' largest, rule.least). `error` and `bound` are
/// those of the step that comes nearest to its bound, `worst` is the largest error.
/// step_scale: the median over the steps of the signed scale, its size at most max(least_scale, scale_spreads * the largest of the
/// copies' medians); under autocast also scale_size_spreads * the largest median of the sizes of a copy's scales. Of all tensors together: the median over those (tensor, step) at which the copies' scales differ least.
/// With momentum another one, of the "momentum": the same along the slot as it was before the step.
/// update_rule: at most `rule`, and what the bias corrections' roundings add: of 1 - beta^t, 2^-24 (1 + t beta^t) / (1 - beta^t), for
/// the second slot half of that. AdamW's parameters may be rounded three times, others twice, before this is counted.
/// evidence: without a tensor, `error` is the share of weight tensors that are evidence at no step, at most 0.5; with the tensor
/// "scale", the bound of the common scale, at most evident_scale; with "momentum", that of the momentum's. If they alone fail nothing is known to be wrong, and nothing to be
/// right.
std::vector<Check> step_update_checks(const Workload& workload, std::span<const StepErrors> steps,
                                      Precision precision, const BoundRule& rule = {});

/// "probe": the step from probe_state(). `tensor`, `error` and `bound` are those of the step_update or update_rule that comes nearest
/// to its bound; all have to pass.
Check probe_check(const Workload& workload, const StepErrors& errors, Precision precision,
                  const BoundRule& rule = {});

/// "ten_steps": error is the median over the tensors after ten free-running steps, worst the largest. `spread`: the largest of the
/// copies' (StepCopies::free_spread()); where it is infinite only NaN fails. A guard against state that is wrong from the second step on,
/// which is far off: the bound leaves room for a ReLU or a sign of Adam's that switches.
Check ten_steps_check(std::span<const double> tensor_errors, double spread, const BoundRule& rule = {});

/// "losses_finite": error is the number of losses that are not finite or outside [0, highest], bound 0.
/// `highest`: ten times the largest loss of the oracle's checked steps is a fair choice; infinite asks only
/// for finite values.
Check losses_finite_check(std::span<const float> losses, double highest);

/// "curve": last_means of a backend against those of the reference (PyTorch eager, fp32), the same seeds in
/// the same order; error is the median over the seeds of |mean - reference| / reference, bound 5e-3.
Check curve_check(std::span<const double> last_means, std::span<const double> reference_last_means);

/// Fail if a check failed, cannot_be_checked if only "evidence" did, pass if all checks passed, not_run if there are none.
Verification judge(std::vector<Check> checks);

/// The check that failed worst, in words: "weight2 is 1.0e-02 off the oracle's update (at most 1.0e-03)"; why it cannot be checked;
/// empty if none failed.
std::string failure_message(const Verification& verification);

}  // namespace headroom
