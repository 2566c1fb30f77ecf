#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "driver/compare/formats/formats.h"
#include "driver/compare/formats/json_text.h"
#include "driver/compare/formats/words.h"

namespace headroom {

std::string comparison_google_benchmark(const Comparison& comparison) {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  int family = 0;
  for (const ComparedCell& cell : comparison.cells) {
    if (!judged(cell)) continue;  // the tool knows no cell without a time
    for (const bool head : {false, true}) {
      const std::string name = fmt::format("{}/{}", head ? "head" : "base", cell.name());
      for (std::size_t i = 0; i < cell.pairs.size(); ++i) {
        const BlockPair& pair = cell.pairs[i];
        runs.push_back({{"name", name},
                        {"family_index", family},
                        {"per_family_instance_index", 0},
                        {"run_name", name},
                        {"run_type", "iteration"},
                        {"repetitions", cell.pairs.size()},
                        {"repetition_index", i},
                        {"threads", 1},
                        {"iterations", head ? pair.head_steps : pair.base_steps},
                        {"real_time", 1e6 * (head ? pair.seconds.head_seconds : pair.seconds.base_seconds)},
                        {"cpu_time", 1e6 * (head ? pair.head_cpu_seconds : pair.base_cpu_seconds)},
                        {"time_unit", "us"}});
      }
      ++family;
    }
  }
  return indented({{"context",
                    {{"date", comparison.started_utc},
                     {"executable", "headroom compare"},
                     {"library_build_type", "release"},
                     {"caches", nlohmann::ordered_json::array()},
                     {"base", comparison.base},
                     {"head", comparison.head}}},
                   {"benchmarks", runs}});
}

}  // namespace headroom
