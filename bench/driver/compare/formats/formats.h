// A comparison written out: a file here for each format, and one table that names them (formats.cpp).
#pragma once

#include <string>

#include "driver/compare/comparison.h"
#include "driver/plan/options.h"
#include "driver/system/terminal.h"

namespace headroom {

/// The comparison in a format of --format. Only text for people is made to fit a terminal of `width` columns.
std::string formatted(const Comparison& comparison, CompareFormat format, std::size_t width = kNoWidth);

/// A table and a verdict, for a terminal of `width` columns.
std::string comparison_text(const Comparison& comparison, std::size_t width = kNoWidth);
/// For a pull-request comment or $GITHUB_STEP_SUMMARY.
std::string comparison_markdown(const Comparison& comparison);
/// results/compare.schema.json: everything, every pair included, on one line.
std::string comparison_json(const Comparison& comparison);
/// Google Benchmark's JSON: every block is a repetition of base/CELL or head/CELL, in microseconds, so that
/// `compare.py filters FILE base head` sets them against each other.
std::string comparison_google_benchmark(const Comparison& comparison);
/// Bencher Metric Format: the latency of head in nanoseconds, and its ratio to base with bounds.
std::string comparison_bencher(const Comparison& comparison);
/// github-action-benchmark's customSmallerIsBetter.
std::string comparison_github_action(const Comparison& comparison);

}  // namespace headroom
