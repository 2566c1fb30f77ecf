// Counts of a simulation of the bounds in a file, so that several machines can do parts of one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bounds_simulation.h"

namespace headroom {

/// Networks `first` to `first + count - 1` of a seed. A network is drawn from its class, the seed and its number alone.
struct NetworkRange {
  std::uint64_t seed = 1;
  std::int64_t first = 0, count = 0;
  bool overlaps(const NetworkRange& other) const {
    return seed == other.seed && first < other.first + other.count && other.first < first + count;
  }
};

struct ClassCounts {
  std::string name;
  std::vector<NetworkRange> ranges{};
  Counts counts{};

  std::int64_t networks() const;  ///< drawn
};

struct BoundsCounts {
  int copies = 0;
  std::vector<ClassCounts> classes{};

  std::int64_t networks() const;  ///< drawn in the class that has fewest
  /// Throws std::invalid_argument if a network would be counted twice, or the numbers of copies differ.
  void add(const BoundsCounts& other);
};

std::string to_json(const BoundsCounts& counts);
/// Throws JsonError; `where` stands before what it says.
BoundsCounts counts_from_json(std::string_view text, const std::string& where);

}  // namespace headroom
