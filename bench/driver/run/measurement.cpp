#include "driver/run/measurement.h"

#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "driver/system/interruption.h"

namespace headroom {
namespace {

constexpr std::int64_t kLeastSteps = 50;
constexpr std::int64_t kLeastWarmupSteps = 10;
constexpr double kWarmupSeconds = 5e-3;
// A block is planned a little longer than asked, since the estimate has some noise.
constexpr double kMargin = 1.05;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 32;
constexpr double kLeastSeconds = 1e-15;  // that results/schema.json takes for a time

double device_seconds(const Timing& timing) {
  for (const double seconds : {timing.device_seconds, timing.wall_seconds}) {
    if (!std::isfinite(seconds) || seconds < kLeastSeconds) {
      throw std::runtime_error(fmt::format("the worker measured {} s for some steps: not a time", seconds));
    }
  }
  if (!std::isfinite(timing.cpu_seconds) || timing.cpu_seconds < 0) {
    throw std::runtime_error(
        fmt::format("the worker measured {} s of CPU time: not a time", timing.cpu_seconds));
  }
  return timing.device_seconds;
}

double train(TimedTrainer& trainer, std::int64_t steps, Timing* kept = nullptr) {
  const Timing timing = trainer.client->train(trainer.next_step, steps);
  trainer.next_step += steps;
  if (kept != nullptr) *kept = timing;
  return device_seconds(timing);
}

// One timed block, with what the monitors, if there are any, saw of their GPUs meanwhile.
Block timed_block(TimedTrainer& trainer, const std::vector<GpuMonitor*>& monitors) {
  Block block;
  for (GpuMonitor* monitor : monitors) monitor->begin();
  try {
    Timing timing;
    train(trainer, trainer.steps_per_block, &timing);
    block = {0, trainer.steps_per_block, timing.device_seconds, timing.wall_seconds, timing.cpu_seconds};
  } catch (...) {
    for (GpuMonitor* monitor : monitors) monitor->end();
    throw;
  }
  for (GpuMonitor* monitor : monitors) {
    if (monitor == monitors.front())
      block.gpu = monitor->end();
    else
      block.peer_gpus.push_back(monitor->end());
  }
  return block;
}

// Reports are made of the records.
class Silent : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

}  // namespace

void choose_block(TimedTrainer& trainer, double block_seconds) {
  // Runs grow until one is long enough to trust; the fastest of three sets the length, so that no block is
  // short. They are doubled, as a backend may have few lengths compiled (torch_impl/python/headroom_jax/jax_scan.py).
  std::int64_t steps = kLeastWarmupSteps;
  double seconds = train(trainer, steps);
  while (seconds < kWarmupSeconds && steps < kMostSteps) {
    const double longer = std::clamp(kMargin * kWarmupSeconds / seconds, 2.0, 64.0);
    steps *= static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::ceil(longer))));
    seconds = train(trainer, steps);
  }
  double fastest = seconds / static_cast<double>(steps);
  for (int repeat = 0; repeat < 2; ++repeat) {
    fastest = std::min(fastest, train(trainer, steps) / static_cast<double>(steps));
  }
  const auto steps_for = [&](double length) {
    return static_cast<std::int64_t>(std::min(std::ceil(length / fastest), static_cast<double>(kMostSteps)));
  };
  trainer.least_seconds = block_seconds;
  trainer.steps_per_block = std::max(kLeastSteps, steps_for(kMargin * block_seconds));
  // As long as the runs above, and no length of its own: a backend may compile for each length that it meets.
  trainer.warmup_steps = steps;
}

void initialize_google_benchmark(const GoogleBenchmarkOptions& options) {
  // The library keeps the pointer to the program's name, for its reports' context, and copies every other word.
  static char program[] = "headroom";
  std::vector<std::string> words = {"--benchmark_enable_random_interleaving=true"};
  words.insert(words.end(), options.passed_on.begin(), options.passed_on.end());
  std::vector<char*> argv = {program};
  for (std::string& word : words) argv.push_back(word.data());
  int count = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  benchmark::Initialize(&count, argv.data());
}

void measure_interleaved(std::vector<TimedTrainer>& trainers, int blocks,
                         const std::function<void(const TimedTrainer&, std::int64_t order)>& before_block,
                         const std::vector<GpuMonitor*>& monitors) {
  std::int64_t order = 0;
  benchmark::ClearRegisteredBenchmarks();
  for (TimedTrainer& trainer : trainers) {
    const std::int64_t iterations = trainer.steps_per_block;
    const auto run_block = [&trainer, &order, &before_block, &monitors, iterations](benchmark::State& state) {
      while (state.KeepRunningBatch(iterations)) {
        if (interruption::requested()) {
          state.SkipWithError("interrupted");
          return;
        }
        if (!trainer.failure.empty()) {
          state.SkipWithError(trainer.failure.c_str());
          return;
        }
        try {
          before_block(trainer, order);
          train(trainer, trainer.warmup_steps);
          Block block = timed_block(trainer, monitors);
          while (block.device_seconds < trainer.least_seconds) {
            // The machine was slower when the length was chosen. The short run has warmed this one up.
            const double longer = kMargin * trainer.least_seconds / block.device_seconds;
            trainer.steps_per_block =
                1 + static_cast<std::int64_t>(longer * static_cast<double>(trainer.steps_per_block));
            block = timed_block(trainer, monitors);
          }
          // The library divides by the iterations that it was told at first.
          state.SetIterationTime(block.device_seconds * static_cast<double>(iterations) /
                                 static_cast<double>(block.steps));
          block.order = order++;
          trainer.blocks.push_back(std::move(block));
        } catch (const std::exception& error) {
          trainer.failure = error.what();
          state.SkipWithError(trainer.failure.c_str());
          return;
        }
      }
    };
    benchmark::RegisterBenchmark(trainer.name.c_str(), run_block)
        ->Iterations(iterations)
        ->Repetitions(blocks)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
  if (!trainers.empty()) {
    Silent silent;
    benchmark::RunSpecifiedBenchmarks(&silent, "all");
  }
  benchmark::ClearRegisteredBenchmarks();
  interruption::throw_if_requested();
}

}  // namespace headroom
