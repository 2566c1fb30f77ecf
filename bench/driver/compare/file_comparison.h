// Two results files, or two backends of one, as a comparison.
#pragma once

#include <filesystem>
#include <string>

#include "driver/compare/comparison.h"
#include "driver/results/results.h"

namespace headroom {

/// A results file and how reports call it.
struct NamedResults {
  std::string name;
  Results results;
};

/// The cells of both files, each with the pairs of their blocks in order; not judged yet. The tolerance is widened by
/// kRunDrift: the files were not measured together.
/// Throws NotComparableError (`base.json and head.json are not comparable: device.name: 'A' and 'B'`) and InputError for
/// files without common cells, blocks that hold no time, or fewer than kLeastPairs of them.
Comparison compare_files(const NamedResults& base, const NamedResults& head, const GateRule& rule);

/// Two backends of one run. Their blocks were interleaved, so nothing is widened.
Comparison compare_within(const NamedResults& file, const std::string& base_backend,
                          const std::string& head_backend, const GateRule& rule);

}  // namespace headroom
