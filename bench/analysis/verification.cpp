// Norms of updates and the checks made of them.
#include "analysis/verification.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "core/parallel.h"
#include "core/training_rules.h"
#include "oracle/gradient.h"
#include "oracle/oracle.h"

namespace headroom {
namespace {

constexpr double kStorage = 0x1p-24;  // half a unit in the last place of fp32
// Added to a value's size: what may be flushed to zero (2^-126) counts as rounded.
constexpr double kSmallest = 0x1p-102;
constexpr double kNoBound = 1e6;  // files hold finite numbers only
constexpr double kCurveBound = 5e-3;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct SquaredNorms {
  double difference = 0, update = 0, stored = 0;  // squares
  double along = 0;                               // difference times the oracle's update
  double rounding = 0;                            // squares of what is stored times the oracle's update
  double along_start = 0, start = 0, start_rounding = 0;  // the same of the start

  SquaredNorms& operator+=(const SquaredNorms& other) {
    difference += other.difference;
    update += other.update;
    stored += other.stored;
    along += other.along;
    rounding += other.rounding;
    along_start += other.along_start;
    start += other.start;
    start_rounding += other.start_rounding;
    return *this;
  }
};

/// Elements whose terms are made side by side, before they are added one after the other.
constexpr std::int64_t kTerms = 8;
/// Adds term(0) to term(kTerms - 1), in this order. They are worked out side by side.
template <typename Term>
void add(double& sum, const Term& term) {
  double terms[kTerms];
  for (std::int64_t k = 0; k < kTerms; ++k) terms[k] = term(k);
  for (const double one : terms) sum += one;
}

// `reference(i)` is the oracle's update of element i. Partial sums of fixed pieces are added in order.
template <typename Reference>
std::vector<SquaredNorms> norms_by_tensor(const ParametersView& start, const ParametersView& trained,
                                          const Reference& reference) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 18;
  const std::span<const float> before = start.flat, after = trained.flat;
  std::vector<SquaredNorms> norms;
  for (const TensorRange& range : tensor_ranges(start.widths)) {
    const auto norms_between = [before, after, reference](std::int64_t begin, std::int64_t end) {
      SquaredNorms sums;
      std::int64_t i = begin;
      for (; i + kTerms <= end; i += kTerms) {
        double difference[kTerms], stored[kTerms], value[kTerms], expected[kTerms];
        for (std::int64_t k = 0; k < kTerms; ++k) {
          value[k] = before[i + k];
          expected[k] = reference(i + k);
          stored[k] = value[k] + expected[k];
          difference[k] = after[i + k] - stored[k];
        }
        add(sums.difference, [&](std::int64_t k) { return difference[k] * difference[k]; });
        add(sums.update, [&](std::int64_t k) { return expected[k] * expected[k]; });
        add(sums.along, [&](std::int64_t k) { return difference[k] * expected[k]; });
        add(sums.along_start, [&](std::int64_t k) { return difference[k] * value[k]; });
        add(sums.start, [&](std::int64_t k) { return value[k] * value[k]; });
        double size[kTerms];
        for (std::int64_t k = 0; k < kTerms; ++k) size[k] = std::abs(stored[k]) + kSmallest;
        add(sums.stored, [&](std::int64_t k) { return size[k] * size[k]; });
        add(sums.rounding, [&](std::int64_t k) { return size[k] * expected[k] * size[k] * expected[k]; });
        add(sums.start_rounding, [&](std::int64_t k) { return size[k] * value[k] * size[k] * value[k]; });
      }
      for (; i < end; ++i) {
        const double value = before[i], expected = reference(i);
        const double stored = value + expected, difference = after[i] - stored;
        const double size = std::abs(stored) + kSmallest;
        sums += {.difference = difference * difference,
                 .update = expected * expected,
                 .stored = size * size,
                 .along = difference * expected,
                 .rounding = size * expected * size * expected,
                 .along_start = difference * value,
                 .start = value * value,
                 .start_rounding = size * value * size * value};
      }
      return sums;
    };
    if (range.size <= kPiece) {
      norms.push_back(norms_between(range.begin, range.begin + range.size));
      continue;
    }
    std::vector<SquaredNorms> pieces(static_cast<std::size_t>((range.size + kPiece - 1) / kPiece));
    parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t piece, std::int64_t) {
      const std::int64_t begin = range.begin + piece * kPiece;
      pieces[static_cast<std::size_t>(piece)] =
          norms_between(begin, std::min(begin + kPiece, range.begin + range.size));
    });
    SquaredNorms total;
    for (const SquaredNorms& piece : pieces) total += piece;
    norms.push_back(total);
  }
  return norms;
}

