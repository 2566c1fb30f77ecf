// NVIDIA's NCCL, found at run time: PyTorch brings it, and a machine without it has no need of it.
//
// Only what an all-reduce in one process takes is declared. Source of the declarations: nccl.h of NCCL 2.28 (BSD
// licence), whose C interface has not changed since 2.4.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace headroom::ranks {

/// The functions of the library; those of nccl.h without the prefix.
struct Nccl {
  using Communicator = void*;  ///< ncclComm_t
  using Result = int;          ///< ncclResult_t; 0 is success
  static constexpr int kFloat32 = 7, kSum = 0;

  Result (*get_version)(int* version);
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Communicator communicator);
  Result (*comm_init_all)(Communicator* communicators, int count, const int* devices);
  Result (*comm_get_async_error)(Communicator communicator, Result* error);
  Result (*comm_abort)(Communicator communicator);
  Result (*comm_destroy)(Communicator communicator);
  Result (*all_reduce)(const void* from, void* to, std::size_t count, int type, int operation,
                       Communicator communicator, cudaStream_t stream);

  std::filesystem::path file;  ///< where it was found

  /// Loads it, once for the process and with NVLink multicast off: HEADROOM_NCCL names the file; else it is looked for in
  /// the folders of HEADROOM_TORCH_LIBRARY_PATH, in the environment of HEADROOM_PYTHON, and where the loader looks.
  /// Throws UnsupportedError that says where it was looked for.
  static const Nccl& get();
  /// Where get() looks, in its order; the last is a name without a folder, for the loader.
  static std::vector<std::filesystem::path> places();
  /// Of one file. Throws UnsupportedError if it cannot be loaded or lacks a function.
  static Nccl load(const std::filesystem::path& file);

  /// Throws std::runtime_error with NCCL's words.
  void check(Result result, const char* call, Communicator communicator = nullptr) const;
};

/// "2.28.9" for 22809, as ncclGetVersion() writes it since 2.9.
std::string version_text(int version);

/// One communicator for each of some devices, in this process. A rank's thread uses its own.
class Communicators {
 public:
  /// Throws UnsupportedError if there is no NCCL, std::runtime_error if it fails.
  explicit Communicators(const std::vector<int>& devices, const Nccl& nccl = Nccl::get());
  ~Communicators();  ///< ends them, or aborts what abort() was called for
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  int size() const { return static_cast<int>(communicators_.size()); }
  /// The sum over all ranks of `count` fp32 values takes the place of each rank's, the same bits on all. Asynchronous on
  /// `stream`; may be captured. All ranks call it, each from its own thread, in the same order.
  void all_reduce(int rank, float* values, std::int64_t count, cudaStream_t stream) const;
  /// Ends what waits for a rank that does not come. Nothing else may be called after it.
  void abort() noexcept;
  std::string version() const;

 private:
  const Nccl& nccl_;
  std::vector<Nccl::Communicator> communicators_;
  bool aborted_ = false;
};

}  // namespace headroom::ranks
