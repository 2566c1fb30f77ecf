// Norms of updates and the checks made of them.
#include "analysis/verification.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "core/oracle.h"
#include "core/parallel.h"

namespace headroom {
namespace {

constexpr double kMasterRounding = 6e-8;  // half a unit of fp32, relative
constexpr double kTenStepsBound = 5e-2, kCurveBound = 5e-3;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct SquaredNorms {
  double difference = 0, update = 0, start = 0;
};

// `reference(i)` is the oracle's update of element i. Partial sums of fixed pieces are added in order.
template <typename Reference>
std::vector<double> errors_by_tensor(const Parameters& start, const Parameters& trained,
                                     const Reference& reference) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 18;
  const std::span<const float> before = start.flat(), after = trained.flat();
  std::vector<double> errors;
  for (const TensorRange& range : tensor_ranges(start.widths())) {
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
      }
      pieces[static_cast<std::size_t>(piece)] = norms;
    });
    SquaredNorms total;
    for (const SquaredNorms& piece : pieces) {
      total.difference += piece.difference;
      total.update += piece.update;
      total.start += piece.start;
    }
    const double excess = std::sqrt(total.difference) - kMasterRounding * std::sqrt(total.start);
    const double update = std::sqrt(total.update);
    if (excess <= 0) {
      errors.push_back(0);  // NaN goes on to the division
    } else {
      errors.push_back(update == 0 ? (std::isnan(excess) ? excess : kInfinity) : excess / update);
    }
  }
  return errors;
}

void expect_same_network(const Parameters& a, const Parameters& b) {
  if (a.widths() != b.widths())
    throw std::invalid_argument("update_errors: parameters of different networks");
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

std::vector<double> update_errors(const Parameters& start, const Parameters& trained,
                                  const Parameters& oracle_update) {
  expect_same_network(start, trained);
  expect_same_network(start, oracle_update);
  const std::span<const float> update = oracle_update.flat();
  return errors_by_tensor(start, trained,
                          [update](std::int64_t i) { return static_cast<double>(update[i]); });
}

std::vector<double> update_errors_from_end(const Parameters& start, const Parameters& trained,
                                           const Parameters& oracle_end) {
  expect_same_network(start, trained);
  expect_same_network(start, oracle_end);
  const std::span<const float> before = start.flat(), end = oracle_end.flat();
  return errors_by_tensor(start, trained, [before, end](std::int64_t i) {
    return static_cast<double>(end[i]) - static_cast<double>(before[i]);
  });
}

StepBounds step_bounds(Contract contract, Precision precision) {
  if (contract == Contract::kExact) return {.median = 1e-3, .each = 5e-2};
  const bool tight = contract == Contract::kAutocast && precision == Precision::kFp16;
  return {.median = tight ? 5e-3 : 3e-2, .each = kInfinity};
}

std::vector<Check> step_update_checks(const std::vector<int>& widths, std::span<const StepErrors> steps,
                                      Contract contract, Precision precision) {
  if (steps.empty()) throw std::invalid_argument("step_update_checks: no steps");
  const std::vector<TensorRange> ranges = tensor_ranges(widths);
  const StepBounds bounds = step_bounds(contract, precision);
  std::vector<Check> checks;
  for (std::size_t tensor = 0; tensor < ranges.size(); ++tensor) {
    Check check{.name = "step_update", .tensor = ranges[tensor].name, .steps = {}};
    std::vector<double> errors;
    for (const StepErrors& step : steps) {
      if (step.errors.size() != ranges.size()) {
        throw std::invalid_argument("step_update_checks: step " + std::to_string(step.step) + " has " +
                                    std::to_string(step.errors.size()) + " errors, expected " +
                                    std::to_string(ranges.size()));
      }
      check.steps.push_back(step.step);
      errors.push_back(step.errors[tensor]);
    }
    check.error = median_of_errors(errors);
    check.worst = largest_error(errors);
    check.bound = bounds.median;
    check.passed = check.error <= bounds.median && std::isfinite(check.worst) && check.worst <= bounds.each;
    checks.push_back(std::move(check));
  }
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
    const std::string what = worst->name == "ten_steps" ? "ten free steps are" : worst->tensor + " is";
    const bool by_median = !(worst->error <= worst->bound);
    std::snprintf(text, sizeof text, "%s %.1e off the oracle's update in the %s (median at most %.1e)",
                  what.c_str(), by_median ? worst->error : worst->worst, by_median ? "median" : "worst step",
                  worst->bound);
  }
  return text;
}

}  // namespace headroom
