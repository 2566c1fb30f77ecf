// Loss curves: every backend trains the same steps from the same start, once for each seed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/record.h"
#include "driver/run/training_files.h"
#include "worker/client.h"

namespace headroom {

/// Every step to 100, then every tenth; last_mean over the last 312 of all losses.
LossCurve thin_losses(std::uint64_t seed, const std::vector<float>& losses);

/// Trains `steps` steps with a fresh trainer and releases it. `between` is called now and then. Throws what
/// the client throws.
LossCurve train_curve(WorkerClient& client, const std::string& backend, Precision precision,
                      const TrainingFiles& files, std::int64_t steps, const std::string& cache_folder,
                      const std::filesystem::path& scratch,
                      const std::function<void(std::int64_t step)>& between);

/// Compares curves with those of pytorch-eager in fp32, seed by seed; nullopt if they have no seeds in common
/// or a curve is not finite.
std::optional<Check> compare_curves(const std::vector<LossCurve>& curves,
                                    const std::vector<LossCurve>& reference);

}  // namespace headroom
