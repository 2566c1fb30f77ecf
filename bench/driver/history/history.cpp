#include "driver/history/history.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "analysis/speedup.h"
#include "analysis/statistics.h"
#include "core/error.h"
#include "driver/plan/backends.h"
#include "driver/plan/plan.h"
#include "driver/system/sources.h"

namespace headroom {
namespace {

constexpr std::size_t kShortCommit = 9;

bool is_same_commit(const std::string& one, const std::string& other) {
  return one.starts_with(other) || other.starts_with(one);
}

/// A source and what its files hold together.
struct Pool {
  HistorySource source;
  std::optional<std::string> digest;  // of the sources, where they had changes
  NamedResults results;
};

/// Files of one commit that are no one point: their times say nothing of each other.
std::string difference(const Results& one, const Results& other) {
  std::string found = machine_difference(one, other);
  for (const WorkloadEntry& entry : one.workloads) {
    const WorkloadEntry* same = other.find_workload(entry.workload.name);
    if (found.empty() && same != nullptr) found = workload_difference(entry, *same);
  }
  for (const Record& record : one.records) {
    const Choice* mine = one.find_choice(record.workload, record.backend, record.precision);
    const Choice* theirs = other.find_choice(record.workload, record.backend, record.precision);
    if (found.empty() && mine != nullptr && theirs != nullptr && mine->taken != theirs->taken)
      found = fmt::format("{} took '{}' and '{}'", record.backend, mine->taken, theirs->taken);
  }
  return found;
}

bool belongs_to(const Pool& pool, const NamedResults& file) {
  const RunInfo& run = file.results.run;
  const bool changed = run.git_dirty.value_or(false);
  if (!is_same_commit(pool.source.commit, *run.git_sha) || pool.source.dirty.value_or(false) != changed)
    return false;
  if (changed && (!run.source_digest || run.source_digest != pool.digest)) return false;
  return difference(pool.results.results, file.results).empty();
}

bool is_same_measurement(const Record& one, const Record& other) {
  return std::equal(one.blocks.begin(), one.blocks.end(), other.blocks.begin(), other.blocks.end(),
                    [](const Block& a, const Block& b) {
                      return a.steps == b.steps && a.device_seconds == b.device_seconds;
                    });
}

/// Returns how many records were there already, as those of a file that was cut out of another are.
std::int64_t add_records(Pool& pool, const NamedResults& file) {
  Results& all = pool.results.results;
  std::int64_t repeated = 0;
  for (const WorkloadEntry& entry : file.results.workloads) {
    WorkloadEntry* known = all.find_workload(entry.workload.name);
    if (known == nullptr) {
      all.workloads.push_back(entry);
      continue;
    }
    for (const auto& [precision, choices] : entry.choices)
      known->choices[precision].insert(choices.begin(), choices.end());
  }
  for (const Record& record : file.results.records) {
    const auto same = std::find_if(all.records.begin(), all.records.end(), [&](const Record& other) {
      return other.workload == record.workload && other.backend == record.backend &&
             other.precision == record.precision;
    });
    if (same == all.records.end()) {
      all.records.push_back(record);
    } else if (!counts(*same)) {
      if (counts(record) || same->outcome == Outcome::kSkipped) *same = record;
    } else if (counts(record)) {
      if (is_same_measurement(*same, record))
        ++repeated;
      else
        same->blocks.insert(same->blocks.end(), record.blocks.begin(), record.blocks.end());
    }
  }
  return repeated;
}

class Builder {
 public:
  Builder(const GateRule& rule, const std::map<std::string, std::int64_t>& commit_times)
      : rule_(rule), commit_times_(commit_times) {
    const Comparison like = begin_files({}, {}, rule);
    history_.rule = like.rule;
    history_.widened_by = like.widened_by;
  }

  void add(const NamedResults& file);
  History finish();

 private:
  std::optional<std::int64_t> time_of(const std::string& commit) const;
  bool sort(std::vector<Pool>& pools) const;
  DeviceHistory device_history(const std::string& device, std::vector<Pool>& pools) const;
  std::string why_not_compared(const Pool& before, const Record& base, const Pool& now,
                               const Record& head) const;
  void judge_pairs(DeviceHistory& history, const std::vector<Pool>& pools) const;

