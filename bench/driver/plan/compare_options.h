// The options of `headroom compare`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "driver/plan/options.h"

namespace headroom {

/// Adds the command to the program's parser; after parsing, finish() checks what was asked for.
class CompareParser {
 public:
  explicit CompareParser(CLI::App& app);
  CompareParser(const CompareParser&) = delete;  // the parser holds addresses of the members
  CompareParser& operator=(const CompareParser&) = delete;

  /// Throws InputError: the uses of the command exclude each other, and each needs its own options.
  void finish();

  CLI::App* command;
  CompareOptions options;

 private:
  void add_what();
  void add_how();
  void check_use() const;
  std::vector<std::string> given() const;
  std::vector<std::string> precisions_;
  std::string format_ = "text";
};

}  // namespace headroom