/// `roundings`: how many values are rounded to fp32 on the way to the one that is stored.
double error_of(const SquaredNorms& norms, double roundings, double spread) {
  if (!std::isfinite(norms.difference)) return std::numeric_limits<double>::quiet_NaN();
  const double excess = std::sqrt(norms.difference) - roundings * kStorage * std::sqrt(norms.stored);
  if (excess <= 0) return 0;
  if (norms.update > 0) return excess / std::sqrt(norms.update);
  return excess <= spread ? 0 : kInfinity;
}

template <typename Reference>
std::vector<double> errors_by_tensor(const ParametersView& start, const ParametersView& trained,
                                     double roundings, const Reference& reference) {
  std::vector<double> errors;
  for (const SquaredNorms& norms : norms_by_tensor(start, trained, reference))
    errors.push_back(error_of(norms, roundings, 0));
  return errors;
}

TensorStep tensor_step(const SquaredNorms& norms, double roundings, double spread) {
  TensorStep step;
  step.error = error_of(norms, roundings, spread);
  if (!(norms.update > 0)) {
    step.storage = step.scale_storage = kInfinity;
    return step;
  }
  const double update = std::sqrt(norms.update);
  step.scale = norms.along / norms.update;
  step.storage = kStorage * std::sqrt(norms.stored) / update;
  step.scale_storage = roundings * kStorage * std::sqrt(norms.rounding) / norms.update;
  step.spread = spread / update;
  if (norms.start > 0) {
    step.decay = norms.along_start / norms.start;
    step.decay_storage = roundings * kStorage * std::sqrt(norms.start_rounding) / norms.start;
  }
  return step;
}

/// Of tensor `tensor` the largest distance among the copies; infinite if one is not finite.
double largest_distance(const Copies& copies, std::size_t tensor) {
  double largest = 0;
  for (std::size_t place = tensor; place < copies.distances.size(); place += copies.tensors()) {
    const double distance = copies.distances[place];
    largest = std::isfinite(distance) ? std::max(largest, distance) : kInfinity;
  }
  return largest;
}

/// Of each tensor the size of the largest gradient that the oracle's update came from.
std::vector<double> largest_gradients(const Optimizer& optimizer, const std::vector<TensorRange>& ranges,
                                      const StateView& start, const StateView& update) {
  const bool has_slots = optimizer.slots() > 0;
  const std::span<const float> added = has_slots ? update.slots[0].flat : update.parameters.flat,
                               before = has_slots ? start.slots[0].flat : start.parameters.flat;
  // Of the update -rate g, (momentum - 1) v + g, or (1 - beta1) (g - m).
  const double factor = !has_slots                                ? 1 / optimizer.learning_rate
                        : optimizer.kind == Optimizer::Kind::kSgd ? 1
                                                                  : 1 / (1 - optimizer.beta1);
  const double kept = !has_slots ? 0 : optimizer.kind == Optimizer::Kind::kSgd ? 1 - optimizer.momentum : 1;
  std::vector<double> largest;
  for (const TensorRange& range : ranges) {
    double most = 0;
    for (std::int64_t i = range.begin; i < range.begin + range.size; ++i)
      most = std::max(most, std::abs(factor * added[i] + kept * before[i]));
    largest.push_back(most);
  }
  return largest;
}

/// What becomes of a slot (or of the parameters, where there are none) if a gradient of this size is rounded the other way.
double switched_rounding(const Optimizer& optimizer, std::size_t slot, double gradient,
                         const GradientFormat& format) {
  const double unit =
      std::max(format.smallest, gradient == 0 ? 0 : std::ldexp(1.0, std::ilogb(gradient) - format.bits));
  if (optimizer.slots() == 0) return optimizer.learning_rate * unit;
  if (optimizer.slots() == 1) return unit;
  if (slot == 0) return (1 - optimizer.beta1) * unit;
  return (1 - optimizer.beta2) * (2 * gradient + unit) * unit;
}

void expect_same_network(const ParametersView& a, const ParametersView& b) {
  if (a.widths != b.widths) throw std::invalid_argument("verification: parameters of different networks");
}

