// Stands in for NCCL where the CPU plays the GPUs: the ranks' threads meet, and the last to come adds up for all.
#include "ranks/nccl.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime.h"

namespace headroom::ranks {
namespace {

constexpr std::chrono::seconds kPatience(60);

struct Meeting {
  explicit Meeting(int ranks) : buffers(static_cast<std::size_t>(ranks)) {}

  void sum(int rank, float* values, std::size_t count) {
    std::unique_lock lock(mutex);
    buffers[static_cast<std::size_t>(rank)] = values;
    if (++here < buffers.size()) {
      const std::uint64_t mine = meetings;
      changed.wait_for(lock, kPatience, [&] { return meetings != mine || aborted; });
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      float all = buffers[0][i];
      for (std::size_t other = 1; other < buffers.size(); ++other) all += buffers[other][i];
      for (float* buffer : buffers) buffer[i] = all;
    }
    here = 0;
    ++meetings;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<float*> buffers;
  std::size_t here = 0;
  std::uint64_t meetings = 0;
  bool aborted = false;
};

struct Rank {
  std::shared_ptr<Meeting> meeting;
  int rank;
};
Rank& rank_of(Nccl::Communicator communicator) { return *static_cast<Rank*>(communicator); }

}  // namespace

const Nccl& Nccl::get() {
  static const Nccl nccl{
      .get_version = [](int* version) { return *version = 10000, 0; },
      .get_error_string = [](int) { return "a failure"; },
      .get_last_error = [](Communicator) { return ""; },
      .comm_init_all =
          [](Communicator* communicators, int count, const int*) {
            const auto meeting = std::make_shared<Meeting>(count);
            for (int rank = 0; rank < count; ++rank) communicators[rank] = new Rank{meeting, rank};
            return 0;
          },
      .comm_get_async_error = [](Communicator, int* error) { return *error = 0, 0; },
      .comm_abort =
          [](Communicator communicator) {
            Meeting& meeting = *rank_of(communicator).meeting;
            const std::lock_guard lock(meeting.mutex);
            meeting.aborted = true;
            meeting.changed.notify_all();
            return 0;
          },
      .comm_destroy = [](Communicator communicator) { return delete &rank_of(communicator), 0; },
      .all_reduce =
          [](const void*, void* to, std::size_t count, int, int, Communicator communicator, cudaStream_t) {
            const auto work = [rank = rank_of(communicator), to, count] {
              rank.meeting->sum(rank.rank, static_cast<float*>(to), count);
            };
            return emulated::launch_host(work) == cudaSuccess ? 0 : 1;
          },
      .file = "of the tests"};
  return nccl;
}

}  // namespace headroom::ranks
