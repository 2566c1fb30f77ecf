#include "oracle/reference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/error.h"
#include "core/host_clock.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/stream.h"
#include "oracle/device_gradient.h"
#include "oracle/kernels.h"
#include "oracle/step_copies.h"

namespace headroom {
namespace {

using oracle::Rounding;

/// Parameters in double on the device, in and out as fp32.
class DeviceParameters {
 public:
  explicit DeviceParameters(const std::vector<int>& widths)
      : widths_(widths), values_(tensor_ranges(widths).back().begin + tensor_ranges(widths).back().size) {}

  double* data() { return values_.data(); }
  std::int64_t size() const { return values_.size(); }

  void assign(const Parameters& parameters, Stream& stream) {
    DeviceBuffer<float> narrow(values_.size());
    narrow.copy_from(parameters.flat());
    oracle::widen_and_round(narrow.data(), values_.data(), values_.size(), Rounding::kNone, stream);
    stream.synchronize();
  }
  /// The values rounded to fp32.
  Parameters rounded(Stream& stream) const {
    DeviceBuffer<float> narrow(values_.size());
    oracle::narrow(values_.data(), narrow.data(), values_.size(), 1, stream);
    stream.synchronize();
    Parameters result(widths_);
    narrow.copy_to(result.flat());
    return result;
  }

 private:
  std::vector<int> widths_;
  DeviceBuffer<double> values_;
};

/// Parameters and slots.
struct DeviceState {
  DeviceParameters parameters;
  std::vector<DeviceParameters> slots;

  DeviceState(const std::vector<int>& widths, int slot_count) : parameters(widths) {
    for (int slot = 0; slot < slot_count; ++slot) slots.emplace_back(widths);
  }
  void assign(const State& state, Stream& stream) {
    parameters.assign(state.parameters, stream);
    for (std::size_t slot = 0; slot < slots.size(); ++slot) slots[slot].assign(state.slots[slot], stream);
  }
  State rounded(Stream& stream) const {
    State state{parameters.rounded(stream), {}};
    for (const DeviceParameters& slot : slots) state.slots.push_back(slot.rounded(stream));
    return state;
  }
  void update(const Optimizer& optimizer, std::int64_t step, DeviceParameters& gradient, Stream& stream) {
    const auto slot = [&](std::size_t index) { return index < slots.size() ? slots[index].data() : nullptr; };
    oracle::update(optimizer, step, gradient.data(), parameters.data(), slot(0), slot(1), parameters.size(),
                   stream);
  }
  void subtract(DeviceState& other, Stream& stream) {
    oracle::subtract(other.parameters.data(), parameters.data(), parameters.size(), stream);
    for (std::size_t slot = 0; slot < slots.size(); ++slot)
      oracle::subtract(other.slots[slot].data(), slots[slot].data(), parameters.size(), stream);
  }
};

class DeviceOracleTrainer : public Trainer {
 public:
  DeviceOracleTrainer(const Workload& workload, Precision precision, const DatasetView& data,
                      const Parameters& initial)
      : widths_(workload.model.widths),
        optimizer_(workload.optimizer),
        roundings_(roundings_of(precision, Contract::kExact, workload.batch_size)),
        gradient_of_batch_(workload, data),
        state_(widths_, optimizer_.slots()),
        gradient_(widths_) {
    state_.assign(State::initial(initial, optimizer_.slots()), stream_);
  }

  Timing train(std::int64_t first_step, std::int64_t count) override {
    const HostClock clock;
    if (first_step != kept_from_ + static_cast<std::int64_t>(losses_.size())) {
      kept_from_ = first_step;
      losses_.clear();
    }
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      losses_.push_back(static_cast<float>(
          gradient_of_batch_(state_.parameters.data(), step, roundings_, gradient_.data(), stream_)));
      state_.update(optimizer_, step, gradient_, stream_);
    }
    stream_.synchronize();
    return clock.timing();
  }
  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    const std::int64_t first = first_step - kept_from_;
    if (first < 0 || count < 0 || first + count > static_cast<std::int64_t>(losses_.size()))
      throw InputError("losses: steps from " + std::to_string(first_step) +
                       " are not among those just trained");
    return {losses_.begin() + first, losses_.begin() + first + count};
  }
  Parameters parameters() override { return state_.parameters.rounded(stream_); }
  void set_parameters(const Parameters& parameters) override {
    state_.parameters.assign(parameters, stream_);
  }
  std::vector<Parameters> slots() override { return state_.rounded(stream_).slots; }
  void set_slots(const std::vector<Parameters>& slots) override {
    require_slots(slots, widths_, optimizer_.slots());
    for (std::size_t slot = 0; slot < slots.size(); ++slot) state_.slots[slot].assign(slots[slot], stream_);
  }

 private:
  std::vector<int> widths_;
  Optimizer optimizer_;
  Stream stream_;
  Roundings roundings_;
  DeviceGradient gradient_of_batch_;
  DeviceState state_;
  DeviceParameters gradient_;
  std::vector<float> losses_;
  std::int64_t kept_from_ = 0;
};

}  // namespace

