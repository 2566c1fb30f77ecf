// The reference's trajectory. Parameters and slots stay double along it; only the points that are compared start from fp32, because
// that is what a backend can be given.
#include "oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/error.h"
#include "core/host_clock.h"
#include "core/training_rules.h"
#include "oracle/gradient.h"
#include "oracle/products.h"
#include "oracle/step_copies.h"
#include "oracle/wide_state.h"

namespace headroom {
namespace {

Roundings roundings_of(Precision precision, bool rounding, int batch_size) {
  return rounding ? headroom::roundings_of(precision, Contract::kExact, batch_size) : Roundings{};
}

class OracleTrainer : public Trainer {
 public:
  OracleTrainer(const Workload& workload, Precision precision, bool rounding, const DatasetView& data,
                const Parameters& initial)
      : widths_(workload.model.widths),
        optimizer_(workload.optimizer),
        roundings_(roundings_of(precision, rounding, workload.batch_size)),
        gradient_of_batch_(workload, data),
        state_(widened(State::initial(initial, workload.optimizer.slots()))) {
    set_parameters(initial);
  }

  Timing train(std::int64_t first_step, std::int64_t count) override {
    const HostClock clock;
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      const double loss = gradient_of_batch_(state_.parameters, step, roundings_, gradient_);
      update(optimizer_, step, gradient_, state_);
      keep_loss(step, loss);
    }
    return clock.timing();
  }

  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    std::vector<float> result;
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      const auto slot = static_cast<std::size_t>(step % kKeptLosses);
      if (step < 0 || slot >= kept_.size() || kept_[slot].step != step) {
        throw InputError("losses: step " + std::to_string(step) + " is not among the last " +
                         std::to_string(kKeptLosses) + " trained steps");
      }
      result.push_back(kept_[slot].loss);
    }
    return result;
  }

  Parameters parameters() override { return rounded(widths_, state_.parameters); }

  void set_parameters(const Parameters& parameters) override {
    if (parameters.widths() != widths_) throw InputError("set_parameters: parameters of another network");
    widen(parameters, state_.parameters);
  }

  std::vector<Parameters> slots() override { return rounded(widths_, state_).slots; }

  void set_slots(const std::vector<Parameters>& slots) override {
    require_slots(slots, widths_, static_cast<int>(state_.slots.size()));
    for (std::size_t slot = 0; slot < slots.size(); ++slot) widen(slots[slot], state_.slots[slot]);
  }

  std::string note() override {
    if (first_non_finite_ < 0) return {};
    return "the loss is not finite from step " + std::to_string(first_non_finite_) + " on";
  }

 private:
  struct KeptLoss {
    std::int64_t step = -1;
    float loss = 0;
  };

  void keep_loss(std::int64_t step, double loss) {
    const auto slot = static_cast<std::size_t>(step % kKeptLosses);
    if (slot >= kept_.size())
      kept_.resize(std::max(slot + 1, std::min<std::size_t>(2 * kept_.size(), kKeptLosses)));
    kept_[slot] = {step, static_cast<float>(loss)};
    if (!std::isfinite(loss) && first_non_finite_ < 0) first_non_finite_ = step;
  }

  std::vector<int> widths_;
  Optimizer optimizer_;
  Roundings roundings_;
  GradientOfBatch gradient_of_batch_;
  WideState state_;
  Values gradient_;
  std::vector<KeptLoss> kept_;
  std::int64_t first_non_finite_ = -1;
};

}  // namespace

namespace {
ReferencePoint point_at(GradientOfBatch& gradient_of_batch, StepCopies& copies, std::int64_t step,
                        const State& start, const WideState& wide_start, int count, bool rounding) {
  const Workload& workload = copies.workload();
  const Contract contract = copies.contract();
  Roundings roundings =
      rounding ? headroom::roundings_of(copies.precision(), contract, workload.batch_size) : Roundings{};
  ReferencePoint reference{.step = step, .start = start, .update = {}, .contract = contract};
  Values gradient;
  reference.loss = gradient_of_batch(wide_start.parameters, step, roundings, gradient);
  if (contract == Contract::kLibrary && copies.precision() == Precision::kTf32) {
    // In the middle between what rounds everything to nearest and what cuts everything off.
    Values cut_off;
    roundings.input = roundings.weight = ProductRounding::kTf32CutOff;
    gradient_of_batch(wide_start.parameters, step, roundings, cut_off);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = 0.5 * (gradient[i] + cut_off[i]);
  }
  WideState end = wide_start;
  update(workload.optimizer, step, gradient, end);
  subtract(wide_start, end);
  if (count > 0) reference.copies = copies.of(wide_start, step, end, gradient_of_batch.norms(), count);
  reference.update = rounded(workload.model.widths, end);
  return reference;
}
}  // namespace

