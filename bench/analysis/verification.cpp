// Norms of updates and the checks made of them.
#include "analysis/verification.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "core/parallel.h"
#include "core/training_rules.h"
#include "oracle/oracle.h"

namespace headroom {
namespace {

constexpr double kMasterRounding = 6e-8;  // half a unit of fp32, relative
constexpr double kRoundingDeviations = 4;
constexpr double kTenStepsBound = 5e-2, kCurveBound = 5e-3, kRuleBound = 1e-5;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct SquaredNorms {
  double difference = 0, update = 0, start = 0;  // squares
  double along = 0;                              // difference times the oracle's update
  double rounding = 0;                           // squares of start times the oracle's update
};

struct TensorErrors {
  std::vector<double> distance, scale;
};

// `reference(i)` is the oracle's update of element i. Partial sums of fixed pieces are added in order.
template <typename Reference>
TensorErrors errors_by_tensor(const ParametersView& start, const ParametersView& trained,
                              const Reference& reference) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 18;
  const std::span<const float> before = start.flat, after = trained.flat;
  TensorErrors errors;
  for (const TensorRange& range : tensor_ranges(start.widths)) {
    std::vector<SquaredNorms> pieces(static_cast<std::size_t>((range.size + kPiece - 1) / kPiece));
    parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t piece, std::int64_t) {
      SquaredNorms norms;
      const std::int64_t begin = range.begin + piece * kPiece;
      const std::int64_t end = std::min(begin + kPiece, range.begin + range.size);
      for (std::int64_t i = begin; i < end; ++i) {
        const double value = before[i], expected = reference(i);
        const double difference = (static_cast<double>(after[i]) - value) - expected;
        norms.difference += difference * difference;
        norms.update += expected * expected;
        norms.start += value * value;
        norms.along += difference * expected;
        norms.rounding += value * expected * value * expected;
      }
      pieces[static_cast<std::size_t>(piece)] = norms;
    });
    SquaredNorms total;
    for (const SquaredNorms& piece : pieces) {
      total.difference += piece.difference;
      total.update += piece.update;
      total.start += piece.start;
      total.along += piece.along;
      total.rounding += piece.rounding;
    }
    const double excess = std::sqrt(total.difference) - kMasterRounding * std::sqrt(total.start);
    const double update = std::sqrt(total.update);
    if (excess <= 0) {
      errors.distance.push_back(0);  // NaN goes on to the division
    } else {
      errors.distance.push_back(update == 0 ? (std::isnan(excess) ? excess : kInfinity) : excess / update);
    }
    const double along =
        std::abs(total.along) - kRoundingDeviations * kMasterRounding * std::sqrt(total.rounding);
    if (update == 0) {
      errors.scale.push_back(errors.distance.back());
    } else {
      errors.scale.push_back(along <= 0 ? 0 : along / total.update);  // NaN goes on to the division
    }
  }
  return errors;
}

void expect_same_network(const ParametersView& a, const ParametersView& b) {
  if (a.widths != b.widths) throw std::invalid_argument("update_errors: parameters of different networks");
}

// Median of errors; infinite ones take part as the largest, a NaN makes it NaN.
double median_of_errors(std::vector<double> errors) {
  if (errors.empty()) throw std::invalid_argument("verification: no errors to judge");
  for (double error : errors) {
    if (std::isnan(error)) return error;
  }
  std::sort(errors.begin(), errors.end());
  const std::size_t half = errors.size() / 2;
  return errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2;
}

double largest_error(std::span<const double> errors) {
  double largest = 0;
  for (double error : errors) {
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
  }
  return largest;
}

}  // namespace

std::vector<double> update_errors(const ParametersView& start, const ParametersView& trained,
                                  const ParametersView& oracle_update) {
  expect_same_network(start, trained);
  expect_same_network(start, oracle_update);
  const std::span<const float> update = oracle_update.flat;
  return errors_by_tensor(start, trained, [update](std::int64_t i) { return static_cast<double>(update[i]); })
      .distance;
}

StepErrors compare_step(std::int64_t step, const ParametersView& start, const ParametersView& trained,
                        const ParametersView& oracle_update) {
  expect_same_network(start, trained);
  expect_same_network(start, oracle_update);
  const std::span<const float> update = oracle_update.flat;
  TensorErrors errors =
      errors_by_tensor(start, trained, [update](std::int64_t i) { return static_cast<double>(update[i]); });
  return {step, std::move(errors.distance), std::move(errors.scale)};
}

