// The part of the CUDA runtime that trainers and their tests call, on the machine that the CPU plays. Streams are always
// done; events are stamped with the machine's own time. Threads may launch beside each other: the machine takes them in turn.
//
// There are several such GPUs, with one memory. A cooperative launch on one that may reach its peers' memory is put off until the host
// waits for something or gives that GPU more to do: launches on the others that it may wait for run beside it.
#include "runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "machine.h"
#include "tensor_map.h"

namespace headroom::emulated {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t remember(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

constexpr std::size_t kAllocationAlignment = 256;

/// HEADROOM_EMULATED_SMS, else as many as an H200 has. With few of them a small batch is many tiles for each.
int sms() {
  static const int count = [] {
    const char* given = std::getenv("HEADROOM_EMULATED_SMS");
    return given != nullptr ? std::max(1, std::atoi(given)) : kSms;
  }();
  return count;
}

/// Clusters of `size` blocks of which one takes an SM that an H200 was seen to hold at once (docs/kernels/log/resident.md).
int clusters_at_once(unsigned size) {
  if (sms() < kSms) return sms() / static_cast<int>(size);
  return size <= 1    ? kSms
         : size <= 2  ? 66
         : size <= 3  ? 39
         : size <= 4  ? 30
         : size <= 8  ? 15
         : size <= 16 ? 7
                      : 0;
}
int blocks_on_sm(std::size_t shared_bytes) {
  return shared_bytes > kSharedBytesOfBlock
             ? 0
             : static_cast<int>(kSharedBytesOfSm / (shared_bytes + kReservedSharedBytes));
}

Shape shape_of(const cudaLaunchConfig_t& config) {
  const dim3& grid = config.gridDim;
  Shape shape{.blocks = grid.x * grid.y * grid.z,
              .threads = config.blockDim.x,
              .grid_y = grid.y,
              .grid_z = grid.z,
              .shared_bytes = config.dynamicSmemBytes};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeCooperative) shape.cooperative = attribute.val.cooperative != 0;
    if (attribute.id == cudaLaunchAttributeClusterDimension) shape.cluster = attribute.val.clusterDim.x;
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      shape.overlaps = attribute.val.programmaticStreamSerializationAllowed != 0;
  }
  return shape;
}

/// Of the schedules of all launches in turn: HEADROOM_EMULATED_SEED, else another one every time.
std::uint64_t first_seed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("HEADROOM_EMULATED_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  }();
  return seed;
}

/// One of no blocks is work for the host.
using Launches = std::vector<Launch>;
thread_local Launches* captured = nullptr;  // while a stream is captured; a thread has one stream
bool is_for_host(const Launch& launch) { return launch.shape.blocks == 0; }

bool fits(const Shape& shape) {
  return shape.cooperative && shape.cluster == 1
             ? shape.blocks <= static_cast<unsigned>(sms() * blocks_on_sm(shape.shared_bytes))
             : shape.shared_bytes <= kSharedBytesOfBlock;
}

/// One after the other, or all beside each other.
cudaError_t run_kernels(std::span<const Launch> all, bool beside) {
  for (const Launch& launch : all)
    if (!fits(launch.shape)) return remember(cudaErrorCooperativeLaunchTooLarge);
  static std::mutex machine;
  const std::lock_guard in_turn(machine);
  static std::uint64_t runs = 0;
  seed_schedule(first_seed() + runs++);
  try {
    if (beside)
      run_beside(all);
    else
      run(all);
  } catch (const Fault& fault) {
    std::fprintf(stderr, "HEADROOM_EMULATED_SEED=%llu, launch %llu: %s\n",
                 static_cast<unsigned long long>(first_seed()), static_cast<unsigned long long>(runs),
                 fault.what());
    return remember(cudaErrorLaunchFailure);
  }
  return cudaSuccess;
}

cudaError_t run_all(const Launches& all, bool beside = false) {
  for (auto begin = all.begin(); begin != all.end();) {
    if (is_for_host(*begin)) {
      begin++->thread();
      continue;
    }
    const auto end = std::find_if(begin, all.end(), is_for_host);
    if (const cudaError_t code = run_kernels({begin, end}, beside); code != cudaSuccess) return code;
    begin = end;
  }
  return cudaSuccess;
}

