// The options of `headroom profile`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "driver/plan/options.h"

namespace headroom {

/// Adds the command to the program's parser; after parsing, finish() checks what was asked for.
class ProfileParser {
 public:
  explicit ProfileParser(CLI::App& app);
  ProfileParser(const ProfileParser&) = delete;  // the parser holds addresses of the members
  ProfileParser& operator=(const ProfileParser&) = delete;

  /// Throws InputError. `workers`: of --worker, parsed.
  void finish(const std::vector<std::string>& argv, std::vector<WorkerOption> workers);

  CLI::App* command;
  ProfileOptions options;
  std::vector<std::string> workers;

 private:
  std::string workload_, backend_, precision_, suite_;
};

}  // namespace headroom
