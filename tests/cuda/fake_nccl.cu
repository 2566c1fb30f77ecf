// A libnccl.so.2 for tests: ranks that may all be on one GPU, which NCCL itself refuses.
//
// A sum is one kernel in each rank's stream. Block b of each rank puts its part into a shared buffer, raises its flag, waits
// for block b of the others, and adds up in the ranks' order: the same bits on all. Sums are counted on the device, since a
// captured one is launched again and again; of two buffers by turns the one before is read while the next is written.
// FAKE_NCCL=alike in the environment: the ranks are taken to hold the same values, and nobody waits. Where ranks share a GPU
// a kernel that fills it can keep the others' sums from ever coming.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace {

constexpr int kSuccess = 0, kFailure = 1, kTooMany = 4;
constexpr int kMostRanks = 8, kBlocks = 8, kThreads = 256;
constexpr std::int64_t kMostValues = std::int64_t{1} << 23;  // of a sum
constexpr std::int64_t kMostNanoseconds = 3'000'000'000;

/// Of all ranks, in device memory but for `aborted`, which is the host's.
struct Meeting {
  int ranks = 0;
  bool alike = false;
  float* values = nullptr;         // [2, ranks, kMostValues]
  std::uint32_t* flags = nullptr;  // [ranks, kBlocks]: sums whose part is there
  std::uint32_t* aborted = nullptr;
};

__device__ std::int64_t now() {
  std::int64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__global__ void __launch_bounds__(kThreads)
    sum(Meeting meeting, int rank, const float* from, float* to, std::int64_t count) {
  const std::int64_t begin = blockIdx.x * count / kBlocks, end = (blockIdx.x + 1) * count / kBlocks;
  std::uint32_t* flag = meeting.flags + rank * kBlocks + blockIdx.x;
  const std::uint32_t which = *flag + 1;
  float* values = meeting.values + (which & 1) * meeting.ranks * kMostValues;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) values[rank * kMostValues + i] = from[i];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(which) : "memory");
    const std::int64_t start = now();
    for (int other = 0; other < meeting.ranks; ++other) {
      std::uint32_t there = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(there)
                     : "l"(meeting.flags + other * kBlocks + blockIdx.x)
                     : "memory");
        if (*static_cast<volatile std::uint32_t*>(meeting.aborted) != 0) break;
        if (now() - start > kMostNanoseconds) __trap();
      } while (static_cast<std::int32_t>(there - which) < 0);
    }
  }
  __syncthreads();
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    float all = __ldcg(values + i);
    for (int other = 1; other < meeting.ranks; ++other) all += __ldcg(values + other * kMostValues + i);
    to[i] = all;
  }
}

__global__ void __launch_bounds__(kThreads)
    multiply(const float* from, float* to, float by, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = by * from[i];
}

struct Communicator {
  std::shared_ptr<Meeting> meeting;
  int rank = 0;
};

void end(Meeting* meeting) {
  (void)cudaFree(meeting->values);
  (void)cudaFree(meeting->flags);
  (void)cudaFreeHost(meeting->aborted);
  delete meeting;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 10000;
  return kSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == kTooMany ? "too many values or ranks" : "a failure";
}
const char* ncclGetLastError(void*) { return ""; }

int ncclCommInitAll(void** communicators, int count, const int*) {
  if (count > kMostRanks) return kTooMany;
  const std::shared_ptr<Meeting> meeting(new Meeting, end);
  meeting->ranks = count;
  const char* mode = std::getenv("FAKE_NCCL");
  meeting->alike = mode != nullptr && std::strcmp(mode, "alike") == 0;
  const std::size_t flags = kMostRanks * kBlocks * sizeof(std::uint32_t);
  if (cudaMalloc(&meeting->values, 2 * static_cast<std::size_t>(count) * kMostValues * sizeof(float)) != 0 ||
      cudaMalloc(&meeting->flags, flags) != 0 || cudaMemset(meeting->flags, 0, flags) != 0 ||
      cudaHostAlloc(&meeting->aborted, sizeof(std::uint32_t), cudaHostAllocMapped) != 0 ||
      cudaDeviceSynchronize() != 0)
    return kFailure;
  *meeting->aborted = 0;
  for (int rank = 0; rank < count; ++rank) communicators[rank] = new Communicator{meeting, rank};
  return kSuccess;
}
int ncclCommGetAsyncError(void*, int* error) {
  *error = kSuccess;
  return kSuccess;
}
int ncclCommAbort(void* communicator) {
  *static_cast<volatile std::uint32_t*>(static_cast<Communicator*>(communicator)->meeting->aborted) = 1;
  return kSuccess;  // nothing is freed: kernels may still read it
}
int ncclCommDestroy(void* communicator) {
  delete static_cast<Communicator*>(communicator);
  return kSuccess;
}

int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int operation, void* communicator,
                  cudaStream_t stream) {
  const auto& [meeting, rank] = *static_cast<Communicator*>(communicator);
  if (type != 7 || operation != 0) return kFailure;  // sums of fp32
  const auto values = static_cast<std::int64_t>(count);
  if (values > kMostValues) return kTooMany;
  const auto* source = static_cast<const float*>(from);
  auto* target = static_cast<float*>(to);
  if (meeting->alike) {
    const auto blocks = static_cast<unsigned>((values + kThreads - 1) / kThreads);
    multiply<<<blocks, kThreads, 0, stream>>>(source, target, static_cast<float>(meeting->ranks), values);
  } else {
    sum<<<kBlocks, kThreads, 0, stream>>>(*meeting, rank, source, target, values);
  }
  return cudaGetLastError() == cudaSuccess ? kSuccess : kFailure;
}

}  // extern "C"
