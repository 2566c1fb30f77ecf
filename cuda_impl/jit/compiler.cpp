#include "jit/compiler.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <regex>
#include <sstream>
#include <string_view>

#include "core/error.h"

namespace headroom::jit {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

bool is_program(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

/// Nothing where PATH has none.
fs::path on_path(const std::string& program) {
  std::istringstream folders(variable("PATH").value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty() && is_program(fs::path(folder) / program)) return fs::path(folder) / program;
  return {};
}

fs::path find_nvcc() {
  if (const auto named = variable("HEADROOM_NVCC")) return is_program(*named) ? fs::path(*named) : fs::path();
  if (const auto home = variable("CUDA_HOME"); home && is_program(fs::path(*home) / "bin/nvcc"))
    return fs::path(*home) / "bin/nvcc";
  if (const fs::path found = on_path("nvcc"); !found.empty()) return found;
  const fs::path usual = "/usr/local/cuda/bin/nvcc";
  return is_program(usual) ? usual : fs::path();
}

fs::path find_nvrtc() {
  std::error_code ignored;
  fs::path library;
  if (const auto named = variable("HEADROOM_NVRTC"))
    library = *named;
  else
    library = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "libnvrtc.so.13";
  return fs::is_regular_file(library, ignored) ? library : fs::path();
}

int number(const std::string& digits) { return std::atoi(digits.c_str()); }

}  // namespace

std::unique_ptr<Compiler> find_compiler() {
  if (const fs::path nvcc = find_nvcc(); !nvcc.empty() && !on_path("g++").empty()) return make_nvcc(nvcc);
  if (const fs::path nvrtc = find_nvrtc(); !nvrtc.empty()) return make_nvrtc(nvrtc);
  throw UnsupportedError(
      "no compiler for kernels: neither nvcc with g++ (HEADROOM_NVCC, CUDA_HOME, PATH) nor NVRTC "
      "(HEADROOM_NVRTC)");
}

const Compiler* found_compiler() {
  static const std::unique_ptr<Compiler> found = [] {
    try {
      return find_compiler();
    } catch (const UnsupportedError&) {
      return std::unique_ptr<Compiler>();
    }
  }();
  return found.get();
}

std::string program_text(const Request& request) {
  std::string text = "#define HEADROOM_COMPILED_ALONE\n";
  for (const auto& [name, value] : request.constants) text += "#define " + name + " " + value + "\n";
  for (const std::string& header : request.headers) text += "#include \"" + header + "\"\n";
  text += request.text;
  if (!request.text.empty() && request.text.back() != '\n') text += '\n';
  if (request.argument_bytes > 0)
    text += "static_assert(sizeof(" + request.argument_type +
            ") == " + std::to_string(request.argument_bytes) +
            ", \"the kernel's argument has another size here than in the program that launches it\");\n";
  return text;
}

namespace internal {

void read_log(const Request& request, const std::string& log, Cubin& cubin) {
  const auto refuse = [&](const std::string& why) {
    throw CompileError("kernel '" + request.name + "': " + why, log);
  };
  // As cmake/refuse_serialised_products.sh does for what is compiled ahead.
  for (const char* words : {"instructions are serialized", "'setmaxnreg' ignored"})
    if (const std::size_t at = log.find(words); at != log.npos) {
      const std::size_t begin = log.rfind('\n', at) + 1;
      refuse("must not be used: " + log.substr(begin, log.find('\n', at) - begin));
    }
  static const std::regex entry("Compiling entry function '([^']+)'");
  static const std::regex frame(
      "(\\d+) bytes stack frame, (\\d+) bytes spill stores, (\\d+) bytes spill loads");
  static const std::regex used("Used (\\d+) registers([^\\n]*)");
  static const std::regex shared("(\\d+) bytes smem");
  int kernels = 0;
  for (std::sregex_iterator found(log.begin(), log.end(), entry), end; found != end; ++found) {
    cubin.kernel = (*found)[1];
    ++kernels;
  }
  if (kernels != 1) refuse("expected one kernel in the compiler's log, found " + std::to_string(kernels));
  for (std::sregex_iterator found(log.begin(), log.end(), frame), end; found != end; ++found)
    for (std::size_t i = 1; i <= 3; ++i)
      if (number((*found)[i]) > request.most_local_bytes)
        refuse("must not be used, as it keeps values in local memory: " + found->str());
  std::smatch match;
  if (!std::regex_search(log, match, used))
    refuse("the compiler's log does not say how many registers it has");
  cubin.registers = number(match[1]);
  const std::string rest = match[2];
  if (std::regex_search(rest, match, shared)) cubin.shared_bytes = number(match[1]);
  cubin.log = log;
}

CompileError failed(const Request& request, const std::string& compiler, const std::string& log) {
  // The lines that name an error, and what is shown if there are none.
  constexpr int kLines = 3;
  std::string errors, first;
  int error_count = 0, line_count = 0;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const auto append = [&](std::string& text) { text += (text.empty() ? "" : "; ") + line; };
    if (line.find("error") != line.npos && error_count++ < kLines) append(errors);
    if (line_count++ < kLines) append(first);
  }
  if (errors.empty()) errors = first.empty() ? "it says nothing" : first;
  return CompileError("kernel '" + request.name + "' was not compiled by " + compiler + ": " + errors, log);
}

}  // namespace internal
}  // namespace headroom::jit