  const GateRule& rule_;
  const std::map<std::string, std::int64_t>& commit_times_;
  History history_;
  std::vector<std::pair<std::string, std::vector<Pool>>> devices_;  // in the order of the files
};

void Builder::add(const NamedResults& file) {
  const RunInfo& run = file.results.run;
  if (!run.git_sha) {
    history_.left_out.push_back({file.name, "it names no commit"});
    return;
  }
  const std::string device = device_name(file.results);
  auto found =
      std::find_if(devices_.begin(), devices_.end(), [&](const auto& one) { return one.first == device; });
  if (found == devices_.end()) found = devices_.insert(devices_.end(), {device, {}});
  std::vector<Pool>& pools = found->second;
  auto pool =
      std::find_if(pools.begin(), pools.end(), [&](const Pool& one) { return belongs_to(one, file); });
  if (pool == pools.end()) {
    pool = pools.insert(pools.end(),
                        {{*run.git_sha, run.git_dirty, run.started_utc, {}}, run.source_digest, file});
    // Its records come below, as those of the others do.
    pool->results.results.workloads.clear();
    pool->results.results.records.clear();
  }
  HistorySource& source = pool->source;
  source.files.push_back(file.name);
  source.date = std::min(source.date, run.started_utc);
  if (!run.git_dirty) source.dirty = std::nullopt;
  pool->results.name = source.label();
  if (run.git_dirty.value_or(false))
    history_.notes.push_back(
        {file.name, fmt::format("measured with changes that are in no commit ({})", source.label())});
  else if (!run.git_dirty)
    history_.notes.push_back({file.name, "does not say whether there were changes that are in no commit"});
  if (const std::int64_t repeated = add_records(*pool, file); repeated > 0)
    history_.notes.push_back(
        {file.name, fmt::format("{} of its records {} in another file, too, and count once", repeated,
                                repeated == 1 ? "is" : "are")});
}

std::optional<std::int64_t> Builder::time_of(const std::string& commit) const {
  const auto found = commit_times_.lower_bound(commit);
  if (found == commit_times_.end() || !found->first.starts_with(commit)) return std::nullopt;
  return found->second;
}

/// Whether the commits' own dates are all known, and decide. Measuring an old commit again does not make it a new one.
bool Builder::sort(std::vector<Pool>& pools) const {
  const bool by_commit = std::all_of(
      pools.begin(), pools.end(), [&](const Pool& pool) { return time_of(pool.source.commit).has_value(); });
  const auto key = [&](const Pool& pool) {
    return std::tuple(by_commit ? *time_of(pool.source.commit) : 0, by_commit ? pool.source.commit : "",
                      by_commit && pool.source.dirty.value_or(false), pool.source.date);
  };
  std::stable_sort(pools.begin(), pools.end(), [&](const Pool& a, const Pool& b) { return key(a) < key(b); });
  return by_commit;
}

std::string Builder::why_not_compared(const Pool& before, const Record& base, const Pool& now,
                                      const Record& head) const {
  std::string why = machine_difference(before.results.results, now.results.results);
  if (why.empty())
    why = workload_difference(*before.results.results.find_workload(base.workload),
                              *now.results.results.find_workload(head.workload));
  const std::size_t blocks = std::min(base.blocks.size(), head.blocks.size());
  if (why.empty() && blocks < kLeastPairs)
    why = fmt::format("{} blocks, expected at least {}", blocks, kLeastPairs);
  return why;
}

/// All cells that two sources have one after the other are a suite for the rule, as those of two files are.
void Builder::judge_pairs(DeviceHistory& history, const std::vector<Pool>& pools) const {
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::pair<CellHistory*, std::size_t>>> pairs;
  const auto record_at = [&](const CellHistory& cell, std::size_t source) {
    return pools[source].results.results.find(cell.workload, cell.backend, cell.precision);
  };
  for (CellHistory& cell : history.cells) {
    std::optional<std::size_t> before;
    for (std::size_t i = 0; i < cell.points.size(); ++i) {
      HistoryPoint& point = cell.points[i];
      if (!point.step_seconds) continue;
      if (before) {
        point.compared_with = before;
        point.message = why_not_compared(pools[*before], *record_at(cell, *before), pools[point.source],
                                         *record_at(cell, point.source));
        point.change = "not compared";
        if (point.message.empty()) pairs[{*before, point.source}].push_back({&cell, i});
      }
      before = point.source;
    }
  }
  for (const auto& [sources, places] : pairs) {
    const NamedResults &base = pools[sources.first].results, &head = pools[sources.second].results;
    Comparison comparison = begin_files(base, head, rule_);
    for (const auto& [cell, place] : places)
      comparison.cells.push_back(
          begin_cell(base, record_at(*cell, sources.first), head, record_at(*cell, sources.second)));
    judge(comparison);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const ComparedCell& compared = comparison.cells[i];
      HistoryPoint& point = places[i].first->points[places[i].second];
      point.change = verdict_word(compared);
      point.message = compared.message;
      if (compared.state == CellState::kJudged) point.finding = compared.finding;
    }
  }
}

DeviceHistory Builder::device_history(const std::string& device, std::vector<Pool>& pools) const {
  DeviceHistory history{device, sort(pools), {}, {}};
  std::vector<std::string> workloads;
  for (std::size_t source = 0; source < pools.size(); ++source) {
    history.sources.push_back(pools[source].source);
    const NamedResults& file = pools[source].results;
    for (const Record& record : file.results.records) {
      if (record.outcome == Outcome::kSkipped) continue;
      auto cell = std::find_if(history.cells.begin(), history.cells.end(), [&](const CellHistory& one) {
        return one.workload == record.workload && one.backend == record.backend &&
               one.precision == record.precision;
      });
      if (cell == history.cells.end()) {
        cell =
            history.cells.insert(cell, {record.workload,
                                        default_name(file.results.find_workload(record.workload)->workload),
                                        record.backend,
                                        record.precision,
                                        {}});
        if (std::find(workloads.begin(), workloads.end(), record.workload) == workloads.end())
          workloads.push_back(record.workload);
      }
      HistoryPoint& point = cell->points.emplace_back();
      point.source = source;
      if (counts(record)) {
        // Of what is judged: all blocks of all files.
        point.step_seconds =
            record.blocks.empty() ? record.step_seconds : median_interval(step_samples(record.blocks));
        point.blocks = std::ssize(record.blocks);
        point.change = "first";
      } else {
        const ComparedCell failed = begin_cell({}, nullptr, file, &record);
        point.change = verdict_word(failed);
        point.message = failed.message;
      }
    }
  }
  std::stable_sort(
      history.cells.begin(), history.cells.end(), [&](const CellHistory& a, const CellHistory& b) {
        const auto key = [&](const CellHistory& cell) {
          return std::pair(std::find(workloads.begin(), workloads.end(), cell.workload), cell.precision);
        };
        return key(a) < key(b);
      });
  judge_pairs(history, pools);
  return history;
}

History Builder::finish() {
  for (auto& [device, pools] : devices_) history_.devices.push_back(device_history(device, pools));
  return std::move(history_);
}

}  // namespace

