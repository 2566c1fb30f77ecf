#include "oracle/step_copies.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <mutex>

#include "core/parallel.h"

namespace headroom {
namespace {

constexpr double kSideBySideOperations = 5e7;  // of a step: above, it keeps all cores busy by itself

struct Sums {
  double difference = 0, along = 0, update = 0;
  double along_start = 0, start = 0;  // difference times the start, and squares of the start
};

/// Sums over the elements of a tensor of what `increment(i)` is off `update`, on all cores and in an order of their own.
template <typename Increment>
Sums sums_of(const TensorRange& range, const Values& update, const Increment& increment,
             const Values* start = nullptr) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;
  const auto sums_between = [&](std::int64_t begin, std::int64_t end) {
    Sums sums;
    for (std::int64_t i = begin; i < end; ++i) {
      const double expected = update[i], difference = increment(i) - expected;
      sums.difference += difference * difference;
      sums.along += difference * expected;
      sums.update += expected * expected;
      if (start == nullptr) continue;
      sums.along_start += difference * (*start)[i];
      sums.start += (*start)[i] * (*start)[i];
    }
    return sums;
  };
  if (range.size <= kPiece) return sums_between(range.begin, range.begin + range.size);
  std::vector<Sums> pieces(static_cast<std::size_t>((range.size + kPiece - 1) / kPiece));
  parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t piece, std::int64_t) {
    const std::int64_t begin = range.begin + piece * kPiece;
    pieces[static_cast<std::size_t>(piece)] =
        sums_between(begin, std::min(begin + kPiece, range.begin + range.size));
  });
  Sums total;
  for (const Sums& piece : pieces) {
    total.difference += piece.difference;
    total.along += piece.along;
    total.update += piece.update;
    total.along_start += piece.along_start;
    total.start += piece.start;
  }
  return total;
}

/// Calls use(place, sums) for each tensor that is compared.
template <typename Use>
void compare(const Workload& workload, const std::vector<TensorRange>& ranges, const WideState& start,
             const Values& gradient, const WideState& update, const Use& use) {
  const Optimizer& optimizer = workload.optimizer;
  std::size_t place = 0;
  const auto each = [&](const Values& expected, const auto& increment, const Values* before = nullptr) {
    for (const TensorRange& range : ranges) use(place++, sums_of(range, expected, increment, before));
  };
  if (optimizer.slots() == 0) {
    each(update.parameters, [&](std::int64_t i) { return -optimizer.learning_rate * gradient[i]; });
  } else if (optimizer.slots() == 1) {
    const Values& velocity = start.slots[0];
    each(
        update.slots[0], [&](std::int64_t i) { return (optimizer.momentum - 1) * velocity[i] + gradient[i]; },
        &velocity);
  } else {
    each(update.slots[0], [&, &mean = start.slots[0]](std::int64_t i) {
      return (1 - optimizer.beta1) * (gradient[i] - mean[i]);
    });
    each(update.slots[1], [&, &square = start.slots[1]](std::int64_t i) {
      return (1 - optimizer.beta2) * (gradient[i] * gradient[i] - square[i]);
    });
  }
}

}  // namespace

std::size_t compared_tensors(const Workload& workload) {
  return 2 * static_cast<std::size_t>(workload.layers()) *
         static_cast<std::size_t>(std::max(1, workload.optimizer.slots()));
}

struct StepCopies::Space {
  GradientOfBatch gradient_of_batch;
  Values gradient;
};

StepCopies::StepCopies(const Workload& workload, Precision precision, Contract contract,
                       const DatasetView& data)
    : workload_(workload), precision_(precision), contract_(contract), data_(data) {}
StepCopies::~StepCopies() = default;

void StepCopies::for_copies(int count, const std::function<void(int copy, Space& space)>& body) {
  std::mutex mutex;
  const auto with_space = [&](std::int64_t copy, std::int64_t) {
    std::unique_ptr<Space> space;
    {
      const std::lock_guard lock(mutex);
      if (!spaces_.empty()) {
        space = std::move(spaces_.back());
        spaces_.pop_back();
      }
    }
    if (!space) space.reset(new Space{GradientOfBatch(workload_, data_), {}});
    body(static_cast<int>(copy), *space);
    const std::lock_guard lock(mutex);
    spaces_.push_back(std::move(space));
  };
  if (workload_.flops_per_step() < kSideBySideOperations)
    parallel_for(count, 1, with_space);
  else
    for (int copy = 0; copy < count; ++copy) with_space(copy, copy + 1);
}

