#include "ranks/trainer.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "core/error.h"
#include "core/host_clock.h"

namespace headroom::ranks {
namespace {

/// Runs one piece of work after the other.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void start(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_ = std::move(work);
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !work_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return work_ || ending_; });
      if (!work_) return;
      lock.unlock();
      work_();
      lock.lock();
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

class RanksTrainer : public Trainer {
 public:
  RanksTrainer(const Workload& workload, std::string backend, const std::function<Rank(int rank)>& make,
               std::function<void()> give_up)
      : backend_(std::move(backend)),
        give_up_(std::move(give_up)),
        ranks_(static_cast<std::size_t>(workload.devices)),
        threads_(ranks_.size()) {
    try {
      on_all([&](int rank) { ranks_[static_cast<std::size_t>(rank)] = make(rank); });
      on_all([&](int rank) {
        Rank& one = ranks_[static_cast<std::size_t>(rank)];
        if (one.begin) one.begin();
      });
    } catch (...) {
      end();
      throw;
    }
  }
  ~RanksTrainer() override { end(); }

  Timing train(std::int64_t first_step, std::int64_t count) override {
    const HostClock clock;
    std::vector<Timing> timings(ranks_.size());
    on_all([&](int rank) { timings[static_cast<std::size_t>(rank)] = at(rank).train(first_step, count); });
    double device_seconds = 0;
    for (const Timing& timing : timings) device_seconds = std::max(device_seconds, timing.device_seconds);
    return clock.timing(device_seconds);
  }

  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    std::vector<std::vector<float>> losses(ranks_.size());
    on_all([&](int rank) { losses[static_cast<std::size_t>(rank)] = at(rank).losses(first_step, count); });
    std::vector<float> means(losses.front().size());
    for (std::size_t step = 0; step < means.size(); ++step) {
      double sum = 0;
      for (const std::vector<float>& of_a_rank : losses) sum += static_cast<double>(of_a_rank.at(step));
      means[step] = static_cast<float>(sum / static_cast<double>(ranks_.size()));
    }
    return means;
  }

  Parameters parameters() override {
    std::vector<Parameters> all(ranks_.size());
    on_all([&](int rank) { all[static_cast<std::size_t>(rank)] = at(rank).parameters(); });
    for (std::size_t rank = 1; rank < all.size(); ++rank) require_equal(all.front(), all[rank], rank, "");
    return std::move(all.front());
  }
  void set_parameters(const Parameters& parameters) override {
    on_all([&](int rank) { at(rank).set_parameters(parameters); });
  }
  std::vector<Parameters> slots() override {
    std::vector<std::vector<Parameters>> all(ranks_.size());
    on_all([&](int rank) { all[static_cast<std::size_t>(rank)] = at(rank).slots(); });
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      for (std::size_t slot = 0; slot < all.front().size(); ++slot)
        require_equal(all.front()[slot], all[rank].at(slot), rank,
                      "slot " + std::to_string(slot + 1) + " of ");
    return std::move(all.front());
  }
  void set_slots(const std::vector<Parameters>& slots) override {
    on_all([&](int rank) { at(rank).set_slots(slots); });
  }

  /// What is counted is the memory of the process.
  std::int64_t peak_device_bytes() override {
    const std::int64_t bytes = at(0).peak_device_bytes();
    return bytes < 0 ? bytes : bytes / static_cast<std::int64_t>(ranks_.size());
  }
  std::optional<SetupCache> setup_cache() override {
    std::optional<SetupCache> cache;
    for (const Rank& rank : ranks_)
      if (const auto one = rank.trainer->setup_cache(); one && (!cache || *one == SetupCache::kCold))
        cache = one;
    return cache;
  }
  std::optional<Choice> choice() override { return at(0).choice(); }
  std::string note() override { return at(0).note(); }

 private:
  Trainer& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)].trainer; }

  /// Throws what the first rank to fail has thrown, with its number; others fail for its sake.
  void on_all(const std::function<void(int rank)>& work) {
    if (!failure_.empty()) throw std::runtime_error(failure_);
    std::exception_ptr first;
    int failed = -1;
    std::mutex mutex;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads_[rank].start([&, rank = static_cast<int>(rank)] {
        try {
          work(rank);
        } catch (const InputError&) {  // of what was asked for, by all ranks alike: nobody waits
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (failed >= 0) return;
          first = std::current_exception();
          failed = rank;
          if (give_up_) give_up_();
        }
      });
    }
    for (Worker& thread : threads_) thread.wait();
    if (first && failed < 0) std::rethrow_exception(first);
    if (first) fail(first, failed);
  }

  /// Keeps the kinds of error that somebody tells apart.
  [[noreturn]] void fail(const std::exception_ptr& error, int rank) {
    const auto text = [&](const std::exception& what) {
      failure_ = backend_ + ": rank " + std::to_string(rank) + ": " + what.what();
      return failure_;
    };
    try {
      std::rethrow_exception(error);
    } catch (const UnsupportedError& what) {
      text(what);
      throw;
    } catch (const OutOfMemoryError& what) {
      throw OutOfMemoryError(text(what));
    } catch (const DeviceStuckError& what) {
      throw DeviceStuckError(text(what));
    } catch (const std::exception& what) {
      throw std::runtime_error(text(what));
    }
  }

  void require_equal(const Parameters& one, const Parameters& other, std::size_t rank,
                     const std::string& which) const {
    const std::span<const float> ours = one.flat(), theirs = other.flat();
    if (ours.size() == theirs.size() && std::memcmp(ours.data(), theirs.data(), ours.size_bytes()) == 0)
      return;
    for (const TensorRange& tensor : tensor_ranges(one.widths())) {
      for (std::int64_t i = 0; i < tensor.size; ++i) {
        const auto place = static_cast<std::size_t>(tensor.begin + i);
        if (std::bit_cast<std::uint32_t>(ours[place]) == std::bit_cast<std::uint32_t>(theirs[place]))
          continue;
        throw std::runtime_error(backend_ + ": rank " + std::to_string(rank) + " differs from rank 0 in " +
                                 which + tensor.name + "[" + std::to_string(i) + "]: " +
                                 std::to_string(theirs[place]) + " and " + std::to_string(ours[place]));
      }
    }
    throw std::runtime_error(backend_ + ": rank " + std::to_string(rank) +
                             " has another network than rank 0");
  }

  /// Each rank's trainer goes where it was made.
  void end() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads_[rank].start([&one = ranks_[rank]] {
        one.begin = nullptr;
        one.trainer.reset();
      });
    }
    for (Worker& thread : threads_) thread.wait();
  }

  const std::string backend_;
  const std::function<void()> give_up_;
  std::string failure_;
  std::vector<Rank> ranks_;
  std::vector<Worker> threads_;
};

}  // namespace

std::unique_ptr<Trainer> make_trainer(const Workload& workload, const std::string& backend,
                                      const std::function<Rank(int rank)>& make,
                                      std::function<void()> give_up) {
  return std::make_unique<RanksTrainer>(workload, backend, make, std::move(give_up));
}

}  // namespace headroom::ranks