std::string HistorySource::label() const {
  return commit.substr(0, kShortCommit) + (dirty.value_or(false) ? "+" : "");
}

std::string CellHistory::name() const { return cell_name(workload, backend, precision); }

std::int64_t History::count(const std::string& change) const {
  std::int64_t found = 0;
  for (const DeviceHistory& device : devices) {
    for (const CellHistory& cell : device.cells)
      found += std::count_if(cell.points.begin(), cell.points.end(),
                             [&](const HistoryPoint& point) { return point.change == change; });
  }
  return found;
}

History make_history(const std::vector<NamedResults>& files, const GateRule& rule,
                     const std::map<std::string, std::int64_t>& commit_times) {
  Builder builder(rule, commit_times);
  for (const NamedResults& file : files) builder.add(file);
  return builder.finish();
}

History read_history(const HistoryOptions& options) {
  std::vector<NamedResults> files;
  std::vector<FileNote> other_files;
  std::set<std::string> commits;
  for (const std::filesystem::path& file : options.files) {
    try {
      files.push_back({file.string(), read_results(file)});
    } catch (const OtherFileError& error) {
      // The message begins with the file's name.
      other_files.push_back({file.string(), std::string(error.what()).substr(file.string().size() + 2)});
      continue;
    }
    if (const auto& commit = files.back().results.run.git_sha) commits.insert(*commit);
  }
  GateRule rule;
  rule.tolerance = options.tolerance_percent / 100;
  History history = make_history(files, rule, commit_times(find_installation().root, commits));
  history.left_out.insert(history.left_out.begin(), other_files.begin(), other_files.end());
  const auto has_cells = [](const DeviceHistory& device) { return !device.cells.empty(); };
  if (std::none_of(history.devices.begin(), history.devices.end(), has_cells)) {
    const std::string why = history.left_out.empty() ? "every record was skipped"
                                                     : fmt::format("{}: {}", history.left_out.front().file,
                                                                   history.left_out.front().text);
    throw InputError(fmt::format("history: nothing was measured on a commit in {} ({})",
                                 options.files.size() == 1 ? "this file" : "these files", why));
  }
  return history;
}

}  // namespace headroom