constexpr int kDevices = 4;
thread_local int current_device = 0;
bool reaches_peers[kDevices] = {};
/// Launches that are put off, at most one of each device.
struct PutOffLaunch {
  int device;
  Launch launch;
};
std::vector<PutOffLaunch> put_off;

cudaError_t run_put_off() {
  if (put_off.empty()) return cudaSuccess;
  Launches all;
  for (PutOffLaunch& one : std::exchange(put_off, {})) all.push_back(std::move(one.launch));
  return run_all(all, true);
}
/// Before this device has more to do.
cudaError_t run_put_off_here() {
  for (const PutOffLaunch& one : put_off)
    if (one.device == current_device) return run_put_off();
  return cudaSuccess;
}

/// The driver's function for matrices, or slices of them, of fp16, bf16 or fp32 in boxes with rows of 128 bytes, swizzled; nothing else is asked of it.
CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                           const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                           const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const bool sixteen_bits =
      type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const int value_bytes = sixteen_bits ? 2 : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 0;
  const bool of_panels = rank == 4;
  const cuuint32_t slices = of_panels ? 3 : 2;  // the dimension
  if (rank < 2 || rank > 4 || (rank > 2 && (strides[slices - 1] % 16 != 0 || box[slices] != 1)) ||
      (of_panels && (strides[1] != 128 || extents[0] > box[0])) || value_bytes == 0 ||
      swizzle != CU_TENSOR_MAP_SWIZZLE_128B || box[0] * static_cast<unsigned>(value_bytes) != 128 ||
      strides[0] % 16 != 0 || reinterpret_cast<std::uintptr_t>(data) % 16 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const TensorMap tensor{.data = static_cast<unsigned char*>(data),
                         .rows = static_cast<std::int64_t>(extents[1]),
                         .columns = static_cast<std::int64_t>(extents[0]),
                         .row_bytes = static_cast<std::int64_t>(strides[0]),
                         .box_rows = static_cast<int>(box[1]),
                         .box_columns = static_cast<int>(box[0]),
                         .value_bytes = value_bytes,
                         .slices = rank > 2 ? static_cast<std::int64_t>(extents[slices]) : 1,
                         .slice_bytes = rank > 2 ? static_cast<std::int64_t>(strides[slices - 1]) : 0,
                         .box_panels = of_panels ? static_cast<int>(box[2]) : 0,
                         .panels = of_panels ? static_cast<std::int64_t>(extents[2]) : 1};
  static_assert(sizeof tensor <= sizeof *map);
  std::memcpy(map, &tensor, sizeof tensor);
  return CUDA_SUCCESS;
}

/// What does no more than launch can be captured.
cudaError_t outside_of_captures() {
  return captured == nullptr ? cudaSuccess : remember(cudaErrorStreamCaptureUnsupported);
}

}  // namespace

cudaError_t launch_thread(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  Launch launch{shape_of(config), std::move(thread)};
  if (captured == nullptr) {
    if (const cudaError_t code = run_put_off_here(); code != cudaSuccess) return code;
    if (!launch.shape.cooperative || !reaches_peers[current_device]) return run_all({std::move(launch)});
    put_off.push_back({current_device, std::move(launch)});
    return cudaSuccess;
  }
  captured->push_back(std::move(launch));
  return cudaSuccess;
}

cudaError_t launch_host(std::function<void()> work) {
  if (captured == nullptr) {
    if (const cudaError_t code = run_put_off_here(); code != cudaSuccess) return code;
    return work(), cudaSuccess;
  }
  captured->push_back({.shape = {.blocks = 0}, .thread = std::move(work)});
  return cudaSuccess;
}

}  // namespace headroom::emulated

namespace emulated = headroom::emulated;

