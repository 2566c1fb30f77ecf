#include "bounds_simulation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "data/dataset.h"
#include "oracle/oracle.h"
#include "plain_trainer.h"

namespace headroom {
namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  int integer(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  double uniform(double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random_);
  }
  double logarithmic(double least, double most) { return std::exp(uniform(std::log(least), std::log(most))); }
  int width(int most) { return std::min(most, static_cast<int>(logarithmic(1, most + 1))); }
  bool chance(double probability) { return uniform(0, 1) < probability; }
  double normal() { return std::normal_distribution<double>()(random_); }
  std::uint64_t bits() { return random_(); }

 private:
  std::mt19937_64 random_;
};

struct Network {
  Workload workload;
  Dataset data;
  Parameters initial;
  std::vector<std::int64_t> steps;
};

Optimizer drawn_optimizer(const SimulatedClass& simulated, Draw& draw) {
  Optimizer optimizer{.kind = simulated.optimizer};
  if (optimizer.kind == Optimizer::Kind::kSgd) {
    optimizer.learning_rate = draw.logarithmic(1e-3, 1e-1);
    if (simulated.momentum) optimizer.momentum = draw.chance(0.5) ? 0.9 : draw.uniform(0.5, 0.99);
    return optimizer;
  }
  optimizer.learning_rate = draw.logarithmic(1e-4, 1e-2);
  if (draw.chance(0.25)) {
    optimizer.beta1 = draw.uniform(0.5, 0.95);
    optimizer.beta2 = draw.uniform(0.9, 0.9999);
  }
  if (optimizer.kind == Optimizer::Kind::kAdamW) optimizer.weight_decay = draw.logarithmic(1e-3, 1e-1);
  return optimizer;
}

Network drawn_network(const SimulatedClass& simulated, const SimulatedNetworks& networks, Draw& draw) {
  Network network;
  Workload& workload = network.workload;
  workload.model.activation = simulated.activation;
  workload.loss = simulated.loss;
  workload.optimizer = drawn_optimizer(simulated, draw);
  std::vector<int>& widths = workload.model.widths;
  if (networks.widths.empty()) {
    const int hidden = draw.integer(1, 5);
    for (int layer = 0; layer <= hidden + 1; ++layer) widths.push_back(draw.width(64));
    if (draw.chance(0.25)) widths.back() = 1;
    // A softmax of one class has no gradient.
    if (workload.loss == Loss::kCrossEntropy && widths.back() == 1) widths.back() = draw.integer(2, 10);
  } else {
    widths = networks.widths;
    if (workload.loss == Loss::kCrossEntropy && widths.back() == 1) widths.back() = 10;
  }
  workload.batch_size = networks.batch_size > 0 ? networks.batch_size : draw.width(64);
  workload.seed = draw.bits() >> 1;
  workload.name = default_name(workload);

  const int samples = workload.batch_size * draw.integer(2, 8), outputs = workload.outputs();
  const double zeros = draw.chance(0.5) ? draw.uniform(0, 0.8) : 0;
  Dataset& data = network.data;
  data.feature_count = workload.inputs();
  data.outputs = outputs;
  for (int i = 0; i < samples * data.feature_count; ++i)
    data.train_features.push_back(draw.chance(zeros) ? 0.0f : static_cast<float>(draw.uniform(0, 1)));
  const double offset = draw.uniform(-1, 1);
  for (int i = 0; i < samples * (workload.loss == Loss::kCrossEntropy ? 1 : outputs); ++i) {
    if (workload.loss == Loss::kCrossEntropy)
      data.train_labels.push_back(draw.integer(0, outputs - 1));
    else if (workload.loss == Loss::kMeanSquaredError)
      data.train_targets.push_back(static_cast<float>(offset + draw.normal()));
    else
      data.train_targets.push_back(draw.chance(0.5) ? 1.0f : 0.0f);
  }
  network.initial = initial_parameters(widths, workload.seed);
  if (draw.chance(0.25)) {  // dead units, or saturated ones
    for (int layer = 0; layer + 1 < workload.layers(); ++layer)
      for (float& bias : network.initial.bias(layer))
        if (draw.chance(0.3)) bias = -10;
  }
  // Some networks are checked early, some up to step 299, as the driver does.
  const std::int64_t last = networks.widths.empty() ? draw.integer(7, 299) : 7;
  for (const std::int64_t step : kCheckSteps) {
    const std::int64_t scaled = step * last / 299, least = std::ssize(network.steps);
    network.steps.push_back(std::max({scaled, least, network.steps.empty() ? 0 : network.steps.back() + 1}));
  }
  return network;
}

