// Progress on standard error: one changing line on a terminal that takes escape codes, no longer than it is wide; plain
// lines otherwise.
#pragma once

#include <chrono>
#include <string>

namespace headroom {

class Progress {
 public:
  Progress();
  ~Progress();

  /// Seconds the whole run is expected to take.
  void set_estimate(double seconds) { remaining_estimate_ = seconds; }
  /// A stage that is expected to take `estimated_seconds` begins, or is over; the estimate of the rest is
  /// scaled by how long stages really take.
  void stage_begins(double estimated_seconds);
  void stage_done();

  /// What is going on now. On such a terminal it replaces the line before; else it is printed if `important`
  /// or if nothing was for a while.
  void status(const std::string& text, bool important = false);
  /// A line that stays.
  void line(const std::string& text);
  /// Takes the changing line away: what is printed next may share the terminal.
  void clear();

 private:
  std::string time_left() const;
  std::chrono::steady_clock::time_point stage_start_, last_line_;
  double remaining_estimate_ = 0, stage_estimate_ = 0, done_estimate_ = 0, done_seconds_ = 0;
  bool one_line_ = false, shown_ = false;
};

}  // namespace headroom
