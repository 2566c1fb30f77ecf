// Who is compared with whom, and the sentence about it.
#include "analysis/speedup.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

namespace headroom {
namespace {

std::optional<double> ratio(const Record* slower, const Record& faster) {
  if (slower == nullptr || !counts(faster)) return std::nullopt;
  return slower->step_seconds->median / faster.step_seconds->median;
}

const Record* find(const std::vector<Record>& records, const Record& like, std::string_view backend) {
  for (const Record& record : records) {
    if (record.workload == like.workload && record.precision == like.precision && record.backend == backend &&
        counts(record)) {
      return &record;
    }
  }
  return nullptr;
}

const Record* fastest(const std::vector<Record>& records, const std::string& workload, Precision precision,
                      bool (*is_wanted)(const Record&)) {
  const Record* best = nullptr;
  for (const Record& record : records) {
    if (record.workload != workload || record.precision != precision || !is_wanted(record) ||
        !counts(record)) {
      continue;
    }
    if (best == nullptr || record.step_seconds->median < best->step_seconds->median) best = &record;
  }
  return best;
}

// "9.8 times", two significant digits at least.
std::string times(double value) {
  char text[40];
  std::snprintf(text, sizeof text, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
  return text;
}

std::string count_of(std::size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// The fastest of those in each (workload, precision), against the best PyTorch there and the best rival, which may be the
// same.
struct Comparison {
  const SpeedupRow* row = nullptr;
  const Record* record = nullptr;
  double over_pytorch = 0, over_rival = 0;
  bool has_other_rival() const { return row->best_rival != row->best_pytorch; }
};

std::vector<Comparison> fastest_against_best(const std::vector<SpeedupRow>& rows,
                                             bool (*is_wanted)(const Record&)) {
  std::map<std::pair<std::string, Precision>, Comparison> fastest;
  for (const SpeedupRow& row : rows) {
    if (!row.over_best_pytorch || !is_wanted(*row.record)) continue;
    Comparison& best = fastest[{row.record->workload, row.record->precision}];
    if (*row.over_best_pytorch > best.over_pytorch)
      best = {&row, row.record, *row.over_best_pytorch, row.over_best_rival.value()};
  }
  std::vector<Comparison> result;
  for (auto& [key, comparison] : fastest) result.push_back(comparison);
  return result;
}

// "4.00 (mlp-... fp32) to 20.0 (mlp-... fp16)"
std::string range_text(const std::vector<Comparison>& comparisons, double Comparison::* speedup) {
  const auto [low, high] =
      std::minmax_element(comparisons.begin(), comparisons.end(),
                          [&](const auto& a, const auto& b) { return a.*speedup < b.*speedup; });
  const auto end = [&](const Comparison& comparison) {
    return times(comparison.*speedup) + " (" + comparison.record->workload + " " +
           std::string(to_string(comparison.record->precision)) + ")";
  };
  return end(*low) + " to " + end(*high);
}

std::string our_sentence(const std::vector<Comparison>& comparisons) {
  std::set<std::string> names, workloads;
  std::set<Precision> precisions;
  bool other_rival = false;
  for (const Comparison& comparison : comparisons) {
    names.insert(comparison.record->backend);
    workloads.insert(comparison.record->workload);
    precisions.insert(comparison.record->precision);
    other_rival = other_rival || comparison.has_other_rival();
  }
  const std::string who = names.size() == 1 ? *names.begin() : "the fastest of our kernels";
  if (comparisons.size() == 1) {
    const Comparison& only = comparisons.front();
    return who + " trains " + only.record->workload + " " + std::string(to_string(only.record->precision)) +
           " " + times(only.over_pytorch) + " times as fast as the best PyTorch (" + only.row->best_pytorch +
           ")" +
           (other_rival ? ", " + times(only.over_rival) + " times as fast as the best rival (" +
                              only.row->best_rival + ")"
                        : "") +
           ".";
  }
  return who + " trains " + range_text(comparisons, &Comparison::over_pytorch) +
         " times as fast as the best PyTorch of the same run" +
         (other_rival
              ? ", " + range_text(comparisons, &Comparison::over_rival) + " times as fast as its best rival"
              : "") +
         ", over " + count_of(workloads.size(), "workload") + " and " +
         count_of(precisions.size(), "precision") + ".";
}

// Of the cells in which a rival that failed its verification takes one of ours its speed-up.
std::string refuted_sentence(const std::vector<SpeedupRow>& rows) {
  std::vector<std::string> cells;
  for (const SpeedupRow& row : rows) {
    if (row.refuted_rivals.empty() || !is_ours(*row.record) || !counts(*row.record)) continue;
    const std::string cell = row.record->workload + " " + std::string(to_string(row.record->precision)) +
                             ": " + refuted_text(row.refuted_rivals);
    if (std::find(cells.begin(), cells.end(), cell) == cells.end()) cells.push_back(cell);
  }
  if (cells.empty()) return "";
  const std::string more =
      cells.size() > 1 ? ", and of " + count_of(cells.size() - 1, "other cell") + " likewise" : "";
  return "No speed-up is claimed of " + cells.front() + more + ".";
}

std::string pytorch_sentence(const std::vector<SpeedupRow>& rows) {
  for (const SpeedupRow& row : rows) {
    if (!row.is_best_pytorch) continue;
    std::string text = row.record->backend + " is the fastest PyTorch here";
    if (row.over_pytorch_eager && row.record->backend != "pytorch-eager") {
      text += ", " + times(*row.over_pytorch_eager) + " times as fast as pytorch-eager";
    }
    return text + " (" + row.record->workload + ", " + std::string(to_string(row.record->precision)) +
           "); none of our kernels ran, so there is no speed-up to report.";
  }
  return "No competing record ran and passed its checks, so there is no speed-up to report.";
}

}  // namespace

bool is_pytorch(const Record& record) {
  return record.family == Family::kPytorch || record.family == Family::kLibtorch;
}
bool is_ours(const Record& record) { return record.family == Family::kOurs; }
bool is_reference(const Record& record) { return record.family == Family::kReference; }
bool is_rival(const Record& record) { return !is_ours(record) && !is_reference(record); }

bool counts(const Record& record) {
  return record.outcome == Outcome::kOk && record.verification.verdict == Verdict::kPass &&
         record.step_seconds && std::isfinite(record.step_seconds->median) && record.step_seconds->median > 0;
}

const Record* best_pytorch(const std::vector<Record>& records, const std::string& workload,
                           Precision precision) {
  return fastest(records, workload, precision, is_pytorch);
}

const Record* best_rival(const std::vector<Record>& records, const std::string& workload,
                         Precision precision) {
  return fastest(records, workload, precision, is_rival);
}

std::vector<std::string> refuted_rivals(const std::vector<Record>& records, const std::string& workload,
                                        Precision precision) {
  std::vector<std::string> rivals;
  for (const Record& record : records) {
    if (record.workload == workload && record.precision == precision && is_rival(record) &&
        record.verification.verdict == Verdict::kFail)
      rivals.push_back(record.backend);
  }
  return rivals;
}

std::string refuted_text(const std::vector<std::string>& rivals) {
  std::string text;
  for (std::size_t i = 0; i < rivals.size(); ++i)
    text += (i == 0 ? "" : i + 1 == rivals.size() ? " and " : ", ") + rivals[i];
  return text.empty() ? text : text + " failed verification";
}

std::vector<SpeedupRow> speedup_rows(const std::vector<Record>& records) {
  std::vector<SpeedupRow> rows;
  for (const Record& record : records) {
    const Record* best = best_pytorch(records, record.workload, record.precision);
    const Record* rival = best_rival(records, record.workload, record.precision);
    SpeedupRow row{.record = &record,
                   .is_best_pytorch = best == &record,
                   .best_pytorch = best == nullptr ? "" : best->backend,
                   .over_best_pytorch = {},
                   .best_rival = rival == nullptr ? "" : rival->backend,
                   .over_best_rival = {},
                   .over_pytorch_eager = {},
                   .refuted_rivals = refuted_rivals(records, record.workload, record.precision)};
    if (!is_reference(record) && row.refuted_rivals.empty()) {
      row.over_best_pytorch = ratio(best, record);
      row.over_best_rival = ratio(rival, record);
      row.over_pytorch_eager = ratio(find(records, record, "pytorch-eager"), record);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string finding(const std::vector<Record>& records) {
  const std::vector<SpeedupRow> rows = speedup_rows(records);
  const std::vector<Comparison> ours = fastest_against_best(rows, is_ours);
  const std::string refuted = refuted_sentence(rows);
  const bool nothing_else = ours.empty() && !refuted.empty();
  std::string text = nothing_else ? "" : ours.empty() ? pytorch_sentence(rows) : our_sentence(ours);
  if (!refuted.empty()) text += (text.empty() ? "" : " ") + refuted;
  const auto failed =
      static_cast<std::size_t>(std::count_if(records.begin(), records.end(), [](const Record& record) {
        return record.outcome == Outcome::kFailed || record.verification.verdict == Verdict::kFail;
      }));
  if (failed > 0) text += " " + count_of(failed, "record") + " failed.";
  return text;
}

}  // namespace headroom
