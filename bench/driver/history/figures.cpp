// The figures are Python's: it gets the history as JSON, with every verdict in it.
#include <fmt/core.h>

#include <fstream>

#include "core/error.h"
#include "driver/history/formats/formats.h"
#include "driver/history/history.h"
#include "driver/plan/backends.h"
#include "driver/system/interruption.h"
#include "driver/system/scratch.h"
#include "driver/system/subprocess.h"

namespace headroom {

bool draw_history(const History& history, const HistoryOptions& options) {
  const Installation installation = find_installation();
  const std::filesystem::path program = installation.root / "plots" / "history.py";
  std::error_code ignored;
  if (!std::filesystem::exists(program, ignored))
    throw InputError("--output: plots/history.py was not found; set HEADROOM_ROOT to the checkout");
  const Scratch scratch(0);
  const std::filesystem::path file = scratch.folder() / "history.json";
  std::ofstream stream(file);
  stream << history_json(history) << std::flush;
  if (!stream) throw OutputError(fmt::format("{}: cannot be written", file.string()));
  const ProgramResult result = run_program(
      {installation.python, program.string(), "--output=" + options.output.string(), "--", file.string()},
      600, true);
  interruption::throw_if_requested();
  if (!result.started)
    throw OutputError(fmt::format("no figures: {} cannot be started", installation.python));
  return result.exit_code == 0;
}

}  // namespace headroom
