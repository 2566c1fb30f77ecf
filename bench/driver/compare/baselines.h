// Stored results files to compare with later: FOLDER/NAME-MACHINE.json, and its digest beside it.
//
// A time is only worth something on the machine it was measured on, so a name holds one file for each; the machine is
// known by its GPU (its CPU if it has none), never by its name.
#pragma once

#include <filesystem>
#include <string>

#include "driver/results/results.h"

namespace headroom {

/// "nvidia-h200-1a2b3c4d": model and a digest of the device's UUID, or of the CPU.
std::string machine_key(const Results& results);

/// Copies a results file, which must be one, to the folder. Returns where it is now.
std::filesystem::path save_baseline(const std::filesystem::path& file, const std::filesystem::path& folder,
                                    const std::string& name);

/// The file that was stored under `name` for the machine that measured `head`. Throws InputError if there is none (and
/// says which there are), or if it is not what was stored.
std::filesystem::path find_baseline(const Results& head, const std::filesystem::path& folder,
                                    const std::string& name);

}  // namespace headroom
