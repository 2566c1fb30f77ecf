// Names of the enumerations as the results file spells them, and how a record fails.
#include "core/record.h"

#include <stdexcept>

#include "core/error.h"

namespace headroom {

std::string_view to_string(Contract contract) {
  switch (contract) {
    case Contract::kExact:
      return "exact";
    case Contract::kAutocast:
      return "autocast";
    case Contract::kLibrary:
      return "library";
  }
  throw std::logic_error("to_string: not a Contract");
}

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kSkipped:
      return "skipped";
    case Outcome::kFailed:
      return "failed";
  }
  throw std::logic_error("to_string: not an Outcome");
}

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kFail:
      return "fail";
    case Verdict::kCannotBeChecked:
      return "cannot_be_checked";
    case Verdict::kNotRun:
      return "not_run";
  }
  throw std::logic_error("to_string: not a Verdict");
}

std::string_view to_string(SetupCache cache) { return cache == SetupCache::kCold ? "cold" : "warm"; }

std::string_view to_string(Family family) {
  switch (family) {
    case Family::kReference:
      return "reference";
    case Family::kPytorch:
      return "pytorch";
    case Family::kLibtorch:
      return "libtorch";
    case Family::kJax:
      return "jax";
    case Family::kVendor:
      return "vendor";
    case Family::kOurs:
      return "ours";
    case Family::kOther:
      return "other";
  }
  throw std::logic_error("to_string: not a Family");
}

Family parse_family(std::string_view name) {
  std::vector<std::string> names;
  std::string all;
  for (const Family family : kAllFamilies) {
    if (to_string(family) == name) return family;
    names.emplace_back(to_string(family));
    all += (all.empty() ? "" : ", ") + names.back();
  }
  throw InputError("unknown family '" + std::string(name) + "'; did you mean '" + nearest_name(name, names) +
                   "'? There are " + all);
}

void mark_failed(Record& record, const std::string& message) {
  record.outcome = Outcome::kFailed;
  record.message = message.empty() ? "failed without a message" : message;
  record.blocks.clear();
  record.step_seconds.reset();
  record.wall_step_seconds.reset();
  record.cpu_step_seconds.reset();
  record.fraction_of_floor.reset();
  record.joules_per_step.reset();
  record.energy.reset();
  record.slowdown_reasons.reset();
}

}  // namespace headroom