namespace {

/// The reference of one workload on the device: its points, and their copies.
class DevicePoints {
 public:
  DevicePoints(const Workload& workload, Precision precision, const DatasetView& data)
      : workload_(workload),
        precision_(precision),
        ranges_(tensor_ranges(workload.model.widths)),
        gradient_of_batch_(workload, data),
        start_(workload.model.widths, workload.optimizer.slots()),
        end_(workload.model.widths, workload.optimizer.slots()),
        gradient_(workload.model.widths) {}

  void train(DeviceState& state, std::int64_t step) {
    gradient_of_batch_(state.parameters.data(), step, roundings(Contract::kExact), gradient_.data(), stream_);
    state.update(workload_.optimizer, step, gradient_, stream_);
  }

  ReferencePoint point(const State& start, std::int64_t step, Contract contract, int copies) {
    ReferencePoint reference{.step = step, .start = start, .update = {}, .contract = contract};
    start_.assign(start, stream_);
    end_.assign(start, stream_);
    Roundings roundings = this->roundings(contract);
    reference.loss = gradient_of_batch_(start_.parameters.data(), step, roundings, gradient_.data(), stream_);
    if (contract == Contract::kLibrary && precision_ == Precision::kTf32) {
      // In the middle between what rounds everything to nearest and what cuts everything off.
      DeviceParameters cut_off(workload_.model.widths);
      roundings.input = roundings.weight = Rounding::kTf32CutOff;
      gradient_of_batch_(start_.parameters.data(), step, roundings, cut_off.data(), stream_);
      oracle::average(cut_off.data(), gradient_.data(), gradient_.size(), stream_);
      stream_.synchronize();
    }
    end_.update(workload_.optimizer, step, gradient_, stream_);
    end_.subtract(start_, stream_);
    reference.update = end_.rounded(stream_);
    if (copies > 0) reference.copies = copies_of(step, contract, copies);
    return reference;
  }

  /// StepCopies::free_spread() of bench/oracle/copies.h; overwrites the points' states.
  double free_spread(const State& initial, DeviceState& end, std::int64_t steps, Contract contract,
                     int count) {
    start_.assign(initial, stream_);
    gradient_of_batch_(start_.parameters.data(), 0, roundings(contract), gradient_.data(), stream_);
    gradient_of_batch_.measure_norms(start_.parameters.data(), stream_);
    std::vector<double> lengths;
    for (const TensorRange& range : ranges_)
      lengths.push_back(distance(start_.parameters, end.parameters, range));
    double largest = 0;
    for (int copy = 0; copy < count; ++copy) {
      end_.assign(initial, stream_);
      for (std::int64_t step = 0; step < steps; ++step) {
        evaluate_copy(end_, step, contract, copy, count);
        end_.update(workload_.optimizer, step, gradient_, stream_);
      }
      std::vector<double> distances;
      for (std::size_t tensor = 0; tensor < ranges_.size(); ++tensor) {
        const double off = distance(end_.parameters, end.parameters, ranges_[tensor]);
        distances.push_back(off == 0 ? 0 : off / lengths[tensor]);
      }
      std::sort(distances.begin(), distances.end());
      largest = std::max(largest, distances[distances.size() / 2]);
    }
    return largest;
  }

  Stream& stream() { return stream_; }

 private:
  using Increment = oracle::Increment;

  Roundings roundings(Contract contract) const {
    return roundings_of(precision_, contract, workload_.batch_size);
  }

  void evaluate_copy(DeviceState& state, std::int64_t step, Contract contract, int copy, int count) {
    const Perturbation perturbation = copy_perturbation(workload_, precision_, contract, step, copy, count);
    gradient_of_batch_(state.parameters.data(), step,
                       copy_roundings(workload_, precision_, contract, copy, count), gradient_.data(),
                       stream_, &perturbation);
  }

  double distance(DeviceParameters& a, DeviceParameters& b, const TensorRange& range) {
    return std::sqrt(oracle::compare({.kind = Increment::Kind::kValue}, a.data() + range.begin, nullptr,
                                     b.data() + range.begin, range.size, partial_, stream_)
                         .difference);
  }

