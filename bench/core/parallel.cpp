// A pool of threads that sleep between loops; starting threads anew would cost more than a small oracle step.
#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace headroom {
namespace {

struct Loop {
  Loop(const std::function<void(std::int64_t, std::int64_t)>& loop_body, std::int64_t items,
       std::int64_t chunk_size)
      : body(&loop_body), count(items), chunk(chunk_size) {}

  const std::function<void(std::int64_t, std::int64_t)>* body;
  std::int64_t count, chunk;
  std::atomic<std::int64_t> next{0};
  int threads_inside = 0;  // guarded by the pool's mutex
  std::mutex failure_mutex;
  std::exception_ptr failure;

  void work() {
    try {
      for (std::int64_t begin; (begin = next.fetch_add(chunk)) < count;) {
        (*body)(begin, std::min(count, begin + chunk));
      }
    } catch (...) {
      next = count;
      std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  }
};

thread_local bool inside_loop = false;

class Pool {
 public:
  ~Pool() { stop(); }

  int threads() const { return threads_; }

  void resize(int threads) {
    std::lock_guard one_caller(caller_);
    stop();
    threads_ = threads > 0 ? threads : default_threads();
  }

  void run(Loop& loop) {
    const std::lock_guard one_caller(caller_);  // loops are short: waiting is quicker than one core alone
    start();
    {
      std::lock_guard lock(mutex_);
      loop_ = &loop;
      ++generation_;
    }
    wake_.notify_all();
    inside_loop = true;
    loop.work();
    inside_loop = false;
    std::unique_lock lock(mutex_);
    loop_ = nullptr;  // a thread that wakes only now finds nothing to do
    done_.wait(lock, [&] { return loop.threads_inside == 0; });
  }

 private:
  static int default_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

  void start() {
    while (static_cast<int>(workers_.size()) < threads_ - 1) {
      workers_.emplace_back([this, seen = generation_] { serve(seen); });
    }
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    stopping_ = false;
  }

  void serve(std::uint64_t seen) {
    inside_loop = true;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      Loop* loop = loop_;
      if (loop == nullptr) continue;
      ++loop->threads_inside;
      lock.unlock();
      loop->work();
      lock.lock();
      if (--loop->threads_inside == 0) done_.notify_one();
    }
  }

  std::mutex caller_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  int threads_ = default_threads();
  std::uint64_t generation_ = 0;
  Loop* loop_ = nullptr;
  bool stopping_ = false;
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

void parallel_chunks(std::int64_t count, std::int64_t chunk,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  Loop loop(body, count, std::max<std::int64_t>(1, chunk));
  if (inside_loop || count <= loop.chunk) {
    loop.work();
  } else {
    pool().run(loop);
  }
  if (loop.failure) std::rethrow_exception(loop.failure);
}

int parallel_threads() { return pool().threads(); }
void set_parallel_threads(int threads) { pool().resize(threads); }

}  // namespace headroom
