#include "driver/results/formats/formats.h"

#include <fmt/core.h>

#include "driver/system/shown_path.h"
#include "driver/system/table.h"

namespace headroom {

std::string printed(const Results& results, const RunOptions& options, const std::filesystem::path& file,
                    std::size_t width) {
  if (options.format == SummaryFormat::kJson) return summary_json(results, file);
  if (options.format == SummaryFormat::kCsv) return blocks_csv_header() + blocks_csv(results, shown(file));
  const std::string& format = options.google_benchmark.format;
  if (!format.empty()) return benchmark_report(results, format, /*with_context=*/false);
  return fmt::format("\n{}\n{}{}\nResults: {}\n", summary_table(results, width), ladder_table(results, width),
                     wrapped(summary_sentence(results), width), shown(file));
}

}  // namespace headroom
