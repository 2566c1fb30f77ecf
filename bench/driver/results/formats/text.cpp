#include <fmt/core.h>

#include <algorithm>

#include "analysis/floors.h"
#include "analysis/gpu_state.h"
#include "analysis/ladder.h"
#include "analysis/speedup.h"
#include "driver/results/formats/formats.h"
#include "driver/system/table.h"
#include "driver/system/units.h"

namespace headroom {
namespace {

std::string times(const std::optional<double>& factor) {
  if (!factor) return "";
  return fmt::format("{:.{}f} x", *factor, *factor >= 100 ? 0 : 2);
}

const Floor* floor_of(const Results& results, const Record& record) {
  const WorkloadEntry* entry = results.find_workload(record.workload);
  if (entry == nullptr) return nullptr;
  const auto found = entry->floors.find(record.precision);
  return found == entry->floors.end() ? nullptr : &found->second;
}

// "12 % bytes"
std::string fraction_text(const Results& results, const Record& record) {
  const Floor* floor = floor_of(results, record);
  if (!record.fraction_of_floor || floor == nullptr) return "";
  const double percent = 100 * *record.fraction_of_floor;
  return fmt::format("{:.{}f} % {}", percent, percent < 10 ? 1 : 0, floor->bound);
}

std::string verdict_text(const SpeedupRow& row) {
  const Record& record = *row.record;
  if (record.outcome == Outcome::kFailed) return "FAILED: " + record.message;
  const std::string verdict = record.verification.verdict == Verdict::kPass
                                  ? "verified"
                                  : std::string(to_string(record.verification.verdict));
  const std::string slowdown = slowdown_message(record.blocks);
  const bool no_speedup = !row.refuted_rivals.empty() && is_ours(record) && counts(record);
  return verdict + (no_speedup ? ", no speed-up: " + refuted_text(row.refuted_rivals) : "") +
         (is_faster_than_floor(record) ? ", FASTER THAN ITS FLOOR" : "") +
         (slowdown.empty() ? "" : ", " + slowdown);
}

// Of a table in which it is empty.
Table without_column(const Table& table, std::size_t column) {
  Table rest = table;
  const auto erase = [&](Table::Row& row) { row.erase(row.begin() + static_cast<std::ptrdiff_t>(column)); };
  erase(rest.header);
  for (Table::Row& row : rest.rows) erase(row);
  rest.numbers.clear();
  for (const std::size_t number : table.numbers)
    if (number != column) rest.numbers.insert(number - (number > column ? 1 : 0));
  rest.dispensable.clear();
  for (const std::size_t one : table.dispensable)
    if (one != column) rest.dispensable.push_back(one - (one > column ? 1 : 0));
  return rest;
}

// What a name of a suite's own stands for, a line each.
std::string named_workloads(const Results& results) {
  std::string text;
  for (const WorkloadEntry& entry : results.workloads) {
    const std::string trained = default_name(entry.workload);
    if (entry.workload.name != trained) text += fmt::format("{}: {}\n", entry.workload.name, trained);
  }
  return text;
}

// What was skipped: a line for each reason, with whom it met and where.
std::string skipped_table(const std::vector<SpeedupRow>& rows) {
  struct Skipped {
    std::string reason;
    std::size_t count = 0;
    std::vector<std::string> backends = {}, workloads = {}, precisions = {};
  };
  std::vector<Skipped> skipped;
  const auto add = [](std::vector<std::string>& names, std::string_view name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  };
  for (const SpeedupRow& row : rows) {
    const Record& record = *row.record;
    if (record.outcome != Outcome::kSkipped) continue;
    auto same = std::find_if(skipped.begin(), skipped.end(),
                             [&](const Skipped& other) { return other.reason == record.message; });
    if (same == skipped.end()) same = skipped.insert(skipped.end(), {record.message});
    ++same->count;
    add(same->backends, record.backend);
    add(same->workloads, record.workload);
    add(same->precisions, to_string(record.precision));
  }
  if (skipped.empty()) return "";
  Table table{{"skipped", "reason"}, {}, {0}};
  const auto joined = [](const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
  };
  for (const Skipped& one : skipped) {
    const std::string workloads =
        one.workloads.size() == 1 ? one.workloads.front() : fmt::format("{} workloads", one.workloads.size());
    table.rows.push_back(
        {fmt::format("{}", one.count), fmt::format("{} ({}; {}; {})", one.reason, joined(one.backends),
                                                   workloads, joined(one.precisions))});
  }
  return "\n" + table_text(table);
}

}  // namespace

std::string summary_table(const Results& results, std::size_t width) {
  enum Column : std::size_t { kStep = 3, kInterval, kVsEager, kVsBest, kVsRival, kOfFloor };
  Table table{{"workload", "precision", "backend", "step", "95 % interval", "vs eager", "vs best", "vs rival",
               "of floor", "result"},
              {},
              {kStep, kInterval, kVsEager, kVsBest, kVsRival, kOfFloor},
              2,
              {kInterval, kOfFloor, kVsRival, kVsBest}};
  const std::vector<SpeedupRow> rows = speedup_rows(results.records);
  bool other_rival = false;
  for (const SpeedupRow& row : rows) {
    const Record& record = *row.record;
    if (record.outcome == Outcome::kSkipped) continue;
    std::string step, interval;
    if (record.step_seconds && record.outcome == Outcome::kOk) {
      step = step_text(record.step_seconds->median);
      interval =
          fmt::format("{} .. {}", step_text(record.step_seconds->low), step_text(record.step_seconds->high));
    }
    // Said once where it is the best PyTorch.
    const std::string vs_rival = row.best_rival == row.best_pytorch ? "" : times(row.over_best_rival);
    other_rival = other_rival || !vs_rival.empty();
    table.rows.push_back({record.workload, std::string(to_string(record.precision)), record.backend, step,
                          interval, times(row.over_pytorch_eager), times(row.over_best_pytorch), vs_rival,
                          fraction_text(results, record), verdict_text(row)});
  }
  std::string text;
  if (!table.rows.empty())
    text =
        table_text(other_rival ? table : without_column(table, kVsRival), width) + named_workloads(results) +
        "vs eager: speed-up over pytorch-eager; vs best: over the fastest PyTorch row; same precision\n" +
        (other_rival ? "vs rival: over the fastest row that is not ours, where that is not PyTorch's\n" : "");
  if (std::any_of(results.records.begin(), results.records.end(),
                  [](const Record& record) { return record.fraction_of_floor.has_value(); })) {
    text += "of floor: the least time the device could take over the measured one, and what sets it\n";
  }
  for (const Record& record : results.records) {
    if (is_faster_than_floor(record)) text += floor_defect(record) + "\n";
  }
  return wrapped(text + skipped_table(rows), width);
}

std::string ladder_table(const Results& results, std::size_t width) {
  const std::vector<std::pair<const char*, const char*>> terms = {
      {"python", "Python"}, {"dispatch", "dispatch"}, {"fusion", "fusion"},
      {"choice", "choice"}, {"kernels", "kernels"},   {"left", "left"}};
  constexpr std::size_t kBetween = 10;
  Table table{{"workload", "precision", "pytorch-eager"}, {}, {2, 3, 4, 5, 6, 7, 8, 9}, 2, {kBetween}};
  for (const auto& [name, title] : terms) table.header.push_back(title);
  table.header.insert(table.header.end(), {"floor", "between"});
  for (const WorkloadEntry& entry : results.workloads) {
    for (const auto& [precision, ladder] : entry.ladders) {
      const Record* eager = results.find(entry.workload.name, "pytorch-eager", precision);
      const auto floor = entry.floors.find(precision);
      Table::Row line = {entry.workload.name, std::string(to_string(precision)),
                         eager != nullptr && counts(*eager) ? step_text(eager->step_seconds->median) : ""};
      std::string between;
      int known = 0;
      for (const auto& [name, title] : terms) {
        line.emplace_back();
        for (const LadderTerm& term : ladder) {
          if (term.name != name || !term.seconds) continue;
          line.back() = term_text(term);
          ++known;
          if (term.to != "floor") between += (between.empty() ? "" : ", ") + term.to;
        }
      }
      line.push_back(floor == entry.floors.end() ? "" : step_text(floor->second.seconds));
      line.push_back(between);
      if (known >= 2) table.rows.push_back(std::move(line));
    }
  }
  if (table.rows.empty()) return "";
  return wrapped(
      "Where the time of a step goes: what is saved from one row to the next\n" + table_text(table, width) +
          "Python: eager in Python less eager in C++; dispatch: that less the whole step in a CUDA graph; "
          "fusion: that less\n"
          "the expert or compiled graph; choice: that less the best PyTorch, where it is another row; "
          "kernels: best\n"
          "PyTorch less the best of ours; left: that less the floor\n"
          "(noise): the intervals overlap; (negative): the second row is the slower one\n\n",
      width);
}

std::string summary_sentence(const Results& results) {
  const auto count = [&](auto&& of) {
    return std::count_if(results.records.begin(), results.records.end(), of);
  };
  const auto ran = count([](const Record& record) { return record.outcome == Outcome::kOk; });
  const auto verified = count([](const Record& record) { return counts(record); });
  const auto skipped = count([](const Record& record) { return record.outcome == Outcome::kSkipped; });
  const auto failed = count([](const Record& record) { return record.outcome == Outcome::kFailed; });
  std::string text = finding(results.records);
  const auto add = [&](const std::string& sentence) { text += (text.empty() ? "" : " ") + sentence; };
  if (ran > 0) {
    const bool one = ran == 1;
    std::string records = one ? "record" : fmt::format("{} records", ran);
    if (verified < ran) {
      records = fmt::format("{} of {} that ran", verified, one ? "1 record" : records);
    } else if (failed > 0) {
      records = "The other " + records;
    } else {
      records = (one ? "The one " : "All ") + records + " that ran";
    }
    add(fmt::format("{} {} verified{}.", records, one ? "is" : "are",
                    skipped > 0 ? fmt::format("; {} skipped", skipped) : ""));
  } else if (failed == 0) {
    add("Nothing could run here: see the reasons above.");
  }
  if (!results.device) add("No CUDA device was found: only CPU rows ran.");
  return text;
}

}  // namespace headroom