Arithmetic drawn_arithmetic(const SimulatedClass& simulated, Draw& draw) {
  using Order = Arithmetic::Order;
  Arithmetic arithmetic;
  arithmetic.order = std::vector{Order::kForward, Order::kBackward, Order::kShuffled,
                                 Order::kFourParts}[static_cast<std::size_t>(draw.integer(0, 3))];
  arithmetic.contract = simulated.contract;
  arithmetic.seed = draw.bits();
  if (simulated.precision != Precision::kFp32 && draw.chance(0.75))
    arithmetic.cut_every = 4 << draw.integer(0, 3);
  // Which products of a matrix and a vector a library makes by a kernel of their own is its choice.
  if (simulated.contract == Contract::kAutocast) arithmetic.leaves_product_of_one = draw.chance(0.25);
  if (simulated.contract == Contract::kAutocast && draw.chance(0.5)) {
    // As compiled: some roundings are left out, or all of them.
    const double share = draw.chance(0.5) ? 0.5 : 1;
    for (bool Arithmetic::* const leaves : Arithmetic::kLeftByCompilers)
      arithmetic.*leaves = draw.chance(share);
  }
  return arithmetic;
}

/// A fault shows in ten free steps if it moves half of the tensors by this much of their way. Where correct code may do so too it cannot
/// be checked.
constexpr double kVisibleFreeError = 0.3;

struct NamedFault {
  const char* name;
  Fault fault;
};

std::vector<NamedFault> drawn_faults(const Workload& workload, Draw& draw) {
  const Optimizer& optimizer = workload.optimizer;
  const int layers = workload.layers();
  const double off = draw.chance(0.5) ? 1.01 : 0.99;
  std::vector<NamedFault> faults = {
      {"learning rate", {.learning_rate_factor = off}},
      {"frozen layer", {.frozen_layer = draw.integer(0, layers - 1)}},
      {"missing bias update", {.layer_without_bias = draw.integer(0, layers - 1)}},
      {"shifted batches", {.batch_shift = 1}},
      {"sum for mean", {.sum_for_mean = true}},
      {"NaN", {.nan = true}},
  };
  if (optimizer.momentum != 0) faults.push_back({"momentum", {.momentum_factor = off}});
  if (optimizer.slots() == 2) {
    faults.push_back({"beta1", {.beta1_factor = off}});
    faults.push_back({"beta2", {.beta2_factor = 0.99}});
    faults.push_back({"no bias correction", {.without_bias_correction = true}});
    faults.push_back({"step number", {.step_offset = draw.chance(0.5) ? 1 : -1}});
    faults.push_back({"swapped slots", {.swapped_slots = true}});
  }
  if (optimizer.kind == Optimizer::Kind::kAdamW) {
    faults.push_back({"no weight decay", {.without_weight_decay = true}});
    faults.push_back({"coupled weight decay", {.coupled_weight_decay = true}});
  }
  return faults;
}

bool is_all_finite(const State& state) {
  const auto is_finite = [](const Parameters& parameters) {
    return std::ranges::all_of(parameters.flat(), [](float value) { return std::isfinite(value); });
  };
  return is_finite(state.parameters) && std::ranges::all_of(state.slots, is_finite);
}

/// Of each tensor, whether the two differ by more than the rounding of what is stored.
std::vector<bool> differing(const Parameters& correct, const Parameters& other) {
  std::vector<bool> differ;
  for (const TensorRange& range : tensor_ranges(correct.widths())) {
    double difference = 0, size = 0;
    for (std::int64_t i = range.begin; i < range.begin + range.size; ++i) {
      const double a = correct.flat()[i], b = other.flat()[i];
      difference += (a - b) * (a - b);
      size += a * a;
    }
    differ.push_back(!(std::sqrt(difference) <= 4 * 0x1p-24 * std::sqrt(size) + 0x1p-120));
  }
  return differ;
}

