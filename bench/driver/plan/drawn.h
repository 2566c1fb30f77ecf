// Networks that nobody chose: drawn at random from a word, such as the commit that is measured.
//
// Whoever tunes kernels cannot tune them for these, as the next commit draws others. Whoever reads the results can draw them again.
#pragma once

#include <string>
#include <vector>

#include "driver/plan/suite.h"

namespace headroom {

/// `drawing.networks` workloads by default names, each in one of `drawing.cells.precisions` with its backends. The number of layers is even
/// over 1 to `most_layers`. Each width and the batch size are even over the logarithm, so that 1 to 10 is as likely as 100 to 1000.
/// Activation, loss and optimizer (sgd with and without momentum 0.9, adam, adamw) are even over all; a single output has no
/// cross-entropy. The same word draws the same, on every machine.
std::vector<SuiteWorkload> draw_workloads(const Drawing& drawing, const std::string& word);

}  // namespace headroom
