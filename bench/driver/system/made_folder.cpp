#include "driver/system/made_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/parallel.h"

namespace headroom {
namespace {

constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
// Nothing of ours is deeper than three; each level holds a descriptor.
constexpr int kMostLevels = 64;

struct Contents {
  std::vector<std::string> files, folders;  // a link is a file here
};

Contents contents_of(int folder) {
  Contents contents;
  // A descriptor of its own, since the stream moves its position and closes it.
  Descriptor listed(openat(folder, ".", kOpenFolder));
  DIR* stream = listed ? fdopendir(listed.number()) : nullptr;
  if (stream == nullptr) return contents;
  listed.release();
  while (const dirent* entry = readdir(stream)) {
    const std::string name = entry->d_name;
    struct stat status{};
    if (name == "." || name == ".." || fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    (S_ISDIR(status.st_mode) ? contents.folders : contents.files).push_back(name);
  }
  closedir(stream);
  return contents;
}

void empty(int folder, bool side_by_side, int level) {
  const Contents contents = contents_of(folder);
  const auto remove = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::string& name = contents.files[static_cast<std::size_t>(i)];
      if (level > 0 || name != kOwnerLock) unlinkat(folder, name.c_str(), 0);
    }
  };
  if (side_by_side) {
    parallel_for(std::ssize(contents.files), 1, remove);
  } else {
    remove(0, std::ssize(contents.files));
  }
  for (const std::string& name : contents.folders) {
    const Descriptor inner(level < kMostLevels ? openat(folder, name.c_str(), kOpenFolder) : -1);
    if (inner) empty(inner.number(), side_by_side, level + 1);
    unlinkat(folder, name.c_str(), AT_REMOVEDIR);
  }
}

}  // namespace

void remove_made_folder(int descriptor, const std::filesystem::path& path, bool side_by_side) {
  empty(descriptor, side_by_side, 0);
  const bool had_owner = unlinkat(descriptor, kOwnerLock, 0) == 0;
  if (rmdir(path.c_str()) == 0 || !had_owner) return;
  // A worker that has not died yet may have written meanwhile. The next run finds the lock and tries again.
  const Descriptor lock(openat(descriptor, kOwnerLock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
}

void remove_made_folder(const std::filesystem::path& path) {
  const Descriptor descriptor(open(path.c_str(), kOpenFolder));
  if (descriptor) remove_made_folder(descriptor.number(), path, false);
}

MadeFolder::MadeFolder(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(open(path_.c_str(), kOpenFolder)) {
  if (!descriptor_)
    throw std::runtime_error(fmt::format("{}: cannot be opened: {}", path_.string(), std::strerror(errno)));
}

MadeFolder MadeFolder::numbered(const std::filesystem::path& parent) {
  for (int number = 1;; ++number) {
    const std::filesystem::path path = parent / fmt::format("{}", number);
    if (mkdir(path.c_str(), 0700) == 0) return MadeFolder(path);
    if (errno != EEXIST)
      throw std::runtime_error(fmt::format("{}: cannot be made: {}", path.string(), std::strerror(errno)));
  }
}

MadeFolder::~MadeFolder() {
  if (descriptor_) remove_made_folder(descriptor_.number(), path_, true);
}

MadeFolder& MadeFolder::operator=(MadeFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

}  // namespace headroom
