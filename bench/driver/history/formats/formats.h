// A history written out: a file here for each format.
#pragma once

#include <string>

#include "driver/history/history.h"
#include "driver/plan/options.h"
#include "driver/system/terminal.h"

namespace headroom {

/// In a format of --format. Only text is made to fit a terminal of `width` columns.
std::string formatted(const History& history, SummaryFormat format, std::size_t width = kNoWidth);

/// A table for each device, then what has to be said.
std::string history_text(const History& history, std::size_t width = kNoWidth);
/// results/history.schema.json.
std::string history_json(const History& history);
/// A row for each point; docs/usage.md explains the columns.
std::string history_csv(const History& history);

/// A line for each file of which something has to be said, those that are in no point first.
std::string file_notes(const History& history);

}  // namespace headroom
