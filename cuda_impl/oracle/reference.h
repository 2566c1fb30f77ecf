// `oracle-cuda`: the double-precision reference of bench/oracle/oracle.h on a GPU, for workloads too large for the
// CPU.
//
// Same arithmetic, same roundings, same points; only the order of sums differs. Never a competitor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "oracle/oracle.h"

namespace headroom {

/// follow_reference() of bench/oracle/oracle.h on CUDA device `device`. Throws UnsupportedError without one.
std::vector<double> follow_reference_on_device(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const std::vector<std::int64_t>& steps,
                                               std::int64_t free_steps,
                                               const std::function<void(const ReferencePoint&)>& point,
                                               const std::function<void(const Parameters&)>& after_free_steps,
                                               const ReferenceWanted& wanted = {});

/// The same arithmetic as a trainer.
std::unique_ptr<Trainer> make_device_oracle_trainer(const Workload& workload, Precision precision,
                                                    const DatasetView& data, const Parameters& initial,
                                                    int device);

}  // namespace headroom
