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

// What comparisons of files are made of.

/// The first thing that two files differ in so that their times say nothing of each other: "device.driver is 'A' and 'B'"; empty
/// for nothing. The same of two workloads of one name: "workload NAME: seed is '1' and '2'".
std::string machine_difference(const Results& base, const Results& head);
std::string workload_difference(const WorkloadEntry& base, const WorkloadEntry& head);

/// A comparison without cells yet, with the widened tolerance.
Comparison begin_files(const NamedResults& base, const NamedResults& head, const GateRule& rule);

/// What a cell is before anything is judged, from its records (null: not in the file, of one of the two). Throws InputError for
/// fewer than kLeastPairs blocks.
ComparedCell begin_cell(const NamedResults& base_file, const Record* base, const NamedResults& head_file,
                        const Record* head);

/// The cells of both files, each with the pairs of their blocks in order; not judged yet. The tolerance is widened by
/// kRunDrift: the files were not measured together.
/// Throws NotComparableError (`base.json and head.json are not comparable: device.name: 'A' and 'B'`) and InputError for
/// files without common cells, blocks that hold no time, or fewer than kLeastPairs of them.
Comparison compare_files(const NamedResults& base, const NamedResults& head, const GateRule& rule);

/// Two backends of one run. Their blocks were interleaved, so nothing is widened.
Comparison compare_within(const NamedResults& file, const std::string& base_backend,
                          const std::string& head_backend, const GateRule& rule);

}  // namespace headroom