// Median of errors; infinite ones take part as the largest, a NaN makes it NaN. Moves them.
double median_of_errors(std::span<double> errors) {
  if (errors.empty()) throw std::invalid_argument("verification: no errors to judge");
  for (double error : errors) {
    if (std::isnan(error)) return error;
  }
  const auto half = errors.begin() + std::ssize(errors) / 2;
  std::nth_element(errors.begin(), half, errors.end());
  return errors.size() % 2 == 1 ? *half : (*std::max_element(errors.begin(), half) + *half) / 2;
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

std::vector<double> update_errors_from_end(const ParametersView& start, const ParametersView& trained,
                                           const ParametersView& oracle_end) {
  expect_same_network(start, trained);
  expect_same_network(start, oracle_end);
  const std::span<const float> before = start.flat, end = oracle_end.flat;
  return errors_by_tensor(start, trained, 1, [before, end](std::int64_t i) {
    return static_cast<double>(end[i]) - static_cast<double>(before[i]);
  });
}

GradientFormat gradient_format(Precision precision, Contract contract, int batch_size) {
  if (contract != Contract::kAutocast) return {};
  if (precision == Precision::kBf16) return {.bits = 7, .smallest = 0x1p-133};
  if (precision != Precision::kFp16) return {};
  return {.bits = 10, .smallest = 0x1p-24 / roundings_of(precision, contract, batch_size).loss_scale};
}

StepErrors compare_step(std::int64_t step, const Optimizer& optimizer, const StateView& start,
                        const StateView& trained, const StateView& oracle_update, Copies copies,
                        const GradientFormat& format) {
  const std::size_t slots = start.slots.size();
  if (trained.slots.size() != slots || oracle_update.slots.size() != slots ||
      slots != static_cast<std::size_t>(optimizer.slots()))
    throw std::invalid_argument("compare_step: states of different optimizers");
  expect_same_network(start.parameters, trained.parameters);
  expect_same_network(start.parameters, oracle_update.parameters);
  StepErrors errors{.step = step,
                    .tensors = {},
                    .copies = std::move(copies),
                    .rule_errors = {},
                    .rounds_gradients = format.bits != 0};
  const std::vector<TensorRange> ranges = tensor_ranges(start.parameters.widths);
  const std::vector<double> largest =
      format.bits == 0 ? std::vector<double>{} : largest_gradients(optimizer, ranges, start, oracle_update);
  const auto compare = [&](const ParametersView& before, const ParametersView& after,
                           const ParametersView& reference, double roundings) {
    const std::span<const float> update = reference.flat;
    std::size_t tensor = 0;
    for (const SquaredNorms& norms : norms_by_tensor(
             before, after, [update](std::int64_t i) { return static_cast<double>(update[i]); })) {
      const std::size_t place = errors.tensors.size();
      const double switched =
          format.bits == 0 ? 0
                           : switched_rounding(optimizer, place / ranges.size(), largest[tensor++], format);
      errors.tensors.push_back(
          tensor_step(norms, roundings, std::max(switched, largest_distance(errors.copies, place))));
    }
  };
  if (slots == 0) {
    compare(start.parameters, trained.parameters, oracle_update.parameters, 1);
  } else {
    // What is kept of the slot, what is added, and their sum are each rounded.
    for (std::size_t slot = 0; slot < slots; ++slot)
      compare(start.slots[slot], trained.slots[slot], oracle_update.slots[slot], 3);
    const std::span<const float> before = start.parameters.flat, first = trained.slots.front().flat,
                                 second = trained.slots.back().flat;
    // AdamW rounds how much of a parameter is kept, what is kept, and the sum.
    const double roundings = optimizer.kind == Optimizer::Kind::kAdamW ? 3 : 2;
    const rules::OptimizerStep rule = rules::at_step(optimizer, static_cast<double>(step));
    errors.rule_errors = errors_by_tensor(
        start.parameters, trained.parameters, roundings,
        [=](std::int64_t i) { return rules::increment(rule, before[i], first[i], second[i]); });
  }
  if (errors.copies.count > 0 && errors.copies.tensors() != errors.tensors.size())
    throw std::invalid_argument("compare_step: copies of another network");
  return errors;
}

namespace {

std::vector<std::int64_t> numbers_of(std::span<const StepErrors> steps) {
  std::vector<std::int64_t> numbers;
  for (const StepErrors& step : steps) numbers.push_back(step.step);
  return numbers;
}

double distance_bound(const TensorStep& step, const BoundRule& rule, Precision precision) {
  return std::clamp(rule.spreads * step.spread,
                    precision == Precision::kFp32 ? rule.least_fp32 : rule.least_other, kNoBound);
}

/// What fp32 makes of the correction 1 - beta^t, by its own rounding and by those of beta and its power.
double correction_rounding(double beta, double t) {
  const double power = std::pow(beta, t);
  return kStorage * (1 + t * power) / (1 - power);
}
double rule_bound(const Optimizer& optimizer, std::int64_t step, const BoundRule& rule) {
  if (optimizer.slots() < 2) return rule.rule;
  const double t = static_cast<double>(step) + 1;
  return rule.rule + correction_rounding(optimizer.beta1, t) + correction_rounding(optimizer.beta2, t) / 2;
}

/// Along what a scale is measured: the oracle's update, or the slot before the step.
struct Direction {
  double TensorStep::* scale;
  double TensorStep::* storage;
  std::vector<float> Copies::* of_copies;
  double BoundRule::* least;
};
constexpr Direction kAlongUpdate = {&TensorStep::scale, &TensorStep::scale_storage, &Copies::scales,
                                    &BoundRule::least_scale};
constexpr Direction kAlongStart = {&TensorStep::decay, &TensorStep::decay_storage, &Copies::decays,
                                   &BoundRule::least_decay};

/// One (step, tensor) whose scale counts.
struct ScalePlace {
  std::size_t step, tensor;
  double spread;  ///< the largest scale among the copies, and what storage makes of it
};

/// The median of the scales at `places`, and the largest median among the copies; with `size_spreads` that of the sizes of their scales,
/// too.
Check scale_check(std::span<const StepErrors> steps, std::span<const ScalePlace> places, std::string tensor,
                  const Direction& direction, const BoundRule& rule, double size_spreads = 0) {
  Check check{.name = "step_scale", .tensor = std::move(tensor), .steps = numbers_of(steps)};
  check.bound = rule.*direction.least;
  check.passed = true;
  if (places.empty()) return check;
  std::vector<double> scales(places.size());
  const auto median_of = [&](const auto& scale) {
    for (std::size_t i = 0; i < places.size(); ++i)
      scales[i] = scale(steps[places[i].step], places[i].tensor);
    return median_of_errors(scales);
  };
  check.error = std::abs(median_of(
      [&](const StepErrors& step, std::size_t place) { return step.tensors[place].*direction.scale; }));
  std::vector<double> sizes;
  for (const ScalePlace& place : places)
    sizes.push_back(std::abs(steps[place.step].tensors[place.tensor].*direction.scale));
  check.worst = largest_error(sizes);
  for (int copy = 0; copy < steps.front().copies.count; ++copy) {
    const auto scale = [&](const StepErrors& step, std::size_t place) {
      return double{
          (step.copies.*direction.of_copies)[static_cast<std::size_t>(copy) * step.tensors.size() + place]};
    };
    const double median = std::abs(median_of(scale));
    const double size = size_spreads == 0 ? 0 : median_of([&](const StepErrors& step, std::size_t place) {
      return std::abs(scale(step, place));
    });
    const double bound = std::max(rule.scale_spreads * median, size_spreads * size);
    check.bound = std::max(check.bound, std::isfinite(bound) ? std::min(bound, kNoBound) : kNoBound);
  }
  check.passed = check.error <= check.bound && std::isfinite(check.worst);
  return check;
}

std::vector<ScalePlace> scale_places(std::span<const StepErrors> steps, std::size_t tensor,
                                     const Direction& direction, Precision precision, const BoundRule& rule) {
  std::vector<ScalePlace> places;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    const TensorStep& one = steps[step].tensors[tensor];
    if (!(one.*direction.storage <= rule.evident_scale_storage)) continue;
    // Where a copy may be nearly anywhere, what it is along the update says nothing of correct code, which errs the same way each step.
    if (!(distance_bound(one, rule, precision) <= rule.evident_bound)) continue;
    double spread = one.*direction.storage;
    const std::vector<float>& of_copies = steps[step].copies.*direction.of_copies;
    for (std::size_t place = tensor; place < of_copies.size(); place += steps[step].tensors.size()) {
      const double size = std::abs(of_copies[place]);
      spread = std::isfinite(size) ? std::max(spread, size) : kInfinity;
    }
    places.push_back({step, tensor, spread});
  }
  return places;
}

/// Of all tensors together, where the copies differ least.
Check common_scale_check(std::span<const StepErrors> steps, std::vector<ScalePlace> places,
                         std::string tensor, const Direction& direction, const BoundRule& rule) {
  std::stable_sort(places.begin(), places.end(),
                   [](const ScalePlace& a, const ScalePlace& b) { return a.spread < b.spread; });
  places.resize((places.size() + 1) / 2);
  return scale_check(steps, places, std::move(tensor), direction, rule);
}

Check update_check(std::span<const StepErrors> steps, std::size_t tensor, std::string name,
                   Precision precision, const BoundRule& rule) {
  Check check{.name = "step_update", .tensor = std::move(name), .steps = numbers_of(steps)};
  check.passed = true;
  double nearest = -1;
  std::vector<double> errors;
  for (const StepErrors& step : steps) {
    const TensorStep& one = step.tensors[tensor];
    const double bound = distance_bound(one, rule, precision);
    errors.push_back(one.error);
    if (!(one.error <= bound) || !std::isfinite(one.error)) check.passed = false;
    const double share = std::isnan(one.error) ? kInfinity : one.error / bound;
    if (share > nearest) {
      nearest = share;
      check.error = one.error;
      check.bound = bound;
    }
  }
  check.worst = largest_error(errors);
  return check;
}

}  // namespace

