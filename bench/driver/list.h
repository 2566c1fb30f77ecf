// `headroom list`: suites, workloads and backends, and what runs on this machine.
#pragma once

#include <string>

#include "driver/options.h"

namespace headroom {

/// The text for standard output.
std::string list_text(const ListOptions& options);

}  // namespace headroom