/// What of a fault can be seen at a step: nothing, only what correct code may do as well, or more.
enum class Sight { kInvisible, kNoEvidence, kVisible };
Sight sight(const State& correct, const State& other, const StepErrors& step, Precision precision,
            const BoundRule& rule) {
  Sight best = Sight::kInvisible;
  const auto look = [&](const std::vector<bool>& differ, const TensorStep* tensors) {
    for (std::size_t i = 0; i < differ.size(); ++i)
      if (differ[i])
        best = std::max(best, tensors == nullptr || is_evidence(tensors[i], precision, rule)
                                  ? Sight::kVisible
                                  : Sight::kNoEvidence);
  };
  const std::size_t tensors = tensor_ranges(correct.parameters.widths()).size();
  for (std::size_t slot = 0; slot < correct.slots.size(); ++slot)
    look(differing(correct.slots[slot], other.slots[slot]), &step.tensors[slot * tensors]);
  // With slots that are the same, what the parameters should be follows from them.
  if (best == Sight::kInvisible)
    look(differing(correct.parameters, other.parameters),
         correct.slots.empty() ? step.tensors.data() : nullptr);
  return best;
}

std::string worst_checks(const Verification& verification) {
  std::string text;
  double nearest = 0.3;  // of what passed
  for (const Check& check : verification.checks) {
    if (check.passed && !(check.error / check.bound > nearest)) continue;
    char one[200];
    std::snprintf(one, sizeof one, "; %s %s %.2e %s %.2e", check.name.c_str(), check.tensor.c_str(),
                  check.error, check.passed ? "<=" : ">", check.bound);
    text += one;
  }
  return text;
}

Counts simulate_one(const SimulatedClass& simulated, const SimulatedNetworks& networks, std::int64_t index) {
  Draw draw(networks.seed * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(index) * 1000003 +
            std::hash<std::string>{}(simulated.name()));
  const Network network = drawn_network(simulated, networks, draw);
  const Workload& workload = network.workload;
  const DatasetView data = network.data.train();
  const Arithmetic arithmetic = drawn_arithmetic(simulated, draw);
  const std::vector<NamedFault> faults = drawn_faults(workload, draw);
  bool is_finite = true;
  PlainGradient gradient_of(workload, simulated.precision, data, arithmetic);
  const GradientFormat format = gradient_format(simulated.precision, simulated.contract, workload.batch_size);
  BoundRule rule;
  if (networks.spreads > 0) rule.spreads = networks.spreads;

  std::vector<StepErrors> correct;
  std::vector<std::vector<StepErrors>> faulty(faults.size());
  std::vector<Sight> seen(faults.size(), Sight::kInvisible);
  Parameters free_end;
  State right, wrong;
  const std::vector<double> free_spreads = follow_reference(
      workload, simulated.precision, true, data, network.initial, network.steps,
      [&](const ReferencePoint& point) {
        const std::vector<float> gradient = gradient_of(point.start.parameters, point.step);
        right = point.start;
        descend(workload, point.step, gradient, {}, 1, right);
        is_finite = is_finite && is_all_finite(point.update);
        correct.push_back(compare_step(workload.optimizer, point, right, format));
        for (std::size_t i = 0; i < faults.size(); ++i) {
          const Fault& fault = faults[i].fault;
          wrong = point.start;
          if (fault.batch_shift != 0 || fault.sum_for_mean)
            descend(workload, point.step,
                    gradient_of(point.start.parameters, point.step + fault.batch_shift, fault.sum_for_mean),
                    fault, 1, wrong);
          else
            descend(workload, point.step, gradient, fault, fault.learning_rate_factor, wrong);
          const Sight seen_here = sight(right, wrong, correct.back(), simulated.precision, rule);
          seen[i] = std::max(seen[i], seen_here);
          faulty[i].push_back(compare_step(workload.optimizer, point, wrong, format));
        }
      },
      [&](const Parameters& end) { free_end = end; },
      {.contracts = {simulated.contract}, .copies = networks.copies});

  Counts counts;
  if (!is_finite) return counts;  // it diverges, as its losses would say
  counts.networks = 1;
  const auto verdict_of = [&](const std::vector<StepErrors>& steps) {
    return judge(step_update_checks(workload, steps, simulated.precision, rule));
  };
  const auto tell = [&](const std::string& what, const Verification& verification) {
    if (networks.tell)
      networks.tell(simulated.name() + " #" + std::to_string(index) + " " + workload.name + " steps to " +
                    std::to_string(network.steps.back()) + " lr " +
                    std::to_string(workload.optimizer.learning_rate) + ": " + what +
                    worst_checks(verification));
  };
  const Verification verification = verdict_of(correct);
  if (verification.verdict == Verdict::kPass) ++counts.passed;
  if (verification.verdict == Verdict::kCannotBeChecked) ++counts.cannot_be_checked;
  if (verification.verdict == Verdict::kFail) {
    ++counts.failed;
    tell("correct code failed", verification);
  }
  if (!free_spreads.empty()) {
    const auto after_free_steps = [&](bool same_batch, bool same_number) {
      State state = State::initial(network.initial, workload.optimizer.slots());
      for (std::int64_t step = 0; step < kFreeSteps; ++step)
        descend(workload, same_number ? 0 : step, gradient_of(state.parameters, same_batch ? 0 : step), {}, 1,
                state);
      return state.parameters;
    };
    const Parameters right_end = after_free_steps(false, false);
    const auto check_of = [&](const Parameters& end, const Parameters& expected, double spread) {
      return ten_steps_check(update_errors_from_end(network.initial, end, expected), spread, rule);
    };
    const Check check = check_of(right_end, free_end, free_spreads.front());
    ++(check.passed ? counts.free_steps.passed : counts.free_steps.failed);
    if (!check.passed) tell("correct code failed", judge({check}));
    const auto count_fault = [&](const char* name, const Parameters& wrong_end) {
      Counts::OfFault& count = counts.faults[name];
      if (!(check_of(wrong_end, right_end, 0).error > kVisibleFreeError))
        ++count.invisible;
      else if (check.bound > kVisibleFreeError)
        ++count.cannot_be_checked;
      else if (const Check found = check_of(wrong_end, free_end, free_spreads.front()); found.passed) {
        ++count.missed;
        tell(std::string(name) + " passed", judge({found}));
      } else {
        ++count.caught;
      }
    };
    count_fault("ten steps of one batch", after_free_steps(true, false));
    if (workload.optimizer.slots() == 2)
      count_fault("ten steps of one number", after_free_steps(false, true));
  }
  for (std::size_t i = 0; i < faults.size(); ++i) {
    Counts::OfFault& count = counts.faults[faults[i].name];
    if (seen[i] == Sight::kInvisible) {
      ++count.invisible;
      continue;
    }
    const Verification verdict = verdict_of(faulty[i]);
    if (verdict.verdict == Verdict::kFail)
      ++count.caught;
    else if (verdict.verdict == Verdict::kCannotBeChecked || seen[i] == Sight::kNoEvidence)
      ++count.cannot_be_checked;
    else {
      ++count.missed;
      tell(std::string(faults[i].name) + " passed", verdict);
    }
  }
  return counts;
}

}  // namespace

