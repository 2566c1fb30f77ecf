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
std::vector<double> update_errors(const ParametersView& start, const ParametersView& trained,
                                  const ParametersView& oracle_update);

/// The same where the oracle's end point is known instead of its update (ten free steps).
std::vector<double> update_errors_from_end(const ParametersView& start, const ParametersView& trained,
                                           const ParametersView& oracle_end);

/// What was found at one of the checked steps, tensor by tensor in flat order.
struct StepErrors {
  std::int64_t step = 0;
  std::vector<double> errors;  ///< of update_errors()
  /// |<dW, dW_oracle> / <dW_oracle, dW_oracle> - 1|, less what the rounding of the fp32 masters can make of it:
  /// 4 * 6e-8 |W dW_oracle| / |dW_oracle|^2, element by element, since these errors are independent.
  std::vector<double> scale_errors;
  /// With slots the two above are those of each slot's tensors, one slot after the other, and this is the distance of each
  /// parameter's tensor from what the optimizer makes of the trainer's own new slots.
  std::vector<double> rule_errors{};
};
/// Compares one step. The scale error is 0 or infinite where the oracle's update is zero. Throws if the
/// networks differ.
StepErrors compare_step(std::int64_t step, const ParametersView& start, const ParametersView& trained,
                        const ParametersView& oracle_update);
/// The same for any optimizer. Which gradient a step came from shows in the slots; what became of it (learning rate, bias
/// correction, epsilon, weight decay), in the parameters.
StepErrors compare_step(std::int64_t step, const Optimizer& optimizer, const StateView& start,
                        const StateView& trained, const StateView& oracle_update);

/// How far a correct backend may be off.
///
/// What limits the distance is not rounding but ReLUs that lie on the edge: another order of summation flips a
/// fraction p of the hidden activations, each flip changes an update by about 1 / sqrt(batch * width / 2) of
/// its norm, all of them together by sqrt(2 p) whatever the width. Measured with H = 128 to 8192 at batch 32
/// (results/h200/): under the contract the median is 0 at H = 128, up to 2e-3 at H = 512 (fp16, the vendor's
/// products), and 4e-3 to 9e-3 (tf32), up to 5e-3 (fp16, bf16) from 10^5 activations a step on; 1e-2 for fp16 autocast
/// and 4e-2 for bf16 autocast.
/// One flip by itself: simulated by flipping each hidden sum within 2e-5 of zero alone (fp16, steps 0 to 71, made-up
/// data; 1459 flips at 784-128x3-10, batch 32, 631 at 200-96-64-64-10, batch 32, 1564 at 784-256-10, batch 128, 566 at
/// 784-512x3-10, batch 32), the worst tensor moves by 0.8 to 1.0 of that formula in the median, by 2.2 to 2.4 times
/// the formula in one of twenty, 2.8 to 3.2 in one of a hundred, 3.7 to 5.5 at most: a row with a large gradient
/// weighs more. On an H200 one flip at H = 128 was measured as 5.3e-2 and 5.4e-2, and so simulated.
/// A library's tf32 may round the inputs of products or cut them off, as Triton's does: each product is then smaller by
/// up to 1e-3, which flips ReLUs too. Simulated at H = 64 to 2048 on MNIST digits, cutting off moves an update by 3e-2 to
/// 5e-2 and its scale by up to 6e-3; measured on an H200 at H = 128: 2.6e-2 and 4.5e-3.
///
/// Depth: flips add up on the way back, so that layer l's update is off by sqrt(2 (p_l + p_(l+1) + ...)). And p
/// grows on the way forward: an activation that rounds the other way moves all sums of the next layer. Nothing
/// differs in the first layer; after some five, all activations differ by about a unit of the format. Simulated on
/// MNIST digits, batch 32, one seed, eight early steps (four at 8192), against double sums; worst tensor's median
/// at 3, 5 and 7 hidden layers of 2048, with fp32 sums that are cut off every 16 products: bf16 1.8e-3, 1.4e-2,
/// 2.1e-2; fp16 7e-3, 1.4e-2, 1.2e-2; tf32 7e-3, 1.3e-2, 1.7e-2; with rounded fp32 sums: bf16 1e-4, 4e-3, 5e-3;
/// fp16 8e-4, 6e-3, 9e-3; tf32 1e-3, 8e-3, 1.2e-2. Seven of 8192: bf16 4.3e-2 and 1.9e-2 (three: 9e-3 and 3e-3),
/// tf32 2.0e-2, fp16 1.8e-2 (cut off); the flips counted in bf16 and tf32 say 4.7e-2, 2.2e-2 and 2.2e-2. Measured
/// on an H200 in bf16: 4.0e-2 (cuBLAS) and 2.4e-2 (cuda-streamed) at seven of 8192, 1.3e-2 and 6e-3 at three of
/// 16384. So over three hidden layers the exact contract's median bound grows with the layers behind the first: in
/// proportion in bf16, whose p still grows at the fifth, by the square root in fp16 and tf32. It ends where
/// autocast's rounded sums lead, in which all activations differ from the first layer on: simulated at 3, 5, 7 (H =
/// 2048), 10 and 15 (H = 512) hidden layers, 4e-2, 6e-2, 6e-2, 1.0e-1 and 1.0e-1 in bf16, 1.0e-2, 2.1e-2, 2.3e-2,
/// 2.8e-2 and 2.8e-2 in fp16. Autocast's own bounds hold up to seven (bf16 measured there: 6.5e-2, scale 2.4e-3;
/// scale simulated: 4.3e-3); with ten, a correct bf16 autocast can fail by its scale (1.0e-2 simulated). The exact
/// contract's scale was 1e-3 at seven (1.5e-3 simulated).
///
/// Flips hardly move an update's scale (by p), so the scale has tight bounds for every backend: a learning
/// rate that is 1 % off is caught in all of them, at the latest in the last bias, which neither flips nor
/// products' inputs reach.
struct StepBounds {
  double median = 0;  ///< of the distance, over the eight steps
  double each = 0;    ///< of the distance at each step; infinite where single steps need only be finite
  double scale = 0;   ///< of the scale error's median
};
/// exact: median 1e-3, or 2e-2 times depth_factor() in tf32, fp16 and bf16 over kFewActivations hidden activations a
/// step; each 5e-2, or if that is more 1.5 times the median's bound, six average flips in the narrowest layer up to
/// 0.5, or two of them; scale 2e-3.
/// Others: median 6e-2 (tf32 of a library), 3e-2 (fp16 autocast), 1e-1 (bf16 autocast), each finite, scale 8e-3
/// (library) or 5e-3.
StepBounds step_bounds(const Workload& workload, Contract contract, Precision precision);
inline constexpr std::int64_t kFewActivations = 20000;
/// What the number of hidden layers does to the exact contract's median bound below fp32: 1 up to three, then
/// (hidden_layers - 1) / 2, at most 5, in bf16, and its square root, at most 2, in fp16 and tf32. 1 in fp32.
double depth_factor(int hidden_layers, Precision precision);

/// Two checks a tensor, "step_update" (distance) and "step_scale": error is the median over the steps, worst the
/// largest. With slots they are of each slot's tensors ("weight1 exp_avg"), and a square's bounds are twice the others'; the
/// parameters' own check is "update_rule", bound 1e-5.
std::vector<Check> step_update_checks(const Workload& workload, std::span<const StepErrors> steps,
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
