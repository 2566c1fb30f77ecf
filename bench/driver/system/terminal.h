// What is known of the terminal behind standard output or standard error.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

namespace headroom {

/// The width of what is no terminal.
inline constexpr std::size_t kNoWidth = std::numeric_limits<std::size_t>::max();

/// Columns of the terminal as it is now: as it says itself, else as COLUMNS says, else 80. kNoWidth if `descriptor` is no
/// terminal.
std::size_t terminal_width(int descriptor);

/// Whether a line may be written over: a terminal that knows escape codes (TERM is neither `dumb` nor unset) of a user
/// who wants them (NO_COLOR is empty or unset).
bool takes_escape_codes(int descriptor);

/// Characters of UTF-8 text. Characters of no or of double width are not told apart.
std::size_t characters(const std::string& text);
/// Bytes of its first `count` characters, or of all.
std::size_t bytes_of(const std::string& text, std::size_t count);

/// The text with at most `width` characters; what is cut off is "...".
std::string cut_to(const std::string& text, std::size_t width);

}  // namespace headroom
