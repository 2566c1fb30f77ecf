#include "ranks/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

#include "core/error.h"

namespace headroom::ranks {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "libnccl.so.2";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// NCCL's sums by the switch (NVLS) would round in another order, and not every machine may use it. It is read when the
// library makes its first communicator.
void turn_multicast_off() { ::setenv("NCCL_NVLS_ENABLE", "0", 1); }

}  // namespace

std::vector<fs::path> Nccl::places() {
  if (const std::string file = variable("HEADROOM_NCCL"); !file.empty()) return {file};
  std::vector<fs::path> places;
  std::string folders = variable("HEADROOM_TORCH_LIBRARY_PATH");
  while (!folders.empty()) {
    const std::size_t end = folders.find(':');
    if (end != 0) places.push_back(fs::path(folders.substr(0, end)) / kName);
    folders = end == std::string::npos ? "" : folders.substr(end + 1);
  }
  if (const fs::path python = variable("HEADROOM_PYTHON"); python.has_parent_path()) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(python.parent_path().parent_path() / "lib", ignored))
      if (entry.path().filename().string().starts_with("python3"))
        places.push_back(entry.path() / "site-packages" / "nvidia" / "nccl" / "lib" / kName);
  }
  places.emplace_back(kName);
  return places;
}

Nccl Nccl::load(const fs::path& file) {
  turn_multicast_off();
  // Never closed: its threads may outlive the last communicator.
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw UnsupportedError("NCCL: " + std::string(::dlerror()));
  Nccl nccl;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) throw UnsupportedError("NCCL: " + file.string() + " has no " + name);
  };
  find("ncclGetVersion", nccl.get_version);
  find("ncclGetErrorString", nccl.get_error_string);
  find("ncclGetLastError", nccl.get_last_error);
  find("ncclCommInitAll", nccl.comm_init_all);
  find("ncclCommGetAsyncError", nccl.comm_get_async_error);
  find("ncclCommAbort", nccl.comm_abort);
  find("ncclCommDestroy", nccl.comm_destroy);
  find("ncclAllReduce", nccl.all_reduce);
  nccl.file = file;
  return nccl;
}

const Nccl& Nccl::get() {
  static const Nccl nccl = [] {
    std::string looked_in;
    for (const fs::path& place : places()) {
      std::error_code ignored;
      const bool by_loader = !place.has_parent_path();
      if (!by_loader && !fs::exists(place, ignored)) {
        looked_in += place.string() + ", ";
        continue;
      }
      try {
        return load(place);
      } catch (const UnsupportedError&) {
        if (!by_loader) throw;
      }
    }
    throw UnsupportedError("needs NCCL for several devices, which is neither in " + looked_in +
                           "nor where the loader looks; HEADROOM_NCCL names its file");
  }();
  return nccl;
}

}  // namespace headroom::ranks
