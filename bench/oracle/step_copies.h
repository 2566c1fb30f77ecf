// Perturbed copies of the oracle's step, and what they find.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/dataset_view.h"
#include "core/record.h"
#include "core/workload.h"
#include "oracle/copies.h"
#include "oracle/gradient.h"
#include "oracle/wide_state.h"

namespace headroom {

/// What copy number `copy` of `count` rounds, and how it is perturbed.
Roundings copy_roundings(const Workload& workload, Precision precision, Contract contract, int copy,
                         int count);
Perturbation copy_perturbation(const Workload& workload, Precision precision, Contract contract,
                               std::int64_t step, int copy, int count);
/// Makes copies of any step of one workload under one contract. Small networks' copies are made side by side on all cores.
class StepCopies {
 public:
  StepCopies(const Workload& workload, Precision precision, Contract contract, const DatasetView& data);
  ~StepCopies();
  const Workload& workload() const { return workload_; }
  Precision precision() const { return precision_; }
  Contract contract() const { return contract_; }

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
  const Workload& workload_;
  Precision precision_;
  Contract contract_;
  DatasetView data_;
  std::vector<std::unique_ptr<Space>> spaces_;  // that no thread uses
};

}  // namespace headroom