/// Autocast as compilers fuse it leaves some of its roundings out: so does half of its copies, by a two-level design of eight runs, in
/// which any two roundings do each of their four combinations. Log-probabilities and a single output never meet.
Roundings copy_roundings(const Workload& workload, Precision precision, Contract contract, int copy,
                         int count) {
  Roundings roundings = roundings_of(precision, contract, workload.batch_size);
  if (contract == Contract::kAutocast && 2 * copy >= count) {
    constexpr unsigned kRuns[] = {0, 7, 1, 6, 2, 5, 4, 3};  // so that the first few are a fair choice
    const unsigned run = kRuns[static_cast<unsigned>(copy - count / 2) % std::size(kRuns)];
    const auto keeps = [run](unsigned factors) { return std::popcount(run & factors) % 2 == 1; };
    roundings.sums = roundings.bias = keeps(1);
    roundings.before_slope = keeps(2);
    roundings.weight_gradient = keeps(4);
    roundings.bias_gradient = keeps(1 | 4);
    roundings.leaves_bias_terms = !keeps(1 | 4);
    roundings.log_probabilities = keeps(2 | 4);
    roundings.leaves_one_output_factors = !keeps(2 | 4);
    roundings.leaves_one_output_gradient = !keeps(1 | 2 | 4);
    roundings.product_of_one_output = roundings.sums && keeps(1 | 2);
  }
  return roundings;
}

/// Copies that leave out the same roundings are off by the same. So a quarter of autocast's copies leave none out and are off by as much
/// in a way of their own: each sum moves by a quarter of a 16-bit number's unit, which is how far a value lies from the next such number
/// on average.
Perturbation copy_perturbation(const Workload& workload, Precision precision, Contract contract,
                               std::int64_t step, int copy, int count) {
  Perturbation perturbation{.seed = (workload.seed * 1000003 + static_cast<std::uint64_t>(step)) * 1024 +
                                    static_cast<std::uint64_t>(copy),
                            .is_cut_off = precision != Precision::kFp32,
                            .draws_tf32 = contract == Contract::kLibrary && precision == Precision::kTf32,
                            .copy = copy};
  if (contract == Contract::kAutocast && 4 * copy >= count && 2 * copy < count)
    perturbation.left_rounding = precision == Precision::kBf16 ? 0x1p-9 : 0x1p-12;
  return perturbation;
}

Copies StepCopies::of(const WideState& start, std::int64_t step, const WideState& update,
                      const FactorNorms& norms, int count) {
  const std::vector<TensorRange> ranges = tensor_ranges(workload_.model.widths);
  const std::size_t tensors = compared_tensors(workload_);
  Copies copies{count, std::vector<float>(tensors * static_cast<std::size_t>(count)), {}};
  copies.scales.resize(copies.distances.size());
  if (workload_.optimizer.slots() == 1) copies.decays.resize(copies.distances.size());
  for_copies(count, [&](int copy, Space& space) {
    space.gradient_of_batch(
        start.parameters, step, copy_roundings(workload_, precision_, contract_, copy, count),
        copy_perturbation(workload_, precision_, contract_, step, copy, count), norms, space.gradient);
    compare(workload_, ranges, start, space.gradient, update, [&](std::size_t tensor, const Sums& sums) {
      const std::size_t place = static_cast<std::size_t>(copy) * tensors + tensor;
      copies.distances[place] = static_cast<float>(std::sqrt(sums.difference));
      copies.scales[place] = sums.update == 0 ? 0 : static_cast<float>(sums.along / sums.update);
      if (!copies.decays.empty())
        copies.decays[place] = sums.start == 0 ? 0 : static_cast<float>(sums.along_start / sums.start);
    });
  });
  return copies;
}

double StepCopies::free_spread(const WideState& initial, std::int64_t steps, const Values& end,
                               const FactorNorms& norms, int count) {
  const std::vector<TensorRange> ranges = tensor_ranges(workload_.model.widths);
  std::vector<double> spreads(static_cast<std::size_t>(count));
  Values update = end;
  for (std::size_t i = 0; i < end.size(); ++i) update[i] -= initial.parameters[i];
  for_copies(count, [&](int copy, Space& space) {
    WideState state = initial;
    for (std::int64_t step = 0; step < steps; ++step) {
      space.gradient_of_batch(
          state.parameters, step, copy_roundings(workload_, precision_, contract_, copy, count),
          copy_perturbation(workload_, precision_, contract_, step, copy, count), norms, space.gradient);
      headroom::update(workload_.optimizer, step, space.gradient, state);
    }
    std::vector<double> distances;
    for (const TensorRange& range : ranges) {
      const Sums sums =
          sums_of(range, update, [&](std::int64_t i) { return state.parameters[i] - initial.parameters[i]; });
      distances.push_back(sums.difference == 0 ? 0 : std::sqrt(sums.difference / sums.update));
    }
    std::sort(distances.begin(), distances.end());
    spreads[static_cast<std::size_t>(copy)] = distances[distances.size() / 2];
  });
  return *std::max_element(spreads.begin(), spreads.end());
}

}  // namespace headroom