// NOLINTBEGIN: names and parameters are the runtime's.
extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(emulated::last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorLaunchFailure ? "the emulated launch failed" : "an error of the emulated device";
}
const char* cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "an emulated error";
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = emulated::kDevices, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = emulated::current_device, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= emulated::kDevices) return emulated::remember(cudaErrorInvalidDevice);
  return emulated::current_device = device, cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return *can = device != peer, cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int device, int peer) {
  return *value = device != peer, cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return emulated::reaches_peers[emulated::current_device] = true, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "a GPU that the CPU plays");
  properties->multiProcessorCount = emulated::sms();
  properties->major = emulated::kComputeMajor;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int) {
  switch (name) {
    case cudaDevAttrMultiProcessorCount:
      *value = emulated::sms();
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = emulated::kSharedBytesOfBlock;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = emulated::kComputeMajor;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = emulated::kL2Bytes;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = emulated::kSharedBytesOfSm;
      return cudaSuccess;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = emulated::kReservedSharedBytes;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = emulated::kThreadsOfSm;
      return cudaSuccess;
    default:
      return emulated::remember(cudaErrorNotSupported);
  }
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* config) {
  const emulated::Shape shape = emulated::shape_of(*config);
  *clusters = emulated::blocks_on_sm(shape.shared_bytes) > 0 ? emulated::clusters_at_once(shape.cluster) : 0;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                          size_t shared_bytes) {
  *blocks = emulated::blocks_on_sm(shared_bytes);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  constexpr std::size_t kUnit = emulated::kAllocationAlignment;
  *pointer = std::aligned_alloc(kUnit, (bytes + kUnit - 1) / kUnit * kUnit);
  if (*pointer == nullptr) return emulated::remember(cudaErrorMemoryAllocation);
  std::memset(*pointer, 0xff, bytes);  // floating-point values are NaN
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  const cudaError_t code = emulated::run_put_off();  // of what may still use it
  return std::free(pointer), code;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return *pointer = std::malloc(bytes), *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  const cudaError_t code = emulated::run_put_off();
  return std::free(pointer), code;
}
cudaError_t cudaMemset(void* pointer, int byte, size_t bytes) {
  if (emulated::outside_of_captures() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t code = emulated::run_put_off_here(); code != cudaSuccess) return code;
  return std::memset(pointer, byte, bytes), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* pointer, int byte, size_t bytes, cudaStream_t) {
  return emulated::launch_host([=] { std::memset(pointer, byte, bytes); });
}
cudaError_t cudaMemcpy(void* destination, const void* source, size_t bytes, cudaMemcpyKind) {
  if (emulated::outside_of_captures() != cudaSuccess) return cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t code = emulated::run_put_off(); code != cudaSuccess) return code;
  return std::memcpy(destination, source, bytes), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return cudaMemcpy(destination, source, bytes, kind);
}

cudaError_t cudaMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t) {
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t code =
        cudaMemcpy(static_cast<unsigned char*>(destination) + row * destination_pitch,
                   static_cast<const unsigned char*>(source) + row * source_pitch, width, kind);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}
/// The only one that is asked for.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&emulated::encode_tensor_map) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = nullptr, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return emulated::run_put_off(); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return emulated::run_put_off(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  emulated::captured = new emulated::Launches;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(std::exchange(emulated::captured, nullptr));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return delete reinterpret_cast<emulated::Launches*>(graph), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  const auto* launches = reinterpret_cast<const emulated::Launches*>(graph);
  *executable = reinterpret_cast<cudaGraphExec_t>(new emulated::Launches(*launches));
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return delete reinterpret_cast<emulated::Launches*>(executable), cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  if (const cudaError_t code = emulated::run_put_off_here(); code != cudaSuccess) return code;
  return emulated::run_all(*reinterpret_cast<const emulated::Launches*>(executable));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = reinterpret_cast<cudaEvent_t>(new std::uint64_t(0)), cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return delete reinterpret_cast<std::uint64_t*>(event), cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  const cudaError_t code = emulated::run_put_off();
  *reinterpret_cast<std::uint64_t*>(event) = emulated::nanoseconds();
  return code;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = 1e-6f * static_cast<float>(*reinterpret_cast<std::uint64_t*>(end) -
                                             *reinterpret_cast<std::uint64_t*>(begin));
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND
