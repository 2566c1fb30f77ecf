#include "analysis/ladder.h"

#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <string_view>

#include "analysis/speedup.h"

namespace headroom {
namespace {

// A rung: a time, and who takes it. Without a time: why there is none.
struct Rung {
  std::string name;
  std::optional<StepSeconds> time;
  std::string missing;
};

class Rungs {
 public:
  Rungs(const std::vector<Record>& records, const std::string& workload, Precision precision)
      : records_(records), workload_(workload), precision_(precision) {}

  Rung fastest_of(std::initializer_list<std::string_view> backends) const {
    const auto wanted = [&](const Record& record) {
      for (const std::string_view one : backends) {
        if (record.backend == one) return true;
      }
      return false;
    };
    std::string names;
    for (const std::string_view one : backends) names += (names.empty() ? "" : " and no ") + std::string(one);
    return fastest(wanted, "no " + names);
  }
  Rung fastest_pytorch() const { return fastest(is_pytorch, "no PyTorch row"); }
  Rung fastest_of_ours() const { return fastest(is_ours, "no row of ours"); }

 private:
  template <class Wanted>
  Rung fastest(Wanted&& wanted, const std::string& otherwise) const {
    const Record* best = nullptr;
    for (const Record& record : records_) {
      if (record.workload != workload_ || record.precision != precision_ || !wanted(record) ||
          !counts(record))
        continue;
      if (best == nullptr || record.step_seconds->median < best->step_seconds->median) best = &record;
    }
    if (best == nullptr) return {"", std::nullopt, otherwise + " has a verified time"};
    return {best->backend, best->step_seconds, ""};
  }

  const std::vector<Record>& records_;
  const std::string& workload_;
  Precision precision_;
};

LadderTerm term(const char* name, const Rung& from, const Rung& to) {
  LadderTerm term{name, from.name, to.name, {}, {}, {}, "missing", ""};
  if (!from.time || !to.time) {
    term.message = from.time ? to.missing : from.missing;
    return term;
  }
  term.seconds = from.time->median - to.time->median;
  term.low = from.time->low - to.time->high;
  term.high = from.time->high - to.time->low;
  if (*term.low > 0) {
    term.verdict = "positive";
  } else {
    term.verdict = *term.high < 0 ? "negative" : "noise";
  }
  return term;
}

}  // namespace

Ladder make_ladder(const std::vector<Record>& records, const std::string& workload, Precision precision,
                   const std::optional<Floor>& floor) {
  const Rungs rungs(records, workload, precision);
  const Rung python = rungs.fastest_of({"pytorch-eager"}), eager = rungs.fastest_of({"libtorch-eager"});
  const Rung graph = rungs.fastest_of({"libtorch-graph", "pytorch-graph"});
  const Rung fused = rungs.fastest_of({"libtorch-expert", "pytorch-compile-graph"});
  Rung best = rungs.fastest_pytorch();
  const Rung ours = rungs.fastest_of_ours();
  // Nobody knows whether a rival that failed would have been faster.
  if (const std::string refuted = refuted_text(refuted_rivals(records, workload, precision));
      !refuted.empty())
    best = {"", std::nullopt, refuted};
  Rung bottom{"floor", std::nullopt, "no floor was computed"};
  if (floor) bottom.time = StepSeconds{floor->seconds, floor->seconds, floor->seconds};

  Ladder ladder = {term("python", python, eager), term("dispatch", eager, graph),
                   term("fusion", graph, fused)};
  if (fused.time && best.time && best.name != fused.name) ladder.push_back(term("choice", fused, best));
  ladder.push_back(term("kernels", best, ours));
  ladder.push_back(term("left", ours, bottom));
  return ladder;
}

std::string term_text(const LadderTerm& term) {
  if (!term.seconds) return "";
  char text[60];
  const double microseconds = 1e6 * *term.seconds, size = std::abs(microseconds);
  std::snprintf(text, sizeof text, "%.*f us", size < 10 ? 2 : size < 100 ? 1 : 0, microseconds);
  return term.verdict == "positive" ? text : std::string(text) + " (" + term.verdict + ")";
}

}  // namespace headroom
