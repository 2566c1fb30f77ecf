#include "trainers/ranked_trainer.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/error.h"
#include "core/host_clock.h"
#include "device/check.h"
#include "device/device.h"
#include "device/kept_losses.h"

namespace headroom {
namespace {

void require_same_bits(const Parameters& first, const Parameters& other, std::size_t rank,
                       const std::string& what) {
  const auto expected = first.flat(), found = other.flat();
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (std::memcmp(&expected[i], &found[i], sizeof(float)) != 0)
      throw std::runtime_error("ranks 0 and " + std::to_string(rank) + " differ in " + what + " " +
                               std::to_string(i) + ": " + std::to_string(expected[i]) + " and " +
                               std::to_string(found[i]));
}

}  // namespace

RankedTrainer::RankedTrainer(std::vector<Rank> ranks, LaunchPace pace)
    : ranks_(std::move(ranks)), pace_(pace) {
  if (ranks_.empty()) throw std::invalid_argument("RankedTrainer: no rank");
}

template <class Visit>
void RankedTrainer::for_ranks(const Visit& visit) {
  for (Rank& rank : ranks_) {
    use_device(rank.device);
    visit(*rank.trainer);
  }
}

Timing RankedTrainer::train(std::int64_t first_step, std::int64_t count) {
  KeptLosses::require_steps(first_step, count);
  if (!failure_.empty()) throw std::runtime_error(failure_);
  const HostClock clock;
  double device_seconds = 0;
  try {
    for_ranks([](LaunchedTrainer& rank) { rank.mark_begin(); });
    device_seconds = pace_.run(
        count,
        [&](std::int64_t done, std::int64_t steps) {
          for_ranks([&](LaunchedTrainer& rank) { rank.launch(first_step + done, steps); });
        },
        [&] { return seconds_so_far(); });
  } catch (const CudaError&) {
    wait_for_all();
    failure_ = given_up();
    if (failure_.empty()) throw;
    throw DeviceStuckError(failure_);
  }
  failure_ = given_up();
  if (!failure_.empty()) throw std::runtime_error(failure_);
  if (pace_.worth_timing(count)) pace_.learn(device_seconds, count);
  for_ranks([&](LaunchedTrainer& rank) { rank.trained(first_step, count); });
  return clock.timing(device_seconds);
}

std::vector<float> RankedTrainer::losses(std::int64_t first_step, std::int64_t count) {
  std::vector<double> sums(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  for_ranks([&](LaunchedTrainer& rank) {
    const std::vector<float> own = rank.losses(first_step, count);
    for (std::size_t i = 0; i < own.size(); ++i) sums[i] += static_cast<double>(own[i]);
  });
  std::vector<float> means;
  for (const double sum : sums) means.push_back(static_cast<float>(sum / static_cast<double>(ranks_.size())));
  return means;
}

Parameters RankedTrainer::parameters() {
  Parameters first = ranks_.front().trainer->parameters();
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank)
    require_same_bits(first, ranks_[rank].trainer->parameters(), rank, "parameter");
  return first;
}

std::vector<Parameters> RankedTrainer::slots() {
  std::vector<Parameters> first = ranks_.front().trainer->slots();
  for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
    const std::vector<Parameters> other = ranks_[rank].trainer->slots();
    for (std::size_t slot = 0; slot < first.size(); ++slot)
      require_same_bits(first[slot], other[slot], rank, "slot " + std::to_string(slot) + ", value");
  }
  return first;
}

void RankedTrainer::set_parameters(const Parameters& parameters) {
  for_ranks([&](LaunchedTrainer& rank) { rank.set_parameters(parameters); });
}
void RankedTrainer::set_slots(const std::vector<Parameters>& slots) {
  for_ranks([&](LaunchedTrainer& rank) { rank.set_slots(slots); });
}

std::int64_t RankedTrainer::peak_device_bytes() {
  return ranks_.front().trainer->peak_device_bytes() / static_cast<std::int64_t>(ranks_.size());
}
std::optional<SetupCache> RankedTrainer::setup_cache() { return ranks_.front().trainer->setup_cache(); }
std::string RankedTrainer::note() {
  return std::to_string(ranks_.size()) + " devices, each: " + ranks_.front().trainer->note();
}

double RankedTrainer::seconds_so_far() {
  double most = 0;
  // All ends are recorded before the first is waited for, or a later rank's would stand behind that wait.
  for_ranks([](LaunchedTrainer& rank) { rank.mark_end(); });
  for_ranks([&](LaunchedTrainer& rank) { most = std::max(most, rank.marked_seconds()); });
  return most;
}

void RankedTrainer::wait_for_all() {
  for (Rank& rank : ranks_) {
    try {
      use_device(rank.device);
      rank.trainer->mark_end();
      (void)rank.trainer->marked_seconds();
    } catch (const CudaError&) {  // its own, which given_up() tells
    }
  }
}

std::string RankedTrainer::given_up() {
  std::string failure;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const auto reason = ranks_[i].trainer->given_up();
    if (reason) failure += (failure.empty() ? "rank " : "; rank ") + std::to_string(i) + ": " + *reason;
  }
  return failure;
}

}  // namespace headroom
