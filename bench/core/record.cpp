// Names of the enumerations as the results file spells them, and how a record fails.
#include "core/record.h"

#include <stdexcept>

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
