// Counts of a simulation of the bounds in a file, so that several machines can do parts of one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bounds_simulation.h"

namespace headroom {

/// Of each class the networks `first` to `first + count - 1` of a seed. A network is drawn from seed and number alone.
struct NetworkRange {
  std::uint64_t seed = 1;
  std::int64_t first = 0, count = 0;
  bool overlaps(const NetworkRange& other) const {
    return seed == other.seed && first < other.first + other.count && other.first < first + count;
  }
};

struct BoundsCounts {
  int copies = 0;
  std::vector<NetworkRange> ranges{};
  std::vector<std::pair<std::string, Counts>> classes{};  ///< by name

  std::int64_t networks() const;  ///< drawn in each class
  /// Throws std::invalid_argument if a network would be counted twice, or the classes or numbers of copies differ.
  void add(const BoundsCounts& other);
};

std::string to_json(const BoundsCounts& counts);
/// Throws JsonError; `where` stands before what it says.
BoundsCounts counts_from_json(std::string_view text, const std::string& where);

}  // namespace headroom