bool is_evidence(const TensorStep& step, Precision precision, const BoundRule& rule) {
  return rule.evident_storage * step.storage <= 1 &&
         distance_bound(step, rule, precision) <= rule.evident_bound;
}

std::vector<Check> step_update_checks(const Workload& workload, std::span<const StepErrors> steps,
                                      Precision precision, const BoundRule& rule) {
  if (steps.empty()) throw std::invalid_argument("step_update_checks: no steps");
  const std::vector<TensorRange> ranges = tensor_ranges(workload.model.widths);
  const std::vector<std::string> slots = slot_names(workload.optimizer);
  std::vector<std::string> names;
  for (const std::string& slot : slots)
    for (const TensorRange& range : ranges) names.push_back(range.name + " " + slot);
  if (slots.empty())
    for (const TensorRange& range : ranges) names.push_back(range.name);
  for (const StepErrors& step : steps)
    if (step.tensors.size() != names.size())
      throw std::invalid_argument("step_update_checks: step " + std::to_string(step.step) + " has " +
                                  std::to_string(step.tensors.size()) + " tensors, expected " +
                                  std::to_string(names.size()));
  std::vector<Check> checks;
  std::vector<ScalePlace> all_places, decay_places;
  const bool has_momentum = slots.size() == 1;
  for (std::size_t tensor = 0; tensor < names.size(); ++tensor) {
    checks.push_back(update_check(steps, tensor, names[tensor], precision, rule));
    const std::vector<ScalePlace> places = scale_places(steps, tensor, kAlongUpdate, precision, rule);
    checks.push_back(scale_check(steps, places, names[tensor], kAlongUpdate, rule,
                                 steps.front().rounds_gradients ? rule.scale_size_spreads : 0));
    all_places.insert(all_places.end(), places.begin(), places.end());
    if (!has_momentum) continue;
    const std::vector<ScalePlace> decays = scale_places(steps, tensor, kAlongStart, precision, rule);
    decay_places.insert(decay_places.end(), decays.begin(), decays.end());
  }
  const Check common_scale = common_scale_check(steps, all_places, "", kAlongUpdate, rule);
  const Check momentum = common_scale_check(steps, decay_places, "momentum", kAlongStart, rule);
  checks.push_back(common_scale);
  if (has_momentum) checks.push_back(momentum);
  for (std::size_t tensor = 0; !slots.empty() && tensor < ranges.size(); ++tensor) {
    Check check{.name = "update_rule", .tensor = ranges[tensor].name, .steps = numbers_of(steps)};
    check.passed = true;
    std::vector<double> errors;
    double nearest = -1;
    for (const StepErrors& step : steps) {
      const double error = step.rule_errors.at(tensor),
                   bound = rule_bound(workload.optimizer, step.step, rule);
      errors.push_back(error);
      if (!(error <= bound)) check.passed = false;
      const double share = std::isnan(error) ? kInfinity : error / bound;
      if (share <= nearest) continue;
      nearest = share;
      check.error = error;
      check.bound = bound;
    }
    check.worst = largest_error(errors);
    checks.push_back(check);
  }

  std::size_t without = 0, weights = 0;
  for (std::size_t tensor = 0; tensor < names.size(); tensor += 2, ++weights)
    without += std::none_of(steps.begin(), steps.end(), [&](const StepErrors& step) {
      return is_evidence(step.tensors[tensor], precision, rule);
    });
  Check evidence{.name = "evidence", .tensor = {}, .steps = numbers_of(steps)};
  evidence.error = evidence.worst = static_cast<double>(without) / static_cast<double>(weights);
  evidence.bound = 0.5;
  evidence.passed = evidence.error <= evidence.bound;
  checks.push_back(evidence);
  evidence.tensor = "scale";
  evidence.error = evidence.worst = all_places.empty() ? kInfinity : common_scale.bound;
  evidence.bound = slots.empty() ? rule.evident_scale : rule.evident_slot_scale;
  evidence.passed = evidence.error <= evidence.bound;
  checks.push_back(evidence);
  if (has_momentum && steps.back().step > 0) {
    evidence.tensor = "momentum";
    evidence.error = evidence.worst = decay_places.empty() ? kInfinity : momentum.bound;
    evidence.bound = std::max(rule.evident_decay * workload.optimizer.momentum, rule.least_evident_decay);
    evidence.passed = evidence.error <= evidence.bound;
    checks.push_back(evidence);
  }
  return checks;
}

