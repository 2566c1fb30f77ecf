#include "driver/compare/file_comparison.h"

#include <fmt/core.h>

#include <algorithm>

#include "analysis/signed_rank.h"
#include "analysis/speedup.h"
#include "core/error.h"
#include "core/optimizer_numbers.h"

namespace headroom {
namespace {

std::string text(const std::optional<std::string>& value) { return value.value_or("unknown"); }

// Files written before the field was there are all of version 1.
std::string software(const Results& results, const std::string& name, const std::string& otherwise) {
  const auto found = results.software.find(name);
  return found == results.software.end() ? otherwise : found->second;
}

std::string setting(const Results& results, const std::string& name) {
  const auto found = results.run.settings.find(name);
  return found == results.run.settings.end() ? "default" : found->second;
}

// "FIELD is 'A' and 'B'", or nothing if they are equal.
std::string difference(const std::string& field, const std::string& in_base, const std::string& in_head) {
  return in_base == in_head ? "" : fmt::format("{} is '{}' and '{}'", field, in_base, in_head);
}

// Seconds a step of each block, or InputError if there are too few.
std::vector<double> steps_of(const NamedResults& file, const Record& record) {
  const std::string where = fmt::format("{}: record {}/{}/{}", file.name, record.workload, record.backend,
                                        to_string(record.precision));
  std::vector<double> steps;
  for (const Block& block : record.blocks)
    steps.push_back(block.device_seconds / static_cast<double>(block.steps));
  if (steps.size() < kLeastPairs) {
    throw InputError(fmt::format("{}: {} blocks, expected at least {}", where, steps.size(), kLeastPairs));
  }
  return steps;
}

// Blocks of the two records, first with first: both are samples over their whole run. A run of more blocks than the
// statistics take gives them evenly.
std::vector<BlockPair> pair_blocks(const NamedResults& base_file, const Record& base,
                                   const NamedResults& head_file, const Record& head) {
  const std::vector<double> in_base = steps_of(base_file, base), in_head = steps_of(head_file, head);
  const std::size_t both = std::min(in_base.size(), in_head.size());
  const std::size_t count = std::min<std::size_t>(both, kMostSignedRankValues);
  std::vector<BlockPair> pairs;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * both / count;
    const Block &a = base.blocks[at], &b = head.blocks[at];
    const auto cpu = [](const Block& block) { return block.cpu_seconds / static_cast<double>(block.steps); };
    pairs.push_back({{in_base[at], in_head[at], 0}, cpu(a), cpu(b), a.steps, b.steps, b.order < a.order, 1});
  }
  return pairs;
}

bool has(const Record* record) { return record != nullptr && counts(*record); }

std::string why_not(const Record* record) {
  if (record == nullptr) return "not in the file";
  if (!record->message.empty()) return record->message;
  return record->verification.verdict == Verdict::kPass ? "it has no time" : "not verified";
}

}  // namespace

ComparedCell begin_cell(const NamedResults& base_file, const Record* base, const NamedResults& head_file,
                        const Record* head) {
  const Record& known = base != nullptr ? *base : *head;
  ComparedCell cell;
  cell.workload = known.workload;
  cell.precision = known.precision;
  cell.base_backend = base != nullptr ? base->backend : known.backend;
  cell.head_backend = head != nullptr ? head->backend : known.backend;
  if (has(base) && has(head)) {
    cell.pairs = pair_blocks(base_file, *base, head_file, *head);
    if (base->contract != head->contract)
      cell.message =
          fmt::format("contracts differ: {} and {}", to_string(base->contract), to_string(head->contract));
    const auto choice = [](const NamedResults& file, const Record& record) {
      return file.results.find_choice(record.workload, record.backend, record.precision);
    };
    const Choice *base_choice = choice(base_file, *base), *head_choice = choice(head_file, *head);
    if (base_choice != nullptr && head_choice != nullptr && base_choice->taken != head_choice->taken &&
        base->backend == head->backend) {
      cell.state = CellState::kChoseOtherwise;
      cell.pairs.clear();
      cell.message = other_choice(base_choice->taken, head_choice->taken);
    }
  } else if (has(head)) {
    const bool failed = base != nullptr && base->outcome != Outcome::kSkipped;
    cell.state = failed ? CellState::kBaseFailed : CellState::kNew;
    cell.message = "base: " + why_not(base);
  } else if (head != nullptr && head->outcome != Outcome::kSkipped) {
    cell.state = CellState::kFailed;
    cell.message = why_not(head);
  } else if (has(base)) {
    cell.state = CellState::kMissing;
    cell.message = "head: " + why_not(head);
  } else {
    cell.state = CellState::kSkipped;
    cell.message = why_not(head != nullptr ? head : base);
  }
  return cell;
}

namespace {

Comparison begin(const NamedResults& base, const NamedResults& head, const GateRule& rule) {
  Comparison comparison;
  comparison.base = base.name;
  comparison.head = head.name;
  comparison.device = head.results.device;
  comparison.software = head.results.software;
  comparison.started_utc = head.results.run.started_utc;
  comparison.rule = rule;
  comparison.rule.looks = 1;  // there is nothing more to measure
  return comparison;
}

}  // namespace

