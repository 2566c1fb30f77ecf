// A libnvidia-ml.so.1 for tests, with made-up devices, all alike. FAKE_NVML in the environment says what is wrong with it: words
// such as "slowdown", "no-permission", "no-energy", "other-process".
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNoPermission = 4, kNotFound = 6;
constexpr const char* kUuids =
    "GPU-fa4e0000-0000-0000-0000-00000000000";  // and the device's number, from 1 on
constexpr double kWatts = 250;

bool is_said(const char* word) {
  const char* text = std::getenv("FAKE_NVML");
  return text != nullptr && std::strstr(text, word) != nullptr;
}

int permission() { return is_said("no-permission") ? kNoPermission : kSuccess; }

std::atomic<int> started{0};
int the_device = 0;

struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

}  // namespace

extern "C" {

int nvmlInit_v2() {
  ++started;
  return is_said("no-driver") ? 9 : kSuccess;
}
int nvmlShutdown() {
  --started;
  return kSuccess;
}
const char* nvmlErrorString(int status) {
  return status == kNotFound ? "Not Found" : status == 9 ? "Driver Not Loaded" : "Insufficient Permissions";
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strncmp(uuid, kUuids, std::strlen(kUuids)) != 0) return kNotFound;
  *device = &the_device;
  return kSuccess;
}
int nvmlDeviceGetClockInfo(void* device, int type, unsigned* megahertz) {
  if (device != &the_device) return kInvalidArgument;
  *megahertz = type == 1 ? 1980 : 3201;
  return permission();
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = static_cast<unsigned>(1e3 * kWatts);
  return permission();
}
int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) {
  *celsius = 41;
  return permission();
}
// The name before driver 535, so that the older one is tried too.
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* bits) {
  *bits = is_said("slowdown") ? 0x44 : 0x4;
  return permission();
}
int nvmlDeviceGetEccMode(void*, int* current, int* pending) {
  *current = *pending = 1;
  return permission();
}
int nvmlDeviceGetTotalEccErrors(void*, int, int, unsigned long long* count) {
  *count = 0;
  return permission();
}
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, ProcessInfo* processes) {
  const unsigned needed = is_said("other-process") ? 2 : 1;
  if (*count < needed) {
    *count = needed;
    return 7;
  }
  *count = needed;
  processes[0] = {is_said("other-namespace") ? 4000000u : static_cast<unsigned>(getpid()), 1u << 20, 0, 0};
  if (needed == 2) processes[1] = {1, 1u << 20, 0, 0};
  return permission();
}
int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
  if (is_said("no-energy")) return kNotSupported;
  static const auto start = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double moved = std::floor(seconds / 0.02) * 0.02;  // as a real one does, though that takes 0.1 s
  *millijoules = 1000000 + static_cast<unsigned long long>(1e3 * kWatts * moved);
  return permission();
}

}  // extern "C"