Check probe_check(const Workload& workload, const StepErrors& errors, Precision precision,
                  const BoundRule& rule) {
  Check probe{.name = "probe", .tensor = {}, .steps = {errors.step}};
  probe.passed = true;
  double nearest = -1;
  for (const Check& check : step_update_checks(workload, std::span(&errors, 1), precision, rule)) {
    if (check.name != "step_update" && check.name != "update_rule") continue;
    probe.passed = probe.passed && check.passed;
    const double share = std::isnan(check.error) ? kInfinity : check.error / check.bound;
    if (share <= nearest) continue;
    nearest = share;
    probe.tensor = check.tensor;
    probe.error = probe.worst = check.error;
    probe.bound = check.bound;
  }
  return probe;
}

Check ten_steps_check(std::span<const double> tensor_errors, double spread, const BoundRule& rule) {
  Check check{.name = "ten_steps", .tensor = {}, .steps = {}};
  for (std::int64_t step = 0; step < kFreeSteps; ++step) check.steps.push_back(step);
  std::vector<double> errors(tensor_errors.begin(), tensor_errors.end());
  check.error = median_of_errors(errors);
  check.worst = largest_error(tensor_errors);
  check.bound = std::max(
      rule.ten_steps, std::isfinite(spread) ? std::min(rule.ten_steps_spreads * spread, kNoBound) : kNoBound);
  // Where most of what a copy moves stands still in the oracle, correct code may move it too.
  check.passed = !std::isnan(check.worst) && (check.error <= check.bound || std::isinf(spread));
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
  check.worst = largest_error(errors);
  check.error = median_of_errors(errors);
  check.bound = kCurveBound;
  check.passed = check.error <= check.bound;
  return check;
}

