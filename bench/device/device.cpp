#include "device/device.h"

#include <dlfcn.h>

#include <cctype>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "device/check.h"

namespace headroom {
namespace {

/// Asked of NVML, which belongs to the driver: loaded if it is there, never linked.
std::string driver_version_from_nvml() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  using Initialize = int (*)();
  using Version = int (*)(char*, unsigned);
  std::string version;
  const auto initialize = reinterpret_cast<Initialize>(dlsym(library, "nvmlInit_v2"));
  const auto shut_down = reinterpret_cast<Initialize>(dlsym(library, "nvmlShutdown"));
  const auto driver_version = reinterpret_cast<Version>(dlsym(library, "nvmlSystemGetDriverVersion"));
  if (initialize != nullptr && shut_down != nullptr && driver_version != nullptr && initialize() == 0) {
    char text[96] = {};
    if (driver_version(text, sizeof text) == 0) version = text;
    shut_down();
  }
  dlclose(library);
  return version;
}

/// CUDA's own query knows the CUDA version a driver supports, not the driver's.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  if (std::getline(file, line)) {
    if (const std::string version = parse_driver_version(line); !version.empty()) return version;
  }
  return driver_version_from_nvml();
}

std::string format_uuid(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int byte = 0; byte < 16; ++byte) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[byte])));
    if (byte == 0 || byte == 4 || byte == 6 || byte == 8 || byte == 10) text += '-';
    text += digits;
  }
  return text;
}

}  // namespace

std::string parse_driver_version(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  while (words >> word) {
    bool digits_and_dots = std::isdigit(static_cast<unsigned char>(word.front())) != 0;
    bool dotted = false;
    for (const char character : word) {
      if (character == '.')
        dotted = true;
      else if (std::isdigit(static_cast<unsigned char>(character)) == 0)
        digits_and_dots = false;
    }
    if (digits_and_dots && dotted) return word;
  }
  return {};
}

std::optional<std::string> device_missing(int index) {
  if (index < 0) return "no CUDA device";
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    int driver = 0;
    const bool has_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
    if (code == cudaErrorNoDevice || !has_driver) return "no CUDA device";
    return std::string("no usable CUDA device: ") + cudaGetErrorString(code);
  }
  if (count == 0) return "no CUDA device";
  if (index >= count)
    return "no CUDA device " + std::to_string(index) + ": this machine has " + std::to_string(count) +
           ", counted from 0";
  return std::nullopt;
}

DeviceInfo device_info(int index) {
  if (const auto reason = device_missing(index)) throw UnsupportedError(*reason);
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  DeviceInfo info;
  info.name = properties.name;
  info.uuid = format_uuid(properties.uuid);
  info.driver = driver_version();
  info.index = index;
  info.sm_count = properties.multiProcessorCount;
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  info.l2_bytes = properties.l2CacheSize;
  return info;
}

int device_attribute(cudaDeviceAttr name, int index) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, name, index));
  return value;
}

void use_device(int index) {
  if (const auto reason = device_missing(index)) throw UnsupportedError(*reason);
  CUDA_CHECK(cudaSetDevice(index));
}

std::string cuda_runtime_version() {
  int version = 0;
  CUDA_CHECK(cudaRuntimeGetVersion(&version));
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace headroom
