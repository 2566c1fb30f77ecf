// Prints, as JSON, how often the gate would be right under a given noise: what bench's proof of the gate stores.
//
//   headroom-simulate-gate SUITES CELLS LAUNCHES PAIRS PROCESS BLOCK DRIFT CORRELATION SPIKE_PROBABILITY SPIKE SLOWDOWN...
//
// A SLOWDOWN is a factor, such as 1.03; all cells of a simulated suite have it.
#include <cstdio>
#include <cstdlib>

#include "gate_simulation.h"

int main(int argc, char** argv) {
  using namespace headroom;
  if (argc < 12) {
    std::fprintf(stderr,
                 "usage: headroom-simulate-gate SUITES CELLS LAUNCHES PAIRS PROCESS BLOCK DRIFT CORRELATION "
                 "SPIKE_PROBABILITY SPIKE SLOWDOWN...\n");
    return 2;
  }
  const auto number = [&](int i) { return std::atof(argv[i]); };
  const Shape shape{std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4])};
  const Noise noise{number(5), number(6), number(7), number(8), number(9), number(10)};
  std::printf("[");
  for (int i = 11; i < argc; ++i) {
    const Rates rates = simulate(noise, shape, {number(i)}, std::atoi(argv[1]), GateRule{},
                                 20261121u + static_cast<unsigned>(i));
    std::printf(
        "%s{\"slowdown\": %.17g, \"suites\": %d, \"suites_with_regression\": %d, "
        "\"suites_with_improvement\": %d, "
        "\"cells\": %d, \"regressions\": %d, \"improvements\": %d, \"equivalent\": %d, \"inconclusive\": %d}",
        i > 11 ? ",\n " : "", number(i), rates.suites, rates.suites_with_regression,
        rates.suites_with_improvement, rates.cells, rates.regressions, rates.improvements, rates.equivalent,
        rates.inconclusive);
  }
  std::printf("]\n");
  return 0;
}
