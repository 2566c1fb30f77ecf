// What a results file has to be: results/schema.json, which this program carries inside it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace headroom {

/// A document of version 1 gets the fields that came with version 2, with what was meant before they were there; one
/// without families gets those of the backends that there were then. Returns the version that it had. Throws InputError with the first fault
/// (`file: records[3].step_seconds.median: expected a number, found null`) and OtherFileError.
int check_results(nlohmann::json& document, const std::string& file);

/// results/schema.json as it was when this was built.
extern const char* const kResultsSchema;

}  // namespace headroom
