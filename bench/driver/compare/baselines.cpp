#include "driver/compare/baselines.h"

#include <fmt/core.h>

#include "core/error.h"
#include "driver/system/json_file.h"
#include "driver/system/sources.h"
#include "driver/system/whole_file.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

fs::path digest_file(const fs::path& stored) { return fs::path(stored).replace_extension(".digest"); }

std::string stored_names(const fs::path& folder) {
  std::string names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".json")
      names += (names.empty() ? "" : ", ") + entry.path().stem().string();
  }
  return names.empty() ? "nothing" : names;
}

}  // namespace

std::string machine_key(const Results& results) {
  const std::string model = results.device ? results.device->name : "cpu";
  const std::string identity = results.device ? results.device->uuid : results.host.cpu.value_or("");
  std::string key;
  for (const char c : model) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte)) {
      key += static_cast<char>(std::tolower(byte));
    } else if (!key.empty() && key.back() != '-') {
      key += '-';
    }
  }
  return fmt::format("{}-{}", key, text_digest({model, identity}).substr(8, 8));
}

fs::path save_baseline(const fs::path& file, const fs::path& folder, const std::string& name) {
  const Results results = read_results(file);
  const std::string text = read_text(file);
  std::error_code error;
  fs::create_directories(folder, error);
  if (!fs::is_directory(folder))
    throw InputError(fmt::format("--baselines {}: cannot be made; expected a folder", folder.string()));
  const fs::path stored = folder / fmt::format("{}-{}.json", name, machine_key(results));
  // A file is believed if its digest is in the file of digests. That holds both while one baseline takes the place of
  // another, so that whichever write fails, what is there then is a whole one.
  const std::string digest = text_digest({text}) + "\n";
  const bool is_first = !fs::exists(stored);
  try {
    const bool had_digest = fs::exists(digest_file(stored));
    write_whole(had_digest ? digest + read_text(digest_file(stored)) : digest, digest_file(stored));
    write_whole(text, stored);
    write_whole(digest, digest_file(stored));
  } catch (...) {
    if (is_first) {
      for (const fs::path& made : {stored, digest_file(stored)}) fs::remove(made, error);
    }
    throw;
  }
  return stored;
}

fs::path find_baseline(const Results& head, const fs::path& folder, const std::string& name) {
  const fs::path stored = folder / fmt::format("{}-{}.json", name, machine_key(head));
  if (!fs::exists(stored)) {
    throw InputError(fmt::format("--baseline {}: {} is not there; in {} there is: {}", name,
                                 stored.filename().string(), folder.string(), stored_names(folder)));
  }
  if (read_text(digest_file(stored)).find(text_digest({read_text(stored)}) + "\n") == std::string::npos) {
    throw InputError(
        fmt::format("{}: is not what was stored: its digest is not the one in {}; store it again",
                    stored.string(), digest_file(stored).filename().string()));
  }
  return stored;
}

}  // namespace headroom
