// Trainers with planted faults, made from the oracle: what the driver's checks must catch.
#pragma once

#include <memory>

#include "worker/server.h"

namespace headroom {

enum class Fault { kNone, kLearningRate, kFrozenLayer, kNoBiasUpdate, kShiftedBatches, kNan };

/// The oracle with the contract's roundings, honest but for one fault.
std::unique_ptr<Trainer> make_faulty_trainer(const TrainerRequest& request, Fault fault);

}  // namespace headroom
