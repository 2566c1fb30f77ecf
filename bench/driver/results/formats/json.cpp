#include <nlohmann/json.hpp>

#include "analysis/floors.h"
#include "analysis/speedup.h"
#include "driver/results/formats/formats.h"

namespace headroom {

std::string summary_json(const Results& results, const std::filesystem::path& file) {
  using json = nlohmann::ordered_json;
  const auto or_null = [](const auto& value) { return value ? json(*value) : json(nullptr); };
  json rows = json::array();
  for (const SpeedupRow& row : speedup_rows(results.records)) {
    const Record& record = *row.record;
    rows.push_back({{"workload", record.workload},
                    {"precision", to_string(record.precision)},
                    {"backend", record.backend},
                    {"outcome", to_string(record.outcome)},
                    {"verdict", to_string(record.verification.verdict)},
                    {"message", record.message},
                    {"step_seconds", record.step_seconds ? json(record.step_seconds->median) : json(nullptr)},
                    {"speedup_over_pytorch_eager", or_null(row.over_pytorch_eager)},
                    {"speedup_over_best_pytorch", or_null(row.over_best_pytorch)},
                    {"speedup_over_best_rival", or_null(row.over_best_rival)},
                    {"fraction_of_floor", or_null(record.fraction_of_floor)},
                    {"faster_than_floor", is_faster_than_floor(record)},
                    {"best_pytorch", row.best_pytorch.empty() ? json(nullptr) : json(row.best_pytorch)},
                    {"best_rival", row.best_rival.empty() ? json(nullptr) : json(row.best_rival)},
                    {"refuted_rivals", row.refuted_rivals}});
  }
  const json summary = {{"results_file", file.string()},
                        {"complete", results.run.complete},
                        {"device", results.device ? json(results.device->name) : json(nullptr)},
                        {"finding", summary_sentence(results)},
                        {"records", rows}};
  return summary.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace headroom
