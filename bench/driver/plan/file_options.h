// The options of the commands that only read results files: `headroom history` and `headroom report`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "driver/plan/options.h"

namespace headroom {

/// Each adds its command to the program's parser; after parsing, finish() checks what was asked for and throws InputError.
class HistoryParser {
 public:
  explicit HistoryParser(CLI::App& app);
  HistoryParser(const HistoryParser&) = delete;  // the parser holds addresses of the members
  HistoryParser& operator=(const HistoryParser&) = delete;
  void finish();

  CLI::App* command;
  HistoryOptions options;

 private:
  std::string format_ = "text";
};

class ReportParser {
 public:
  explicit ReportParser(CLI::App& app);
  ReportParser(const ReportParser&) = delete;
  ReportParser& operator=(const ReportParser&) = delete;
  void finish();

  CLI::App* command;
  ReportOptions options;

 private:
  std::string format_, output_;
};

}  // namespace headroom
