// A folder that this program has made, and how it goes: through its descriptor, so that no link is followed that somebody
// has put into it or in its place.
#pragma once

#include <filesystem>

#include "worker/descriptor.h"

namespace headroom {

/// In a scratch folder, held under flock by its owner for as long as that lives; removed last.
inline constexpr const char* kOwnerLock = "owner.lock";

/// Removes an open folder's contents, its kOwnerLock last, and then the folder itself, which is at `path`. What cannot be
/// removed stays, with a kOwnerLock that nobody holds. `side_by_side`: files on all cores, since the pages of large ones
/// take seconds to give back.
void remove_made_folder(int descriptor, const std::filesystem::path& path, bool side_by_side);

/// The same, one file after the other, of whatever folder of ours is at `path`.
void remove_made_folder(const std::filesystem::path& path);

class MadeFolder {
 public:
  MadeFolder() = default;
  /// Opens a folder that exists, to own it from now on. Throws std::runtime_error.
  explicit MadeFolder(std::filesystem::path path);
  /// Makes the folder that has the lowest free number for its name. Throws std::runtime_error.
  static MadeFolder numbered(const std::filesystem::path& parent);
  ~MadeFolder();
  MadeFolder(MadeFolder&& other) noexcept = default;
  MadeFolder& operator=(MadeFolder&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_.number(); }

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
};

}  // namespace headroom