  Copies copies_of(std::int64_t step, Contract contract, int count) {
    gradient_of_batch_.measure_norms(start_.parameters.data(), stream_);
    const Optimizer& optimizer = workload_.optimizer;
    // What each slot, or each parameter where there are none, gains from a gradient.
    std::vector<Increment> increments;
    if (optimizer.slots() == 0) increments = {{Increment::Kind::kSum, 0, -optimizer.learning_rate}};
    if (optimizer.slots() == 1) increments = {{Increment::Kind::kSum, optimizer.momentum - 1, 1}};
    if (optimizer.slots() == 2)
      increments = {{Increment::Kind::kSum, optimizer.beta1 - 1, 1 - optimizer.beta1},
                    {Increment::Kind::kSquare, optimizer.beta2 - 1, 1 - optimizer.beta2}};
    Copies copies{count, {}, {}};
    // With momentum a copy's difference is that of its gradient g, and <g, v> is <g - v, v> + |v|^2.
    struct Velocity {
      double square, gradient;  // |v|^2, <g, v> of the reference
    };
    std::vector<Velocity> velocities;
    const auto along_velocity = [&](const double* values, const TensorRange& range) {
      const oracle::ComparedSums sums =
          oracle::compare({Increment::Kind::kSum, 0, 1}, nullptr, values + range.begin,
                          start_.slots[0].data() + range.begin, range.size, partial_, stream_);
      return Velocity{sums.update, sums.along + sums.update};
    };
    if (optimizer.slots() == 1)
      for (const TensorRange& range : ranges_) {
        velocities.push_back(along_velocity(end_.slots[0].data(), range));
        velocities.back().gradient += (1 - optimizer.momentum) * velocities.back().square;
      }
    for (int copy = 0; copy < count; ++copy) {
      evaluate_copy(start_, step, contract, copy, count);
      for (std::size_t tensor = 0; tensor < velocities.size(); ++tensor) {
        const Velocity& reference = velocities[tensor];
        const double off = along_velocity(gradient_.data(), ranges_[tensor]).gradient - reference.gradient;
        copies.decays.push_back(reference.square == 0 ? 0 : static_cast<float>(off / reference.square));
      }
      for (std::size_t slot = 0; slot < increments.size(); ++slot) {
        const bool has_slots = optimizer.slots() > 0;
        const double* first = has_slots ? start_.slots[slot].data() : nullptr;
        const double* expected = has_slots ? end_.slots[slot].data() : end_.parameters.data();
        for (const TensorRange& range : ranges_) {
          const oracle::ComparedSums sums = oracle::compare(
              increments[slot], first == nullptr ? nullptr : first + range.begin,
              gradient_.data() + range.begin, expected + range.begin, range.size, partial_, stream_);
          copies.distances.push_back(static_cast<float>(std::sqrt(sums.difference)));
          copies.scales.push_back(sums.update == 0 ? 0 : static_cast<float>(sums.along / sums.update));
        }
      }
    }
    return copies;
  }

  const Workload& workload_;
  Precision precision_;
  std::vector<TensorRange> ranges_;
  Stream stream_;
  DeviceGradient gradient_of_batch_;
  DeviceState start_, end_;
  DeviceParameters gradient_;
  oracle::PartialSums partial_;
};

}  // namespace

std::vector<double> follow_reference_on_device(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const std::vector<std::int64_t>& steps,
                                               std::int64_t free_steps,
                                               const std::function<void(const ReferencePoint&)>& point,
                                               const std::function<void(const Parameters&)>& after_free_steps,
                                               const ReferenceWanted& wanted) {
  if (!std::is_sorted(steps.begin(), steps.end()) || (!steps.empty() && steps.front() < 0))
    throw InputError("reference: steps must be ascending and not negative");
  validate(workload);
  use_device(device);
  std::vector<double> free_spreads;
  if (steps.empty()) return free_spreads;
  DevicePoints points(workload, precision, data);
  DeviceState state(workload.model.widths, workload.optimizer.slots());
  const State first = State::initial(initial, workload.optimizer.slots());
  state.assign(first, points.stream());
  if (wanted.probe) {
    for (const Contract contract : wanted.contracts) {
      ReferencePoint probe =
          points.point(probe_state(workload, initial), kProbeStep, contract, wanted.copies);
      probe.is_probe = true;
      point(probe);
    }
  }
  auto next = steps.begin();
  for (std::int64_t step = 0;; ++step) {
    if (step == free_steps && after_free_steps) {
      after_free_steps(state.parameters.rounded(points.stream()));
      if (free_steps > 0 && wanted.copies > 0)
        for (const Contract contract : wanted.contracts)
          free_spreads.push_back(
              points.free_spread(first, state, free_steps, contract, std::min(kFreeCopies, wanted.copies)));
    }
    while (next != steps.end() && *next == step) {
      const State start = state.rounded(points.stream());
      for (const Contract contract : wanted.contracts)
        point(points.point(start, step, contract, wanted.copies));
      ++next;
    }
    const bool free_steps_are_due = after_free_steps && steps.back() >= free_steps - 1 && step < free_steps;
    if (next == steps.end() && !free_steps_are_due) return free_spreads;
    points.train(state, step);
  }
}

std::unique_ptr<Trainer> make_device_oracle_trainer(const Workload& workload, Precision precision,
                                                    const DatasetView& data, const Parameters& initial,
                                                    int device) {
  validate(workload);
  use_device(device);
  return std::make_unique<DeviceOracleTrainer>(workload, precision, data, initial);
}

}  // namespace headroom
