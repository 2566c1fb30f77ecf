// A slowdown of known size, planted in a training step: what the regression gate's proof and `--self-check --plant` must
// see. Nothing of it exists unless HEADROOM_PLANTED_DELAY_PERCENT is set.
//
// The delay is real time on the device: one thread that counts clock cycles, a kernel of its own in every captured step,
// beside the step's last kernel, since one behind it would cost two percent of a short step by being there. How many
// cycles it takes is found by measuring the step with and without it in turn.
#pragma once

#include <optional>
#include <string>

#include "device/memory.h"
#include "device/stream.h"

namespace headroom {

class PlantedDelay {
 public:
  /// 0.03 for HEADROOM_PLANTED_DELAY_PERCENT=3; nullopt if it is not set. Throws InputError for what is no percentage.
  static std::optional<double> asked_share();

  explicit PlantedDelay(double share);
  /// What is queued on `stream` between begin() and end() runs beside the wait; end() waits for it. To be captured.
  void begin(Stream& stream);
  void end(Stream& stream);
  /// Chooses the length: `plain` and `delayed` hold the same `steps` steps, without and with the wait. Trains them often.
  void calibrate(Graph& plain, Graph& delayed, int steps, Stream& stream);
  /// "planted delay: 3.01 % of a step of 29.8 us, asked for 3 %": measured after the length was chosen.
  std::string note() const;

 private:
  void set_cycles(double cycles);
  double clock_rate(Stream& stream);
  void measure(Graph& plain, Graph& delayed, int turns, Stream& stream);
  double share_;
  double measured_share_ = 0, plain_seconds_ = 0, step_seconds_ = 0;
  Stream beside_;
  Event begun_{Event::Kind::kOrder}, done_{Event::Kind::kOrder};
  DeviceBuffer<long long> cycles_;
};

}  // namespace headroom