std::string SimulatedClass::name() const {
  std::string text(to_string(precision));
  if (contract != Contract::kExact) text += " " + std::string(to_string(contract));
  text += " " + std::string(to_string(activation)) + " " + std::string(to_string(loss));
  return text + " " + (momentum ? "momentum" : std::string(to_string(optimizer)));
}

std::vector<SimulatedClass> all_classes() {
  std::vector<SimulatedClass> classes;
  const std::pair<Precision, Contract> precisions[] = {
      {Precision::kFp32, Contract::kExact},    {Precision::kTf32, Contract::kExact},
      {Precision::kTf32, Contract::kLibrary},  {Precision::kFp16, Contract::kExact},
      {Precision::kFp16, Contract::kAutocast}, {Precision::kBf16, Contract::kExact},
      {Precision::kBf16, Contract::kAutocast}};
  for (const auto& [precision, contract] : precisions)
    for (const Activation activation : kAllActivations)
      for (const Loss loss : kAllLosses) {
        classes.push_back({precision, contract, activation, loss, Optimizer::Kind::kSgd, false});
        classes.push_back({precision, contract, activation, loss, Optimizer::Kind::kSgd, true});
        classes.push_back({precision, contract, activation, loss, Optimizer::Kind::kAdam, false});
        classes.push_back({precision, contract, activation, loss, Optimizer::Kind::kAdamW, false});
      }
  return classes;
}

void Counts::add(const Counts& other) {
  networks += other.networks;
  passed += other.passed;
  failed += other.failed;
  cannot_be_checked += other.cannot_be_checked;
  free_steps.passed += other.free_steps.passed;
  free_steps.failed += other.free_steps.failed;
  for (const auto& [name, fault] : other.faults) {
    OfFault& own = faults[name];
    own.caught += fault.caught;
    own.missed += fault.missed;
    own.cannot_be_checked += fault.cannot_be_checked;
    own.invisible += fault.invisible;
  }
}

Counts simulate(const SimulatedClass& simulated, const SimulatedNetworks& networks) {
  Counts counts;
  for (std::int64_t i = 0; i < networks.count; ++i)
    counts.add(simulate_one(simulated, networks, networks.first + i));
  return counts;
}

}  // namespace headroom
