// What the program prints, and that it arrives: the only place that writes to standard output.
#pragma once

#include <string>

namespace headroom {

/// Opens what of standard input, output and error was closed when the program started, so that no file of ours gets its
/// number and what is printed. The first call of the program.
void keep_standard_streams();

/// Writes all of the text, as printable() has it. Throws OutputError that says why it could not. Where nobody reads any more (`| head -1`) the
/// rest is dropped without a word, as that is what the reader wanted.
void print(const std::string& unchecked);

}  // namespace headroom