bool wants_probe(const Workload& workload, Precision precision) {
  const bool has_gelu = workload.model.activation == Activation::kGelu && workload.layers() > 1;
  return precision == Precision::kFp32 && (has_gelu || workload.optimizer.slots() == 2);
}

State probe_state(const Workload& workload, const Parameters& initial) {
  constexpr float kLonger = 7, kSquare = 1e-7f;
  State state = State::initial(initial, workload.optimizer.slots());
  for (float& weight : state.parameters.weight(0)) weight *= kLonger;
  if (state.slots.size() == 2) std::ranges::fill(state.slots[1].flat(), kSquare);
  return state;
}

ReferencePoint reference_step(const Workload& workload, Precision precision, Contract contract,
                              const DatasetView& data, const State& start, std::int64_t step, int copies) {
  GradientOfBatch gradient_of_batch(workload, data);
  StepCopies step_copies(workload, precision, contract, data);
  return point_at(gradient_of_batch, step_copies, step, start, widened(start), copies, true);
}

std::vector<double> follow_reference(const Workload& workload, Precision precision, bool rounding,
                                     const DatasetView& data, const Parameters& initial,
                                     const std::vector<std::int64_t>& steps,
                                     const std::function<void(const ReferencePoint&)>& point,
                                     const std::function<void(const Parameters&)>& after_free_steps,
                                     const ReferenceWanted& wanted) {
  if (!std::is_sorted(steps.begin(), steps.end()) || (!steps.empty() && steps.front() < 0)) {
    throw std::invalid_argument("follow_reference: steps must be ascending and not negative");
  }
  if (initial.widths() != workload.model.widths) {
    throw std::invalid_argument("follow_reference: initial parameters of another network");
  }
  std::vector<double> free_spreads;
  if (steps.empty()) return free_spreads;
  GradientOfBatch gradient_of_batch(workload, data);
  const Optimizer& optimizer = workload.optimizer;
  const std::vector<int>& widths = workload.model.widths;
  const Roundings own_roundings = roundings_of(precision, rounding, workload.batch_size);
  std::vector<std::unique_ptr<StepCopies>> copies;
  for (const Contract contract : wanted.contracts)
    copies.push_back(std::make_unique<StepCopies>(workload, precision, contract, data));
  const WideState first = widened(State::initial(initial, optimizer.slots()));
  WideState state = first;
  Values gradient;

  if (wanted.probe) {
    const State start = probe_state(workload, initial);
    for (const auto& one : copies) {
      ReferencePoint probe =
          point_at(gradient_of_batch, *one, kProbeStep, start, widened(start), wanted.copies, rounding);
      probe.is_probe = true;
      point(probe);
    }
  }
  auto next = steps.begin();
  for (std::int64_t step = 0;; ++step) {
    if (step == kFreeSteps && after_free_steps) {
      after_free_steps(rounded(widths, state.parameters));
      if (wanted.copies > 0) {
        gradient_of_batch(first.parameters, 0, own_roundings, gradient);
        const FactorNorms norms = gradient_of_batch.norms();
        for (const auto& one : copies)
          free_spreads.push_back(one->free_spread(first, kFreeSteps, state.parameters, norms,
                                                  std::min(kFreeCopies, wanted.copies)));
      }
    }
    while (next != steps.end() && *next == step) {
      const State start = rounded(widths, state);
      const WideState wide_start = widened(start);
      for (std::size_t which = 0; which < wanted.contracts.size(); ++which)
        point(point_at(gradient_of_batch, *copies[which], step, start, wide_start, wanted.copies, rounding));
      ++next;
    }
    const bool free_steps_are_due = steps.back() >= kFreeSteps - 1 && step < kFreeSteps;
    if (next == steps.end() && !free_steps_are_due) return free_spreads;
    gradient_of_batch(state.parameters, step, own_roundings, gradient);
    update(optimizer, step, gradient, state);
  }
}