StepErrors compare_step(std::int64_t step, const Optimizer& optimizer, const StateView& start,
                        const StateView& trained, const StateView& oracle_update) {
  const std::size_t slots = start.slots.size();
  if (trained.slots.size() != slots || oracle_update.slots.size() != slots ||
      slots != static_cast<std::size_t>(optimizer.slots()))
    throw std::invalid_argument("compare_step: states of different optimizers");
  if (slots == 0) return compare_step(step, start.parameters, trained.parameters, oracle_update.parameters);
  StepErrors errors{.step = step, .errors = {}, .scale_errors = {}};
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const StepErrors one =
        compare_step(step, start.slots[slot], trained.slots[slot], oracle_update.slots[slot]);
    errors.errors.insert(errors.errors.end(), one.errors.begin(), one.errors.end());
    errors.scale_errors.insert(errors.scale_errors.end(), one.scale_errors.begin(), one.scale_errors.end());
  }
  const std::span<const float> before = start.parameters.flat, first = trained.slots.front().flat,
                               second = trained.slots.back().flat;
  errors.rule_errors =
      errors_by_tensor(start.parameters, trained.parameters, [&](std::int64_t i) {
        return rules::increment(optimizer, static_cast<double>(step), before[i], first[i], second[i]);
      }).distance;
  return errors;
}

std::vector<double> update_errors_from_end(const ParametersView& start, const ParametersView& trained,
                                           const ParametersView& oracle_end) {
  expect_same_network(start, trained);
  expect_same_network(start, oracle_end);
  const std::span<const float> before = start.flat, end = oracle_end.flat;
  return errors_by_tensor(start, trained,
                          [before, end](std::int64_t i) {
                            return static_cast<double>(end[i]) - static_cast<double>(before[i]);
                          })
      .distance;
}

double depth_factor(int hidden_layers, Precision precision) {
  if (precision == Precision::kFp32 || hidden_layers <= 3) return 1;
  const double layers = (hidden_layers - 1) / 2.0;
  return precision == Precision::kBf16 ? std::min(layers, 5.0) : std::min(std::sqrt(layers), 2.0);
}

StepBounds step_bounds(const Workload& workload, Contract contract, Precision precision) {
  if (contract == Contract::kLibrary) return {.median = 6e-2, .each = kInfinity, .scale = 8e-3};
  if (contract == Contract::kAutocast)
    return {.median = precision == Precision::kBf16 ? 1e-1 : 3e-2, .each = kInfinity, .scale = 5e-3};
  std::int64_t hidden = 0;
  int narrowest = kMaxWidth;
  for (int layer = 1; layer < workload.layers(); ++layer) {
    hidden += workload.model.widths[static_cast<std::size_t>(layer)];
    narrowest = std::min(narrowest, workload.model.widths[static_cast<std::size_t>(layer)]);
  }
  const bool few = hidden * workload.batch_size <= kFewActivations;
  const double flip = std::sqrt(2.0 / (static_cast<double>(workload.batch_size) * narrowest));
  const double median =
      precision == Precision::kFp32 || few ? 1e-3 : 2e-2 * depth_factor(workload.layers() - 1, precision);
  return {.median = median,
          .each = std::max({5e-2, 1.5 * median, std::min(6 * flip, 0.5), 2 * flip}),
          .scale = 2e-3};
}

namespace {

struct Compared {
  std::string tensor;
  double factor;  ///< of its bounds
};

// One check of a tensor over the steps; `values(step)` are the step's errors of all tensors.
template <typename Values>
Check over_steps(const std::string& name, const std::string& tensor_name, std::size_t tensor,
                 std::size_t tensors, std::span<const StepErrors> steps, double median_bound,
                 double each_bound, const Values& values) {
  Check check{.name = name, .tensor = tensor_name, .steps = {}};
  std::vector<double> errors;
  for (const StepErrors& step : steps) {
    if (values(step).size() != tensors) {
      throw std::invalid_argument(name + ": step " + std::to_string(step.step) + " has " +
                                  std::to_string(values(step).size()) + " errors, expected " +
                                  std::to_string(tensors));
    }
    check.steps.push_back(step.step);
    errors.push_back(values(step)[tensor]);
  }
  check.error = median_of_errors(errors);
  check.worst = largest_error(errors);
  check.bound = median_bound;
  check.passed = check.error <= median_bound && std::isfinite(check.worst) && check.worst <= each_bound;
  return check;
}

}  // namespace