std::string machine_difference(const Results& base, const Results& head) {
  const auto field = [&](const std::string& name, auto&& of) { return difference(name, of(base), of(head)); };
  for (const std::string& found :
       {field("device.name",
              [](const Results& results) { return results.device ? results.device->name : "none"; }),
        field("device.driver",
              [](const Results& results) { return results.device ? results.device->driver : "none"; }),
        field("software.cuda_runtime",
              [](const Results& results) { return software(results, "cuda_runtime", "none"); }),
        field("software.worker_protocol",
              [](const Results& results) { return software(results, "worker_protocol", "1"); }),
        // How a block was measured is part of the protocol too.
        field("run.settings.block-seconds",
              [](const Results& results) { return setting(results, "block-seconds"); }),
        field("host.cpu",
              [](const Results& results) { return results.device ? "" : text(results.host.cpu); })}) {
    if (!found.empty()) return found;
  }
  return "";
}

std::string workload_difference(const WorkloadEntry& base, const WorkloadEntry& head) {
  const Workload &a = base.workload, &b = head.workload;
  std::vector<std::string> found = {difference("what is trained", default_name(a), default_name(b))};
  for (const std::string_view name : kOptimizerNumbers) {
    const double* in_base = optimizer_number(a.optimizer, name);
    const double* in_head = optimizer_number(b.optimizer, name);
    if (in_base != nullptr && in_head != nullptr)  // else another optimizer, which was said
      found.push_back(
          difference(std::string(name), fmt::format("{}", *in_base), fmt::format("{}", *in_head)));
  }
  found.push_back(difference("seed", fmt::format("{}", a.seed), fmt::format("{}", b.seed)));
  found.push_back(difference("dataset.digest", text(base.dataset.digest), text(head.dataset.digest)));
  for (const std::string& one : found)
    if (!one.empty()) return fmt::format("workload {}: {}", a.name, one);
  return "";
}

Comparison begin_files(const NamedResults& base, const NamedResults& head, const GateRule& rule) {
  Comparison comparison = begin(base, head, rule);
  comparison.kind = "files";
  comparison.widened_by = kRunDrift;
  comparison.rule.tolerance = (1 + rule.tolerance) * (1 + kRunDrift) - 1;
  return comparison;
}

Comparison compare_files(const NamedResults& base, const NamedResults& head, const GateRule& rule) {
  const auto refuse = [&](const std::string& found) {
    if (!found.empty())
      throw NotComparableError(fmt::format("{} and {} are not comparable: {}", base.name, head.name, found));
  };
  refuse(machine_difference(base.results, head.results));
  // A workload of the same name must be the same workload.
  for (const WorkloadEntry& one : base.results.workloads) {
    if (const WorkloadEntry* other = head.results.find_workload(one.workload.name))
      refuse(workload_difference(one, *other));
  }
  Comparison comparison = begin_files(base, head, rule);
  bool common = false;
  for (const Record& record : base.results.records) {
    const Record* other = head.results.find(record.workload, record.backend, record.precision);
    common = common || other != nullptr;
    comparison.cells.push_back(begin_cell(base, &record, head, other));
  }
  for (const Record& record : head.results.records) {
    if (base.results.find(record.workload, record.backend, record.precision) == nullptr)
      comparison.cells.push_back(begin_cell(base, nullptr, head, &record));
  }
  if (!common) {
    throw InputError(
        fmt::format("{} and {} have no common cells: no (workload, backend, precision) is in both", base.name,
                    head.name));
  }
  return comparison;
}

Comparison compare_within(const NamedResults& file, const std::string& base_backend,
                          const std::string& head_backend, const GateRule& rule) {
  std::vector<std::string> known;
  for (const Record& record : file.results.records) known.push_back(record.backend);
  for (const std::string& backend : {base_backend, head_backend}) {
    if (std::find(known.begin(), known.end(), backend) == known.end()) {
      throw InputError(fmt::format("--within {}: no record of backend '{}'; did you mean '{}'?", file.name,
                                   backend, nearest_name(backend, known)));
    }
  }
  Comparison comparison = begin(file, file, rule);
  comparison.kind = "within";
  comparison.base = base_backend;
  comparison.head = head_backend;
  for (const Record& record : file.results.records) {
    if (record.backend != base_backend && record.backend != head_backend) continue;
    const Record* base = file.results.find(record.workload, base_backend, record.precision);
    const Record* head = file.results.find(record.workload, head_backend, record.precision);
    if (base != nullptr && head != nullptr && &record != base) continue;  // was made with the other one
    comparison.cells.push_back(begin_cell(file, base, file, head));
    comparison.cells.back().base_backend = base_backend;
    comparison.cells.back().head_backend = head_backend;
  }
  return comparison;
}

}  // namespace headroom
