#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/error.h"
#include "planted/delay.h"

namespace headroom {
namespace {

constexpr int kCorrections[] = {3, 3, 5};  // turns of plain and delayed before each correction of the length
constexpr int kLastTurns = 5;              // after the last one
constexpr double kTurnSeconds = 1e-3;
constexpr double kFirstGuess = 1.5e-6;  // what runs beside the wait takes about so long, in seconds
constexpr double kRateCycles = 2e6;

__global__ void wait_cycles(const long long* cycles /* [1] */) {
  const long long begin = clock64(), length = *cycles;
  while (clock64() - begin < length) {
  }
}

double seconds_of(Graph& graph, int launches, Stream& stream, Event& begin, Event& end) {
  graph.launch(stream);  // the other graph ran before
  begin.record(stream);
  for (int i = 0; i < launches; ++i) graph.launch(stream);
  end.record(stream);
  return seconds_between(begin, end) / launches;
}

double middle(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

}  // namespace

std::optional<double> PlantedDelay::asked_share() {
  const char* text = std::getenv("HEADROOM_PLANTED_DELAY_PERCENT");
  if (text == nullptr || *text == 0) return std::nullopt;
  char* end = nullptr;
  const double percent = std::strtod(text, &end);
  if (*end != 0 || !(percent > 0 && percent <= 1000))
    throw InputError(std::string("HEADROOM_PLANTED_DELAY_PERCENT=") + text +
                     ": expected a percentage above 0, such as 3");
  return percent / 100;
}

PlantedDelay::PlantedDelay(double share) : share_(share), cycles_(1) { set_cycles(0); }

void PlantedDelay::begin(Stream& stream) {
  begun_.record(stream);
  begun_.hold(beside_);
  wait_cycles<<<1, 1, 0, beside_.get()>>>(cycles_.data());
  CUDA_CHECK(cudaGetLastError());
  done_.record(beside_);
}

void PlantedDelay::end(Stream& stream) { done_.hold(stream); }

void PlantedDelay::set_cycles(double cycles) {
  const long long whole = std::llround(std::max(0.0, cycles));
  cycles_.copy_from({&whole, 1});
}

// Cycles a second, from two waits of known lengths.
double PlantedDelay::clock_rate(Stream& stream) {
  Event begin_event, end_event;
  double seconds[2];
  for (int i = 0; i < 2; ++i) {
    set_cycles((i + 1) * kRateCycles);
    begin_event.record(stream);
    wait_cycles<<<1, 1, 0, stream.get()>>>(cycles_.data());
    CUDA_CHECK(cudaGetLastError());
    end_event.record(stream);
    seconds[i] = seconds_between(begin_event, end_event);
  }
  return kRateCycles / (seconds[1] - seconds[0]);
}

void PlantedDelay::measure(Graph& plain, Graph& delayed, int turns, Stream& stream) {
  Event begin_event, end_event;
  const int launches = std::max(1, static_cast<int>(std::lround(kTurnSeconds / plain_seconds_)));
  std::vector<double> shares, seconds;
  for (int turn = 0; turn < turns; ++turn) {
    const double without = seconds_of(plain, launches, stream, begin_event, end_event);
    const double with = seconds_of(delayed, launches, stream, begin_event, end_event);
    shares.push_back(with / without - 1);
    seconds.push_back(without);
  }
  measured_share_ = middle(shares);
  plain_seconds_ = middle(seconds);
}

void PlantedDelay::calibrate(Graph& plain, Graph& delayed, int steps, Stream& stream) {
  const double rate = clock_rate(stream);
  Event begin_event, end_event;
  for (const int launches : {20, 20})  // the first ones are slow
    plain_seconds_ = seconds_of(plain, launches, stream, begin_event, end_event);
  double cycles = rate * (kFirstGuess + share_ * plain_seconds_ / steps);
  set_cycles(cycles);
  for (const int turns : kCorrections) {
    measure(plain, delayed, turns, stream);
    // A wait that ends before what runs beside it costs nothing; from there on each cycle more costs a cycle.
    cycles += rate * (share_ - measured_share_) * plain_seconds_ / steps;
    set_cycles(cycles);
  }
  measure(plain, delayed, kLastTurns, stream);
  step_seconds_ = plain_seconds_ / steps;
}

std::string PlantedDelay::note() const {
  char text[160];
  std::snprintf(text, sizeof text, "planted delay: %.3f %% of a step of %.2f us, asked for %.3g %%",
                100 * measured_share_, 1e6 * step_seconds_, 100 * share_);
  return text;
}

}  // namespace headroom
