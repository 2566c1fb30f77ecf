// `cuda`: the fastest of our backends for a workload and precision, as measured when it is set up.
//
// What was taken is kept in the cache folder, so that the next run takes the same (docs/kernels/choice.md).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "choice/measure.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom {

/// What a choice is made for, and where it is kept.
struct ChoiceRequest {
  const Workload& workload;
  Precision precision;
  const Parameters& initial;
  std::int64_t samples;      ///< of the data set
  std::string gpu;           ///< the device's model
  std::string cache_folder;  ///< empty: the choice is not kept
  double since = 0;          ///< choices that were kept before then are made again; seconds since 1970
};

/// The trainer that stays, at step 0 of the workload: what it trained while it was timed is undone. Its note begins with its
/// backend's name, and its choice() tells what the others took. Throws as choice::measure() does.
std::unique_ptr<Trainer> make_chosen_trainer(const ChoiceRequest& request,
                                             std::span<const choice::Candidate> candidates,
                                             const choice::Rule& rule,
                                             const choice::Surroundings& surroundings);

/// Why a workload does not fit beside what the device holds now; nullopt if it may. What is counted is what every trainer has: the
/// samples, masters and slots in fp32, and the activations of a batch, the rest at the size of the precision.
std::optional<std::string> lacks_memory(const Workload& workload, Precision precision, std::int64_t samples);

/// A steady clock, and whether the device still answers.
choice::Surroundings on_this_device();

/// The `since` that the driver has set for this process (HEADROOM_CHOICES_SINCE); 0 without one.
double choices_since();

}  // namespace headroom
