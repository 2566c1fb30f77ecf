#include "driver/system/sources.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "driver/system/subprocess.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

bool is_git_sha(const std::string& text) {
  return text.size() >= 7 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

GitState git_state_of_build() {
  GitState state;
  const char* sha = std::getenv("HEADROOM_BUILD_GIT_SHA");
  if (sha == nullptr || !is_git_sha(sha)) return state;
  state.sha = sha;
  const char* dirty = std::getenv("HEADROOM_BUILD_GIT_DIRTY");
  if (dirty != nullptr && *dirty != '\0') state.dirty = std::string_view(dirty) != "no";
  return state;
}

}  // namespace

GitState git_state(const fs::path& root) {
  // A build that was carried elsewhere is of its own commit, whatever checkout lies around it there.
  if (GitState state = git_state_of_build(); state.sha) return state;
  ProgramResult sha = run_program({"git", "-C", root.string(), "rev-parse", "HEAD"}, 20, false);
  std::erase_if(sha.output, [](char c) { return c == '\n' || c == '\r'; });
  if (sha.exit_code != 0 || !is_git_sha(sha.output)) {
    // Such as another user's checkout (safe.directory). Where there is no checkout there is nothing to say.
    if (std::error_code ignored; fs::exists(root / ".git", ignored)) {
      fmt::print(
          stderr,
          "headroom: git does not tell the commit of {0}, so the results name none; why: git -C {0} status\n",
          root.string());
    }
    return {};
  }
  GitState state{.sha = sha.output, .dirty = {}};
  const ProgramResult changes =
      run_program({"git", "-C", root.string(), "status", "--porcelain", "--untracked-files=no"}, 60, false);
  if (changes.exit_code == 0) state.dirty = !changes.output.empty();
  return state;
}

std::map<std::string, std::int64_t> commit_times(const fs::path& root, const std::set<std::string>& commits) {
  if (commits.empty()) return {};
  std::vector<std::string> command = {
      "git", "-C", root.string(), "rev-list", "--ignore-missing", "--no-walk", "--timestamp"};
  command.insert(command.end(), commits.begin(), commits.end());
  std::map<std::string, std::int64_t> times;
  std::istringstream lines(run_program(command, 20, false).output);
  std::int64_t seconds = 0;
  for (std::string name; lines >> seconds >> name;) times[name] = seconds;
  return times;
}

std::optional<std::string> source_digest(const fs::path& root) {
  std::error_code ignored;
  if (!fs::exists(root / "bench", ignored)) return std::nullopt;
  std::vector<std::string> files;
  for (const char* folder : {"bench", "cuda_impl", "torch_impl"}) {
    if (!fs::exists(root / folder, ignored)) continue;
    for (auto it = fs::recursive_directory_iterator(root / folder, ignored);
         it != fs::recursive_directory_iterator(); it.increment(ignored)) {
      const fs::path& path = it->path();
      // What pip leaves when it installs torch_impl/python: copies.
      if (path.filename() == "build" && it->is_directory(ignored)) it.disable_recursion_pending();
      const std::string extension = path.extension().string();
      const bool source = extension == ".h" || extension == ".cpp" || extension == ".cu" ||
                          extension == ".cuh" || extension == ".py" || path.filename() == "CMakeLists.txt";
      if (source && it->is_regular_file(ignored)) files.push_back(path.lexically_relative(root).string());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> parts;
  for (const std::string& file : files) {
    std::ifstream stream(root / file, std::ios::binary);
    std::ostringstream contents;
    contents << stream.rdbuf();
    parts.push_back(file);
    parts.push_back(contents.str());
  }
  return text_digest(parts);
}

std::uint64_t fnv1a64(std::string_view bytes, std::uint64_t hash) {
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

std::string text_digest(const std::vector<std::string>& parts) {
  std::uint64_t hash = fnv1a64("");
  for (const std::string& part : parts)
    hash = fnv1a64("\xff", fnv1a64(part, hash));  // no UTF-8 text holds this byte: it ends each part
  return fmt::format("fnv1a64:{:016x}", hash);
}

std::vector<std::string> publishable_argv(const std::vector<std::string>& argv, const fs::path& root) {
  const auto shorten = [&](const std::string& text) {
    const fs::path path(text);
    if (!path.is_absolute()) return text;
    const fs::path relative = path.lexically_normal().lexically_relative(root.lexically_normal());
    if (!relative.empty() && *relative.begin() != "..") return relative.string();
    const fs::path normal = path.lexically_normal();
    return (normal.has_filename() ? normal.filename() : normal.parent_path().filename()).string();
  };
  std::vector<std::string> shown;
  bool command = false;  // the word after --worker is NAME=COMMAND: only the program's base name is kept
  for (std::string word : argv) {
    if (shown.empty()) word = fs::path(word).filename().string();
    std::string option;
    if (word.starts_with("--")) {
      const std::size_t equals = word.find('=');
      if (equals != std::string::npos) {
        option = word.substr(0, equals + 1);
        word = word.substr(equals + 1);
      }
      command = command || option == "--worker=";
    }
    if (command && !(option.empty() && word == "--worker")) {
      const std::size_t equals = word.find('=');
      std::string words;
      std::istringstream parts(equals == std::string::npos ? word : word.substr(equals + 1));
      for (std::string part; parts >> part;) words += (words.empty() ? "" : " ") + shorten(part);
      word = (equals == std::string::npos ? "" : word.substr(0, equals + 1)) + words;
      command = false;
    } else {
      word = shorten(word);
    }
    command = command || (option.empty() && word == "--worker");
    // What leads out of the checkout says something about the machine.
    if (word.find("../") != std::string::npos) word = fs::path(word).lexically_normal().filename().string();
    shown.push_back(option + word);
  }
  return shown;
}

}  // namespace headroom
