#include "driver/run/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/names.h"
#include "driver/system/table.h"
#include "driver/system/terminal.h"
#include "driver/system/units.h"

namespace headroom {

Progress::Progress()
    : last_line_(std::chrono::steady_clock::now()), one_line_(takes_escape_codes(STDERR_FILENO)) {}

Progress::~Progress() { clear(); }

void Progress::stage_begins(double estimated_seconds) {
  stage_start_ = std::chrono::steady_clock::now();
  stage_estimate_ = estimated_seconds;
}

void Progress::stage_done() {
  done_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - stage_start_).count();
  done_estimate_ += stage_estimate_;
  remaining_estimate_ = std::max(0.0, remaining_estimate_ - stage_estimate_);
  stage_estimate_ = 0;
}

std::string Progress::time_left() const {
  if (remaining_estimate_ <= 0) return "";
  const double scale = done_estimate_ > 0 ? done_seconds_ / done_estimate_ : 1;
  const double after_stage = (remaining_estimate_ - stage_estimate_) * scale;
  double of_stage = stage_estimate_ * scale;
  if (stage_estimate_ > 0) {
    of_stage -= std::chrono::duration<double>(std::chrono::steady_clock::now() - stage_start_).count();
  }
  return fmt::format(", about {} left", duration_text(after_stage + std::max(0.0, of_stage)));
}

void Progress::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

void Progress::status(const std::string& text, bool important) {
  const std::string shown = printable(text), left = time_left();
  if (one_line_) {
    // A line that filled the last column would already be two on some terminals.
    const std::size_t width = terminal_width(STDERR_FILENO) - 1, of_left = characters(left);
    clear();
    std::fputs(2 * of_left < width ? (cut_to(shown, width - of_left) + left).c_str()
                                   : cut_to(shown + left, width).c_str(),
               stderr);
    std::fflush(stderr);
    shown_ = true;
  } else if (important || std::chrono::steady_clock::now() - last_line_ > std::chrono::seconds(20)) {
    last_line_ = std::chrono::steady_clock::now();
    std::fputs((shown + left + "\n").c_str(), stderr);
  }
}

void Progress::line(const std::string& text) {
  clear();
  std::fputs((wrapped(printable(text), terminal_width(STDERR_FILENO)) + "\n").c_str(), stderr);
}

}  // namespace headroom
