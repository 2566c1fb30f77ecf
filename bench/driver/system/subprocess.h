// Other programs, run to their end.
#pragma once

#include <string>
#include <vector>

namespace headroom {

/// Runs a program without a shell. `output`: its standard output, at most 1 MB. Standard error goes to ours
/// if `show_errors`, else nowhere. `environment`: its "NAME=VALUE"; empty for this program's own.
struct ProgramResult {
  int exit_code = -1;  ///< -1: it could not be started, or was ended by a signal or the time limit
  bool started = false, late = false;  ///< late: the time limit ended it
  std::string output;
};
ProgramResult run_program(const std::vector<std::string>& arguments, int time_limit_seconds, bool show_errors,
                          const std::vector<std::string>& environment = {});

}  // namespace headroom
