#include "choice/measure.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "core/error.h"

namespace headroom::choice {
namespace {

constexpr double kWarmupShare = 0.25;  // of a block, before it: the other trainer has used the caches
constexpr double kMargin = 1.2;        // on the steps that a block needs
constexpr std::int64_t kMostSteps = std::int64_t{1} << 20;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// A trainer that is timed, and where it is in its training.
struct Runner {
  std::unique_ptr<Trainer> trainer;
  std::size_t place = 0;  ///< among the candidates
  std::int64_t next_step = 0;
  std::int64_t block_steps = 1;
  double first_step_seconds = 0;  ///< of the block that was long enough

  /// Seconds of `count` steps.
  double train(std::int64_t count) {
    const double seconds = trainer->train(next_step, count).device_seconds;
    next_step += count;
    if (!(seconds > 0) || !std::isfinite(seconds))
      throw std::runtime_error("its steps took " + std::to_string(seconds) + " s");
    return seconds;
  }
  /// Finds how many steps a block has. The first steps of a trainer are slow, so runs grow until one is long enough.
  void choose_block(double block_seconds) {
    train(1);
    for (;;) {
      const double seconds = train(block_steps);
      first_step_seconds = seconds / static_cast<double>(block_steps);
      if (seconds >= block_seconds || block_steps >= kMostSteps) return;
      const double factor = std::clamp(kMargin * block_seconds / seconds, 2.0, 100.0);
      block_steps = std::min(kMostSteps,
                             static_cast<std::int64_t>(std::ceil(factor * static_cast<double>(block_steps))));
    }
  }
  /// Seconds a step, of a block with its warm-up.
  double timed_block() {
    train(std::max<std::int64_t>(1,
                                 static_cast<std::int64_t>(kWarmupShare * static_cast<double>(block_steps))));
    return train(block_steps) / static_cast<double>(block_steps);
  }
};

class Contest {
 public:
  Contest(std::span<const Candidate> candidates, const Rule& rule, const Surroundings& surroundings)
      : candidates_(candidates), rule_(rule), surroundings_(surroundings), begin_(surroundings.seconds()) {
    for (const Candidate& candidate : candidates)
      choice_.candidates.push_back({candidate.backend, std::nullopt, {}});
  }

  Measured run() {
    for (std::size_t place = 0; place < candidates_.size(); ++place) {
      const double begin = surroundings_.seconds();
      try_candidate(place);
      longest_ = std::max(longest_, surroundings_.seconds() - begin);
    }
    if (!best_.trainer) throw_that_none_is_left();
    choice_.taken = candidates_[best_.place].backend;
    return {std::move(best_.trainer), std::move(choice_)};
  }

 private:
  Choice::Candidate& entry(std::size_t place) { return choice_.candidates[place]; }

  void try_candidate(std::size_t place) {
    if (const auto reason = not_tried(place)) {
      entry(place).left_out = *reason;
      return;
    }
    Runner challenger;
    challenger.place = place;
    try {
      set_up_and_compare(challenger);
    } catch (const DeviceLostError&) {
      // To destroy a trainer is to wait for the device.
      (void)challenger.trainer.release();
      (void)best_.trainer.release();
      throw;
    }
  }

  void set_up_and_compare(Runner& challenger) {
    const bool is_set_up =
        attempt(challenger, [&] { challenger.trainer = candidates_[challenger.place].set_up(); });
    if (!is_set_up) return;
    if (!best_.trainer) {
      best_ = std::move(challenger);
      return;
    }
    if (!is_timed(best_) && !attempt(best_, [&] { best_.choose_block(rule_.block_seconds); })) {
      best_ = std::move(challenger);
      return;
    }
    if (attempt(challenger, [&] { challenger.choose_block(rule_.block_seconds); })) compare(challenger);
  }

  std::optional<std::string> not_tried(std::size_t place) const {
    // What the one before took is the best that is known of this one.
    const double elapsed = surroundings_.seconds() - begin_;
    if (best_.trainer && elapsed + longest_ > rule_.most_seconds)
      return "not tried: timing the others took " + std::to_string(static_cast<int>(elapsed)) + " s of " +
             std::to_string(static_cast<int>(rule_.most_seconds));
    const auto& out_of_reach = candidates_[place].out_of_reach;
    return out_of_reach ? out_of_reach() : std::nullopt;
  }