Verification judge(std::vector<Check> checks) {
  Verification verification{.verdict = Verdict::kNotRun, .checks = std::move(checks)};
  if (verification.checks.empty()) return verification;
  verification.verdict = Verdict::kPass;
  for (const Check& check : verification.checks) {
    if (check.passed) continue;
    if (check.name != "evidence") {
      verification.verdict = Verdict::kFail;
      break;
    }
    verification.verdict = Verdict::kCannotBeChecked;
  }
  return verification;
}

std::string failure_message(const Verification& verification) {
  if (verification.verdict == Verdict::kCannotBeChecked)
    return "nothing that the oracle's step adds stands out of the rounding of correct code";
  const Check* worst = nullptr;
  double worst_ratio = 0;
  for (const Check& check : verification.checks) {
    if (check.passed || check.name == "evidence") continue;
    const double ratio =
        std::isfinite(check.error) && std::isfinite(check.bound) ? check.error / check.bound : kInfinity;
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
    const std::string tensor = worst->tensor.empty() ? "the step" : worst->tensor;
    const std::string what = worst->name == "ten_steps"     ? "ten free steps are"
                             : worst->name == "step_scale"  ? tensor + "'s scale is"
                             : worst->name == "probe"       ? "the probe's " + tensor + " is"
                             : worst->name == "update_rule" ? tensor + ", by its own slots, is"
                                                            : tensor + " is";
    std::snprintf(text, sizeof text, "%s %.1e off the oracle's update (at most %.1e)", what.c_str(),
                  worst->error, worst->bound);
  }
  return text;
}

}  // namespace headroom