std::unique_ptr<Trainer> make_oracle_trainer(const Workload& workload, Precision precision, bool rounding,
                                             const DatasetView& data, const Parameters& initial) {
  return std::make_unique<OracleTrainer>(workload, precision, rounding, data, initial);
}

std::vector<double> oracle_gradient(const Workload& workload, const DatasetView& data,
                                    const std::vector<double>& parameters, std::int64_t batch, double* loss) {
  if (static_cast<std::int64_t>(parameters.size()) != workload.parameter_count()) {
    throw std::invalid_argument("oracle_gradient: " + std::to_string(parameters.size()) +
                                " parameters, expected " + std::to_string(workload.parameter_count()));
  }
  GradientOfBatch gradient_of_batch(workload, data);
  Values gradient;
  const double value =
      gradient_of_batch({parameters.begin(), parameters.end()}, batch, Roundings{}, gradient);
  if (loss != nullptr) *loss = value;
  return {gradient.begin(), gradient.end()};
}

namespace {
void for_each_output(const Model& model, const Parameters& parameters, const DatasetView& data,
                     const std::function<void(std::int64_t sample, const float* output)>& use) {
  if (data.samples < 1) throw std::invalid_argument("accuracy: no samples");
  constexpr std::int64_t kRows = 512;
  const std::vector<int>& widths = parameters.widths();
  const int layers = parameters.layers();
  std::vector<PaddedMatrix<float>> weights;
  for (int layer = 0; layer < layers; ++layer) {
    PaddedMatrix<float>& weight = weights.emplace_back(widths[layer + 1], widths[layer]);
    for (std::int64_t row = 0; row < weight.rows; ++row) {
      std::copy_n(parameters.weight(layer).data() + row * weight.columns, weight.columns, weight.row(row));
    }
  }
  for (std::int64_t first = 0; first < data.samples; first += kRows) {
    const std::int64_t rows = std::min(kRows, data.samples - first);
    PaddedMatrix<float> values(rows, widths[0]);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(data.features + (first + row) * widths[0], widths[0], values.row(row));
    }
    for (int layer = 0; layer < layers; ++layer) {
      PaddedMatrix<float> out(rows, widths[layer + 1]);
      forward_product(values, weights[layer], parameters.bias(layer).data(), out);
      for (std::int64_t row = 0; layer + 1 < layers && row < rows; ++row) {
        float* value = out.row(row);
        for (std::int64_t i = 0; i < out.columns; ++i)
          value[i] = static_cast<float>(rules::activated(model.activation, value[i]));
      }
      values = std::move(out);
    }
    for (std::int64_t row = 0; row < rows; ++row) use(first + row, values.row(row));
  }
}

}  // namespace

double accuracy(const Model& model, const Parameters& parameters, const DatasetView& data) {
  std::int64_t right = 0;
  for_each_output(model, parameters, data, [&](std::int64_t sample, const float* logit) {
    const float own = logit[data.labels[sample]];
    // A NaN anywhere makes the sample wrong.
    right +=
        std::all_of(logit, logit + model.widths.back(), [&](float other) { return own >= other; }) ? 1 : 0;
  });
  return static_cast<double>(right) / static_cast<double>(data.samples);
}

double r_squared(const Workload& workload, const Parameters& parameters, const DatasetView& data) {
  const std::int64_t outputs = workload.outputs();
  std::vector<double> means(static_cast<std::size_t>(outputs));
  for (std::int64_t i = 0; i < data.samples * outputs; ++i) means[i % outputs] += data.targets[i];
  for (double& mean : means) mean /= static_cast<double>(data.samples);
  double left = 0, variance = 0;
  for_each_output(workload.model, parameters, data, [&](std::int64_t sample, const float* output) {
    for (std::int64_t i = 0; i < outputs; ++i) {
      const double target = data.targets[sample * outputs + i];
      const double value =
          workload.loss == Loss::kBinaryCrossEntropy ? 1 / (1 + std::exp(-double{output[i]})) : output[i];
      left += (value - target) * (value - target);
      variance += (target - means[i]) * (target - means[i]);
    }
  });
  return 1 - left / variance;
}

}  // namespace headroom
