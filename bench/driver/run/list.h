// `headroom list`: suites, workloads and backends, and what runs on this machine.
#pragma once

#include <string>

#include "driver/plan/options.h"
#include "driver/system/terminal.h"

namespace headroom {

/// The text for standard output; `width`: of the terminal, for what is not JSON.
std::string list_text(const ListOptions& options, std::size_t width = kNoWidth);

}  // namespace headroom
