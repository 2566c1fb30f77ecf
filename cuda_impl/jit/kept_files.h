// Files of this program's own in a folder of the user's cache, so that the next run finds what this one has found out.
//
// The folder is the user's alone: it is made with mode 0700, and one that is a link, or that others own or may write to, is not
// used. A file is written beside its place and renamed, so that readers find a whole one or none. Several processes may work in one
// folder at once. Where nothing can be kept, nothing fails.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headroom::jit {

class KeptFiles {
 public:
  /// `folder` is made when something is kept. Empty: nothing is.
  explicit KeptFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// All of the file of this name; nullopt if there is none that may be trusted.
  std::optional<std::string> find(const std::string& name) const;
  /// Of everything in the folder, in no order.
  std::vector<std::string> names() const;
  /// In place of one of that name. Whether it was kept.
  bool keep(const std::string& name, std::string_view text) const;

  /// Why an existing folder is not used; nullopt if nothing speaks against it.
  std::optional<std::string> refusal() const;

 private:
  std::filesystem::path folder_;
};

}  // namespace headroom::jit
