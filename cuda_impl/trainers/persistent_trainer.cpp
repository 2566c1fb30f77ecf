#include "trainers/persistent_trainer.h"

#include <stdexcept>
#include <utility>

#include "core/error.h"
#include "core/host_clock.h"
#include "device/copies.h"

namespace headroom {

PersistentTrainer::PersistentTrainer(std::vector<int> widths, LaunchPace pace)
    : widths_(std::move(widths)), pace_(pace) {
  DeviceMemory::reset_peak();
  status_ = zeros<std::uint32_t>(1);
}

Timing PersistentTrainer::train(std::int64_t first_step, std::int64_t count) {
  KeptLosses::require_steps(first_step, count);
  if (!failure_.empty()) throw std::runtime_error(failure_);
  const HostClock clock;
  mark_begin();
  const double device_seconds = pace_.run(
      count, [&](std::int64_t done, std::int64_t steps) { launch(first_step + done, steps); },
      [&] {
        mark_end();
        return marked_seconds();
      });
  check_status();
  if (pace_.worth_timing(count)) pace_.learn(device_seconds, count);
  trained(first_step, count);
  return clock.timing(device_seconds);
}

std::vector<float> PersistentTrainer::losses(std::int64_t first_step, std::int64_t count) {
  return losses_.read(first_step, count, stream_);
}

void PersistentTrainer::require_widths_of(const Parameters& parameters) const {
  if (parameters.widths() != widths_) throw InputError("set_parameters: parameters of another network");
}

std::optional<std::string> PersistentTrainer::given_up() const {
  std::uint32_t status = 0;
  status_.copy_to({&status, 1});
  if (status == 0) return std::nullopt;
  return describe_status(status);
}

void PersistentTrainer::check_status() {
  const auto reason = given_up();
  if (!reason) return;
  failure_ = *reason;
  throw std::runtime_error(failure_);
}

}  // namespace headroom
