// Of a backend that takes one of several others when it is set up: which, and what each of them took.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace headroom {

struct Choice {
  struct Candidate {
    std::string backend;
    std::optional<double> step_seconds;  ///< as timed when the choice was made; nullopt: not timed
    std::string left_out;                ///< why it could not be taken; empty if it could
  };
  std::string taken;                  ///< the backend that trains
  bool was_kept = false;              ///< made by an earlier run, and found in the cache folder
  std::vector<Candidate> candidates;  ///< in the order that decides between equals
};

}  // namespace headroom
