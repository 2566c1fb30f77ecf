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

void compare_field(const NamedResults& base, const NamedResults& head, const std::string& field,
                   const std::string& in_base, const std::string& in_head) {
  if (in_base == in_head) return;
  throw NotComparableError(fmt::format("{} and {} are not comparable: {} is '{}' and '{}'", base.name,
                                       head.name, field, in_base, in_head));
}

void compare_machines(const NamedResults& base, const NamedResults& head) {
  const auto field = [&](const std::string& name, auto&& of) {
    compare_field(base, head, name, of(base.results), of(head.results));
  };
  field("device.name", [](const Results& results) { return results.device ? results.device->name : "none"; });
  field("device.driver",
        [](const Results& results) { return results.device ? results.device->driver : "none"; });
  field("software.cuda_runtime",
        [](const Results& results) { return software(results, "cuda_runtime", "none"); });
  field("software.worker_protocol",
        [](const Results& results) { return software(results, "worker_protocol", "1"); });
  // How a block was measured is part of the protocol too.
  field("run.settings.block-seconds",
        [](const Results& results) { return setting(results, "block-seconds"); });
  if (!base.results.device) field("host.cpu", [](const Results& results) { return text(results.host.cpu); });
}

// A workload of the same name must be the same workload.
void compare_workloads(const NamedResults& base, const NamedResults& head) {
  for (const WorkloadEntry& one : base.results.workloads) {
    const WorkloadEntry* other = head.results.find_workload(one.workload.name);
    if (other == nullptr) continue;
    const Workload &a = one.workload, &b = other->workload;
    const auto field = [&](const std::string& name, const std::string& in_base, const std::string& in_head) {
      compare_field(base, head, fmt::format("workload {}: {}", a.name, name), in_base, in_head);
    };
    field("what is trained", default_name(a), default_name(b));
    for (const std::string_view name : kOptimizerNumbers) {
      const double* in_base = optimizer_number(a.optimizer, name);
      const double* in_head = optimizer_number(b.optimizer, name);
      if (in_base != nullptr && in_head != nullptr)  // else another optimizer, which was said
        field(std::string(name), fmt::format("{}", *in_base), fmt::format("{}", *in_head));
    }
    field("seed", fmt::format("{}", a.seed), fmt::format("{}", b.seed));
    field("dataset.digest", text(one.dataset.digest), text(other->dataset.digest));
  }
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

// What a cell is before anything is judged, from its records (null: not in the file).
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

Comparison compare_files(const NamedResults& base, const NamedResults& head, const GateRule& rule) {
  compare_machines(base, head);
  compare_workloads(base, head);
  Comparison comparison = begin(base, head, rule);
  comparison.kind = "files";
  comparison.widened_by = kRunDrift;
  comparison.rule.tolerance = (1 + rule.tolerance) * (1 + kRunDrift) - 1;
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
