#include "driver/plan/file_options.h"

#include <fmt/core.h>

#include "core/error.h"
#include "driver/plan/named_option.h"
#include "driver/plan/number_range.h"

namespace headroom {
namespace {

void require_files(const std::string& command, const std::vector<std::filesystem::path>& files) {
  if (files.empty())
    throw InputError(fmt::format(
        "{}: no results file is given; expected RESULTS.json [...], as run writes them", command));
}

}  // namespace

HistoryParser::HistoryParser(CLI::App& app)
    : command(app.add_subcommand(
          "history", "How long a step took over commits: a table and figures from results files")) {
  command->add_option("files", options.files, "RESULTS.json [...]: of any devices and commits");
  command->add_option("--format", format_, "text, json (results/history.schema.json) or csv")
      ->capture_default_str();
  command->add_flag_callback("--json", [this] { format_ = "json"; }, "The same as --format json");
  command->add_option("-o,--output", options.output,
                      "Folder for the figures (SVG and PNG); default: none are drawn");
  command
      ->add_option("--tolerance", options.tolerance_percent,
                   "Percent that count as the same; the drift between runs comes on top")
      ->capture_default_str()
      ->check(between(0.1, 100.0));
  command->footer(
      "Changes are judged as `compare BASE.json HEAD.json` judges them; docs/gate.md has the rule.\n"
      "Exit codes: 0 done, whatever the changes are, 2 wrong usage, bad input or output that cannot be "
      "written,\n130 interrupted.");
}

void HistoryParser::finish() {
  require_files("history", options.files);
  options.format = parse_named("--format", format_, kSummaryFormats);
}

ReportParser::ReportParser(CLI::App& app)
    : command(app.add_subcommand("report", "Print results files as CSV, a row for each block")) {
  command->add_option("files", options.files, "RESULTS.json [...]");
  command->add_option("--format", format_, "csv");
  command->add_option("-o,--output", output_)->group("");  // to refuse it with a reason
  command->footer(
      "The report with its figures is the front door's: ./headroom report RESULTS.json [...] -o DIR");
}

void ReportParser::finish() {
  if (format_.empty())
    throw InputError(
        "report: expected --format csv; the report with its figures is made by ./headroom report "
        "RESULTS.json [...] -o DIR");
  if (format_ != "csv") throw InputError(fmt::format("--format {}: a report's rows are csv", format_));
  if (!output_.empty())
    throw InputError("--output and --format csv: rows go to standard output; redirect it into a file");
  require_files("report", options.files);
}

}  // namespace headroom
