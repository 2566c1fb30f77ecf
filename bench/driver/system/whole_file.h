// Files that are whole at every moment, and a results file that one run alone writes.
//
// Text goes into a file of a name of its own in the same folder (.headroom-XXXXXXXX), is synced, and takes the right
// name in one step. That file is locked (flock) before it has any name that others look for, so the lock moves along
// from one version of a results file to the next, and no lock file is needed. The kernel drops a lock when its process
// ends; what a killed process left under a temporary name is then not locked, and the next run in that folder removes it.
#pragma once

#include <filesystem>
#include <string>

#include "worker/descriptor.h"

namespace headroom {

/// Makes or replaces `file`. Throws OutputError that says why it could not, with what was there still there.
void write_whole(const std::string& text, const std::filesystem::path& file);

/// Throws OutputError if nothing can be written beside `file`. Asking the mode bits would be wrong for root and for mounts.
void check_writable(const std::filesystem::path& file);

/// Whether what is written there goes into what is there, as with a pipe or a device, and does not take its place. That is
/// so of /dev/stdout too, which may lead to a file that the shell has opened.
bool is_stream(const std::filesystem::path& file);

/// A file that no other run writes while this object lives.
class ReservedFile {
 public:
  ReservedFile() = default;
  /// Removes a file that create() made and write() has not written: nothing is lost with it.
  ~ReservedFile();
  ReservedFile(const ReservedFile&) = delete;
  ReservedFile& operator=(const ReservedFile&) = delete;

  /// Makes `file` with `text` in it, and its folder; false if there is something of that name. Throws OutputError.
  bool create(const std::filesystem::path& file, const std::string& text);
  /// Takes a file that is there. Throws InputError if another run has it, OutputError if its folder cannot be written.
  void hold(const std::filesystem::path& file);
  /// Puts `text` in its place. Throws OutputError as write_whole() does.
  void write(const std::string& text);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;    ///< as it was named; empty: nothing is held
  std::filesystem::path target_;  ///< what a symbolic link leads to
  Descriptor descriptor_;         ///< of the version that has the name now, locked
  bool only_reserved_ = false;
};

}  // namespace headroom
