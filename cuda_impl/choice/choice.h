// `cuda`: the strategy of ours that is the fastest for a workload and precision, by a written rule.
//
// The rule is an order: the first strategy in it that can run the workload is taken, and whether it can is asked of
// the strategy itself. The figures behind the order are in docs/kernels/choice.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom {

enum class Strategy { kResident, kStreamed, kFused, kLayered };
std::string_view to_string(Strategy strategy);  ///< the backend's name, such as "cuda-resident"

/// The strategies to try for a workload, the fastest first. The last one takes every workload.
std::vector<Strategy> strategies_by_speed(const Workload& workload, Precision precision);

/// Why CUDA device `device` can run none of them; nullopt if it can run one.
std::optional<std::string> choice_unavailable(int device);

/// The trainer of the first strategy that does not refuse the workload; its note begins with the strategy's name, and
/// ends with what the ones before it said. Throws what the last strategy throws, and what any throws other than
/// UnsupportedError.
std::unique_ptr<Trainer> make_chosen_trainer(const Workload& workload, Precision precision,
                                             const DatasetView& data, const Parameters& initial, int device);

}  // namespace headroom
