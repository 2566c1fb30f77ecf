// What the program does not take from the user's environment, and says so.
#pragma once

#include <string>

namespace headroom {

/// Google Benchmark reads variables BENCHMARK_* as its flags before main() begins: which results there are, and where, would
/// depend on them. Where there are any this program begins again without them, in the same process; otherwise nothing
/// happens. Throws InputError if it cannot. Called first in main().
void begin_without_benchmark_variables(char** argv);

/// One line on the variables that neither this program nor the workers take; empty if there are none.
std::string left_out_text();

}  // namespace headroom