std::vector<Check> step_update_checks(const Workload& workload, std::span<const StepErrors> steps,
                                      Contract contract, Precision precision) {
  if (steps.empty()) throw std::invalid_argument("step_update_checks: no steps");
  const std::vector<TensorRange> ranges = tensor_ranges(workload.model.widths);
  const StepBounds bounds = step_bounds(workload, contract, precision);
  std::vector<Compared> compared;
  const std::vector<std::string> slots = slot_names(workload.optimizer);
  for (const std::string& slot : slots)
    for (const TensorRange& range : ranges)
      compared.push_back({range.name + " " + slot, slot == "exp_avg_sq" ? 2.0 : 1.0});
  if (slots.empty())
    for (const TensorRange& range : ranges) compared.push_back({range.name, 1.0});
  std::vector<Check> checks;
  for (std::size_t tensor = 0; tensor < compared.size(); ++tensor) {
    const auto& [name, factor] = compared[tensor];
    checks.push_back(over_steps("step_update", name, tensor, compared.size(), steps, factor * bounds.median,
                                factor * bounds.each,
                                [](const StepErrors& step) { return std::span(step.errors); }));
    checks.push_back(over_steps("step_scale", name, tensor, compared.size(), steps, factor * bounds.scale,
                                kInfinity,
                                [](const StepErrors& step) { return std::span(step.scale_errors); }));
  }
  for (std::size_t tensor = 0; !slots.empty() && tensor < ranges.size(); ++tensor)
    checks.push_back(over_steps("update_rule", ranges[tensor].name, tensor, ranges.size(), steps, kRuleBound,
                                kRuleBound,
                                [](const StepErrors& step) { return std::span(step.rule_errors); }));
  return checks;
}

Check ten_steps_check(std::span<const double> tensor_errors) {
  Check check{.name = "ten_steps", .tensor = {}, .steps = {}};
  for (std::int64_t step = 0; step < kFreeSteps; ++step) check.steps.push_back(step);
  check.error = median_of_errors({tensor_errors.begin(), tensor_errors.end()});
  check.worst = largest_error(tensor_errors);
  check.bound = kTenStepsBound;
  check.passed = check.error <= check.bound && std::isfinite(check.worst);
  return check;
}

Check losses_finite_check(std::span<const float> losses, double highest) {
  if (losses.empty()) throw std::invalid_argument("losses_finite_check: no losses");
  Check check{.name = "losses_finite", .tensor = {}, .steps = {}};
  for (float loss : losses) {
    // fp32 cross-entropy of a sure prediction can round to just below zero.
    const bool good = std::isfinite(loss) && loss >= -1e-5f && static_cast<double>(loss) <= highest;
    check.error += good ? 0 : 1;
  }
  check.worst = check.error;
  check.passed = check.error == 0;
  return check;
}

Check curve_check(std::span<const double> last_means, std::span<const double> reference_last_means) {
  if (last_means.empty() || last_means.size() != reference_last_means.size()) {
    throw std::invalid_argument("curve_check: " + std::to_string(last_means.size()) + " curves against " +
                                std::to_string(reference_last_means.size()) +
                                ", expected as many and at least one");
  }
  std::vector<double> errors;
  for (std::size_t i = 0; i < last_means.size(); ++i) {
    const double difference = std::abs(last_means[i] - reference_last_means[i]);
    errors.push_back(difference == 0 ? 0 : difference / reference_last_means[i]);
  }
  Check check{.name = "curve", .tensor = {}, .steps = {}};
  check.error = median_of_errors(errors);
  check.worst = largest_error(errors);
  check.bound = kCurveBound;
  check.passed = check.error <= check.bound;
  return check;
}

Verification judge(std::vector<Check> checks) {
  Verification verification{.verdict = Verdict::kNotRun, .checks = std::move(checks)};
  if (!verification.checks.empty()) {
    const bool passed = std::all_of(verification.checks.begin(), verification.checks.end(),
                                    [](const Check& check) { return check.passed; });
    verification.verdict = passed ? Verdict::kPass : Verdict::kFail;
  }
  return verification;
}

std::string failure_message(const Verification& verification) {
  const Check* worst = nullptr;
  double worst_ratio = 0;
  for (const Check& check : verification.checks) {
    if (check.passed) continue;
    const double ratio = std::isfinite(check.error) ? check.error / check.bound : kInfinity;
    if (worst == nullptr || ratio > worst_ratio) {
      worst = &check;
      worst_ratio = ratio;
    }
  }
  if (worst == nullptr) return {};
  char text[200];
  if (worst->name == "losses_finite") {
    std::snprintf(text, sizeof text, "%.0f losses are not finite or out of range", worst->error);
  } else if (worst->name == "curve") {
    std::snprintf(text, sizeof text, "the last losses are %.1e off the reference's (at most %.1e)",
                  worst->error, worst->bound);
  } else {
    const std::string what = worst->name == "ten_steps"     ? "ten free steps are"
                             : worst->name == "step_scale"  ? worst->tensor + "'s scale is"
                             : worst->name == "update_rule" ? worst->tensor + ", by its own slots, is"
                                                            : worst->tensor + " is";
    const bool by_median = !(worst->error <= worst->bound);
    std::snprintf(text, sizeof text, "%s %.1e off the oracle's update in the %s (median at most %.1e)",
                  what.c_str(), by_median ? worst->error : worst->worst, by_median ? "median" : "worst step",
                  worst->bound);
  }
  return text;
}

}  // namespace headroom
