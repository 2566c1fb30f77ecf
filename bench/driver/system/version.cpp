#include "driver/system/version.h"

#include <fmt/core.h>

#include "driver/system/sources.h"

namespace headroom {

const char* const kVersion = HEADROOM_VERSION;

std::string version_text(const std::filesystem::path& root) {
  const GitState state = git_state(root);
  if (!state.sha) return fmt::format("{} (no commit is known)", kVersion);
  const char* changes = !state.dirty ? "" : *state.dirty ? ", with changes" : ", clean";
  return fmt::format("{} (commit {}{})", kVersion, state.sha->substr(0, 10), changes);
}

}  // namespace headroom
