// A libnccl.so.2 for tests: ranks that are all on one GPU, which NCCL itself refuses.
//
// The ranks are taken to hold the same values, so a sum is a multiple of a rank's own, and no rank waits for another: nothing says
// that two streams of one GPU run beside each other, and now and then they do not.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace {

constexpr int kSuccess = 0, kFailure = 1, kTooMany = 4;
constexpr int kMostRanks = 8, kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    multiply(const float* from, float* to, float by, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = by * from[i];
}

struct Communicator {
  int ranks;
};

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 10000;
  return kSuccess;
}
const char* ncclGetErrorString(int result) { return result == kTooMany ? "too many ranks" : "a failure"; }
const char* ncclGetLastError(void*) { return ""; }

int ncclCommInitAll(void** communicators, int count, const int*) {
  if (count > kMostRanks) return kTooMany;
  for (int rank = 0; rank < count; ++rank) communicators[rank] = new Communicator{count};
  return kSuccess;
}
int ncclCommGetAsyncError(void*, int* error) {
  *error = kSuccess;
  return kSuccess;
}
int ncclCommAbort(void*) { return kSuccess; }
int ncclCommDestroy(void* communicator) {
  delete static_cast<Communicator*>(communicator);
  return kSuccess;
}

int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int operation, void* communicator,
                  cudaStream_t stream) {
  if (type != 7 || operation != 0) return kFailure;  // sums of fp32
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  multiply<<<blocks, kThreads, 0, stream>>>(
      static_cast<const float*>(from), static_cast<float*>(to),
      static_cast<float>(static_cast<Communicator*>(communicator)->ranks), static_cast<std::int64_t>(count));
  return cudaGetLastError() == cudaSuccess ? kSuccess : kFailure;
}

}  // extern "C"
