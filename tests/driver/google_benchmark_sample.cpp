// A program of Google Benchmark whose benchmarks take the time that they are told, so that its own release writes files
// with known times: HEADROOM_SCALE times 2 us and 30 ns, with a noise of 0.1 % drawn from HEADROOM_SEED. The benchmark
// `fails` does so where HEADROOM_FAILS is set.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>

namespace {

double number(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atof(text);
}

double noise() {
  static std::mt19937_64 random(static_cast<std::uint64_t>(number("HEADROOM_SEED", 1)));
  return std::exp(std::normal_distribution<double>(0, 0.001)(random));
}

void told(benchmark::State& state, double seconds) {
  for ([[maybe_unused]] const auto step : state)
    state.SetIterationTime(seconds * number("HEADROOM_SCALE", 1) * noise());
  state.counters["none"] = 0;  // the relative spread of which is not a number
}

void fails(benchmark::State& state) {
  if (std::getenv("HEADROOM_FAILS") != nullptr) state.SkipWithError("no such device");
  for ([[maybe_unused]] const auto step : state) state.SetIterationTime(1e-3 * noise());
}

}  // namespace

BENCHMARK_CAPTURE(told, two_microseconds, 2e-6)
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(told, thirty_nanoseconds, 30e-9)->UseManualTime()->Iterations(1);
BENCHMARK(fails)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);

BENCHMARK_MAIN();
