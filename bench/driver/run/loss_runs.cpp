#include "driver/run/loss_runs.h"

#include <algorithm>
#include <cmath>

#include "analysis/verification.h"
#include "oracle/oracle.h"

namespace headroom {
namespace {

constexpr std::size_t kLastSteps = 312;
constexpr std::int64_t kChunk = 250;  // steps a call, so that progress and Ctrl-C come through
// A forward pass of the held-out samples runs on this CPU: above this many operations it is left out.
constexpr double kMostAccuracyOperations = 1e11;

}  // namespace

LossCurve thin_losses(std::uint64_t seed, const std::vector<float>& losses) {
  LossCurve curve;
  curve.seed = seed;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    if (step > 100 && step % 10 != 0) continue;
    curve.steps.push_back(static_cast<std::int64_t>(step));
    curve.values.push_back(losses[step]);
  }
  const std::size_t last = std::min(kLastSteps, losses.size());
  double sum = 0;
  for (std::size_t step = losses.size() - last; step < losses.size(); ++step)
    sum += static_cast<double>(losses[step]);
  curve.last_mean = sum / static_cast<double>(last);
  return curve;
}

LossCurve train_curve(WorkerClient& client, const std::string& backend, Precision precision,
                      const TrainingFiles& files, std::int64_t steps, const std::string& cache_folder,
                      const std::filesystem::path& scratch,
                      const std::function<void(std::int64_t step)>& between) {
  client.prepare(backend, files.workload, precision, files.data, files.parameters, cache_folder);
  for (std::int64_t step = 0; step < steps; step += kChunk) {
    between(step);
    client.train(step, std::min(kChunk, steps - step));
  }
  LossCurve curve = thin_losses(files.workload.seed, client.losses(0, steps, scratch / "losses.f32"));
  const DatasetView held_out = files.dataset.held_out();
  const double operations =
      2.0 * static_cast<double>(files.workload.parameter_count()) * static_cast<double>(held_out.samples);
  if (held_out.samples > 0 && operations <= kMostAccuracyOperations) {
    const std::filesystem::path trained = scratch / "trained.f32";
    client.state(trained);
    State state = State::unset(files.workload.model.widths, files.workload.optimizer.slots());
    read_state(trained, state);
    const bool labelled = files.workload.loss == Loss::kCrossEntropy;
    const double share = labelled ? accuracy(files.workload.model, state.parameters, held_out)
                                  : r_squared(files.workload, state.parameters, held_out);
    if (std::isfinite(share)) (labelled ? curve.held_out_accuracy : curve.held_out_r_squared) = share;
    std::error_code ignored;
    std::filesystem::remove(trained, ignored);
  }
  client.release();
  return curve;
}

std::optional<Check> compare_curves(const std::vector<LossCurve>& curves,
                                    const std::vector<LossCurve>& reference) {
  std::vector<double> means, reference_means;
  for (const LossCurve& curve : curves) {
    for (const LossCurve& other : reference) {
      if (other.seed != curve.seed) continue;
      if (!std::isfinite(curve.last_mean) || !std::isfinite(other.last_mean)) return std::nullopt;
      means.push_back(curve.last_mean);
      reference_means.push_back(other.last_mean);
    }
  }
  if (means.empty()) return std::nullopt;
  return curve_check(means, reference_means);
}

}  // namespace headroom
