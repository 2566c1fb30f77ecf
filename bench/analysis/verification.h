// Did two backends train the same thing? Errors of one step's update against the oracle's, and the bounds
// they must meet.
//
// Pure functions. Every comparison is written so that NaN fails. An error can be infinite (the oracle's
// update is zero and the backend's is not) or NaN; the results file holds null then, and the check has
// failed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/parameters.h"
#include "core/record.h"

namespace headroom {

/// Error of each tensor's update, in flat order (weight1, bias1, ...), with Frobenius norms of whole tensors:
///   max(0, |dW - dW_oracle| - 6e-8 |W|) / |dW_oracle|,   dW = trained - start, W = start.
/// The slack is for the rounding of the fp32 master; it is taken from the norms, not from each element, so
/// that it cannot hide many small errors of one sign in a few elements. If |dW_oracle| is 0 the error is 0 or
/// infinite. A NaN or infinity in `trained` gives NaN or infinity. Works on all cores; throws if the networks
/// differ.
std::vector<double> update_errors(const Parameters& start, const Parameters& trained,
                                  const Parameters& oracle_update);

/// The same where the oracle's end point is known instead of its update (ten free steps).
std::vector<double> update_errors_from_end(const Parameters& start, const Parameters& trained,
                                           const Parameters& oracle_end);

struct StepBounds {
  double median = 0;  ///< over the eight steps
  double each = 0;    ///< infinite where single steps need only be finite
};
/// exact: 1e-3 and 5e-2. Others: 5e-3 (fp16 autocast) or 3e-2 (bf16 autocast, a library's tf32), each finite.
StepBounds step_bounds(Contract contract, Precision precision);

/// What was found at one of the checked steps.
struct StepErrors {
  std::int64_t step = 0;
  std::vector<double> errors;  ///< of update_errors()
};

/// One check a tensor, "step_update": error is the median over the steps, worst the largest.
std::vector<Check> step_update_checks(const std::vector<int>& widths, std::span<const StepErrors> steps,
                                      Contract contract, Precision precision);

/// "ten_steps": error is the median over the tensors after ten free-running steps, worst the largest; bound
/// 5e-2.
Check ten_steps_check(std::span<const double> tensor_errors);

/// "losses_finite": error is the number of losses that are not finite or outside [0, highest], bound 0.
/// `highest`: ten times the largest loss of the oracle's checked steps is a fair choice; infinite asks only
/// for finite values.
Check losses_finite_check(std::span<const float> losses, double highest);

/// "curve": last_means of a backend against those of the reference (PyTorch eager, fp32), the same seeds in
/// the same order; error is the median over the seeds of |mean - reference| / reference, bound 5e-3.
Check curve_check(std::span<const double> last_means, std::span<const double> reference_last_means);

/// Pass if all checks passed, fail if one failed, not_run if there are none.
Verification judge(std::vector<Check> checks);

/// The check that failed worst, in words: "weight2 is 1.0e-02 off the oracle's update (at most 1.0e-03)";
/// empty if none failed.
std::string failure_message(const Verification& verification);

}  // namespace headroom
