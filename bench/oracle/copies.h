// Perturbed copies of the oracle's step: how far code may be off that is as right as the oracle, but sums in another order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/dataset_view.h"
#include "core/record.h"
#include "core/workload.h"
#include "oracle/gradient.h"
#include "oracle/wide_state.h"

namespace headroom {

/// How many copies of a step are made, and of the free steps.
inline constexpr int kCopies = 16, kFreeCopies = 4;

/// What each copy adds to each tensor (of each slot, or of the parameters where there are no slots), beside what the reference adds.
struct Copies {
  int count = 0;
  std::vector<float> distances;  ///< [count, tensors]: |copy's - reference's|, Frobenius
  std::vector<float>
      scales;  ///< [count, tensors]: <copy's - reference's, reference's> / |reference's|^2; 0 where that is 0

  std::size_t tensors() const { return count == 0 ? 0 : distances.size() / static_cast<std::size_t>(count); }
};

/// How many tensors are compared: of the slots where there are some, else of the parameters.
std::size_t compared_tensors(const Workload& workload);

/// Makes copies of any step of one workload under one contract. Small networks' copies are made side by side on all cores.
class StepCopies {
 public:
  StepCopies(const Workload& workload, Precision precision, Contract contract, const DatasetView& data);
  ~StepCopies();

  /// `update` is what the reference adds to `start` in this step, `norms` those of its evaluation.
  Copies of(const WideState& start, std::int64_t step, const WideState& update, const FactorNorms& norms,
            int count);
  /// Trains `steps` steps from `initial` in `count` copies. Of each the distance from `end` over that of `end` from `initial`, the
  /// median over the parameters' tensors; returns the largest.
  double free_spread(const WideState& initial, std::int64_t steps, const Values& end,
                     const FactorNorms& norms, int count);

 private:
  struct Space;
  void for_copies(int count, const std::function<void(int copy, Space& space)>& body);
  Roundings roundings(int copy, int count) const;
  Perturbation perturbation(std::int64_t step, int copy) const;

  const Workload& workload_;
  Precision precision_;
  Contract contract_;
  DatasetView data_;
  std::vector<std::unique_ptr<Space>> spaces_;  // that no thread uses
};

}  // namespace headroom
