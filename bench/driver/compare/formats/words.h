// What the formats of a comparison say alike: its verdict, its rows and its numbers.
#pragma once

#include <string>
#include <vector>

#include "driver/compare/comparison.h"
#include "driver/system/table.h"

namespace headroom {

bool judged(const ComparedCell& cell);

/// "+3.1 %"; bounds that few pairs cannot give are "none".
std::string percent(double ratio);

/// A verdict as people are to notice it: what alarms in capitals.
std::string shown_verdict(std::string verdict);

/// What it comes to, in a sentence: "No regression: 8 equivalent (tolerance 2 %)."
std::string verdict_sentence(const Comparison& comparison);

/// A row for each cell: name, base, head, change, interval, result.
Table::Row comparison_header();
std::vector<Table::Row> comparison_rows(const Comparison& comparison);

/// "up to 12 pairs of blocks a cell from 3 pairs of fresh processes, 4.1 s".
std::string how_measured(const Comparison& comparison);

/// Whether visible_text() says something of it: a build was compared with itself, and nothing was planted.
bool shows_what_is_visible(const Comparison& comparison);
/// How large a slowdown would have been seen.
std::string visible_text(const Comparison& comparison);

}  // namespace headroom
