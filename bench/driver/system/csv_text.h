// A line of CSV, as RFC 4180 has it but for the line's end, which is "\n".
#pragma once

#include <string>
#include <vector>

namespace headroom {

/// Fields with commas between them and "\n" at the end. A field that holds a comma, a quote, an end of line, or a blank at one
/// of its ends is quoted, and quotes in it are doubled.
std::string csv_line(const std::vector<std::string>& fields);

}  // namespace headroom