  static bool is_timed(const Runner& runner) { return runner.first_step_seconds > 0; }

  /// Times both and keeps one of them in best_.
  void compare(Runner& challenger) {
    entry(best_.place).step_seconds = best_.first_step_seconds;
    entry(challenger.place).step_seconds = challenger.first_step_seconds;
    if (challenger.first_step_seconds > rule_.far_behind * best_.first_step_seconds) return;
    std::vector<double> bests, challengers, ratios;
    const double begin = surroundings_.seconds();
    const auto time = [&](Runner& runner, double& seconds) {
      return attempt(runner, [&] { seconds = runner.timed_block(); });
    };
    for (int round = 0; round < rule_.rounds; ++round) {
      // What drifts over the four blocks drifts as much under both.
      double best[2] = {}, next[2] = {};
      if (!time(best_, best[0]) || !time(challenger, next[0]) || !time(challenger, next[1]) ||
          !time(best_, best[1]))
        break;
      bests.insert(bests.end(), std::begin(best), std::end(best));
      challengers.insert(challengers.end(), std::begin(next), std::end(next));
      ratios.push_back((next[0] + next[1]) / (best[0] + best[1]));
      if (surroundings_.seconds() - begin > rule_.rounds_seconds) break;
    }
    if (!challenger.trainer) return;
    if (!best_.trainer) {
      best_ = std::move(challenger);
      return;
    }
    entry(best_.place).step_seconds = median(bests);
    entry(challenger.place).step_seconds = median(challengers);
    best_.first_step_seconds = median(bests);
    challenger.first_step_seconds = median(challengers);
    if (median(ratios) < 1 - rule_.lead) best_ = std::move(challenger);
  }

  /// Whether `work` succeeded; else the candidate is out, with its message, and its trainer is gone.
  bool attempt(Runner& runner, const std::function<void()>& work) {
    std::string message;
    try {
      work();
      return true;
    } catch (const UnsupportedError& error) {
      entry(runner.place).left_out = error.what();
      return false;
    } catch (const DeviceStuckError& error) {
      lose_device(runner, error.what());
    } catch (const OutOfMemoryError& error) {
      message = error.what();
      if (!failure_) failure_ = std::make_exception_ptr(OutOfMemoryError(named(runner, message)));
    } catch (const std::exception& error) {
      message = error.what();
      if (!failure_) failure_ = std::make_exception_ptr(std::runtime_error(named(runner, message)));
    }
    if (const auto reason = surroundings_.broken()) lose_device(runner, message + " (" + *reason + ")");
    leave_out(runner, "failed: " + message);
    runner.trainer.reset();
    return false;
  }

  std::string named(const Runner& runner, const std::string& message) const {
    return candidates_[runner.place].backend + ": " + message;
  }
  void leave_out(const Runner& runner, const std::string& why) {
    entry(runner.place).left_out = why;
    entry(runner.place).step_seconds.reset();
  }
  [[noreturn]] void lose_device(const Runner& runner, const std::string& message) {
    leave_out(runner, kLost + message);
    throw DeviceLostError(named(runner, kLost + message + "; the next run leaves it out"), choice_);
  }

  [[noreturn]] void throw_that_none_is_left() const {
    if (failure_) std::rethrow_exception(failure_);
    std::string reasons;
    for (const Choice::Candidate& one : choice_.candidates)
      reasons += (reasons.empty() ? "" : "; ") + one.backend + ": " + one.left_out;
    throw UnsupportedError(reasons.empty() ? "there is nothing to choose from" : reasons);
  }

  std::span<const Candidate> candidates_;
  const Rule& rule_;
  const Surroundings& surroundings_;
  double begin_;
  double longest_ = 0;  // that a candidate has taken
  Choice choice_;
  Runner best_;
  std::exception_ptr failure_;  // the first that was not a refusal
};

}  // namespace

Measured measure(std::span<const Candidate> candidates, const Rule& rule, const Surroundings& surroundings) {
  return Contest(candidates, rule, surroundings).run();
}

}  // namespace headroom::choice
