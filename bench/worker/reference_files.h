// The files of `reference` (PROTOCOL.md): what they are called and what is in them, for both ends.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/record.h"
#include "oracle/copies.h"

namespace headroom {

struct ReferenceFiles {
  std::filesystem::path folder;

  std::filesystem::path start(std::int64_t step) const;
  std::filesystem::path update(Contract contract, std::int64_t step) const;
  std::filesystem::path copies(Contract contract, std::int64_t step) const;
  std::filesystem::path free() const { return folder / "free.f32"; }
};

void write_copies(const std::filesystem::path& file, const Copies& copies);
/// Throws what read_floats() does unless the file holds `count` copies of so many tensors.
Copies read_copies(const std::filesystem::path& file, int count, const Workload& workload);

}  // namespace headroom
