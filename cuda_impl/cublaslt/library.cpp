#include "cublaslt/library.h"

#include <dlfcn.h>

#include <filesystem>
#include <stdexcept>

#include "core/error.h"

namespace headroom::cublaslt {
namespace {

#define HEADROOM_STRING_OF(text) #text
#define HEADROOM_STRING(text) HEADROOM_STRING_OF(text)
constexpr const char* kFile = "libcublasLt.so." HEADROOM_STRING(CUBLAS_VER_MAJOR);

struct Loaded {
  Library library{};
  std::string missing;
};

template <class Function>
void load(void* handle, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr && missing.empty()) missing = std::string(kFile) + " has no " + name;
}

Loaded load_library() {
  Loaded loaded;
  // Stays loaded: unloading a library that holds CUDA contexts is not safe.
  void* handle = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    loaded.missing = "cuBLASLt was not found: " + std::string(reason != nullptr ? reason : kFile);
    return loaded;
  }
  Library& library = loaded.library;
  const auto get = [&](const char* name, auto& function) { load(handle, name, function, loaded.missing); };
  get("cublasLtCreate", library.create);
  get("cublasLtDestroy", library.destroy);
  get("cublasLtGetVersion", library.version);
  get("cublasLtGetStatusString", library.status_string);
  get("cublasLtMatmul", library.matmul);
  get("cublasLtMatmulAlgoGetHeuristic", library.heuristics);
  get("cublasLtMatmulDescCreate", library.create_operation);
  get("cublasLtMatmulDescDestroy", library.destroy_operation);
  get("cublasLtMatmulDescSetAttribute", library.set_operation);
  get("cublasLtMatrixLayoutCreate", library.create_layout);
  get("cublasLtMatrixLayoutDestroy", library.destroy_layout);
  get("cublasLtMatmulPreferenceCreate", library.create_preference);
  get("cublasLtMatmulPreferenceDestroy", library.destroy_preference);
  get("cublasLtMatmulPreferenceSetAttribute", library.set_preference);
  return loaded;
}

}  // namespace

const Library* find_library(std::string* missing) {
  static const Loaded loaded = load_library();
  if (loaded.missing.empty()) return &loaded.library;
  if (missing != nullptr) *missing = loaded.missing;
  return nullptr;
}

const char* library_file() { return kFile; }

std::string library_version() {
  const Library* library = find_library();
  if (library == nullptr) return {};
  const std::size_t number = library->version();  // 130002 for 13.0.2 and 120805 for 12.8.5
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

void check_cublaslt(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const Library* library = find_library();
  const std::string message = std::string(call) + " in " + std::filesystem::path(file).filename().string() +
                              ":" + std::to_string(line) + ": " +
                              (library != nullptr ? library->status_string(status) : "no library");
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfMemoryError(message);
  throw std::runtime_error(message);
}

}  // namespace headroom::cublaslt
