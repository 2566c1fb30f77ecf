// What is done with NCCL, wherever it was found.
#include <stdexcept>

#include "ranks/nccl.h"

namespace headroom::ranks {

void Nccl::check(Result result, const char* call, Communicator communicator) const {
  if (result == 0) return;
  std::string text = std::string(call) + ": " + get_error_string(result);
  if (const char* more = communicator != nullptr ? get_last_error(communicator) : nullptr;
      more != nullptr && *more != '\0')
    text += std::string(" (") + more + ")";
  throw std::runtime_error(text);
}

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Communicators::Communicators(const std::vector<int>& devices, const Nccl& nccl)
    : nccl_(nccl), communicators_(devices.size()) {
  nccl_.check(
      nccl_.comm_init_all(communicators_.data(), static_cast<int>(communicators_.size()), devices.data()),
      "ncclCommInitAll");
}

Communicators::~Communicators() {
  if (aborted_) return;
  for (const Nccl::Communicator communicator : communicators_) (void)nccl_.comm_destroy(communicator);
}

void Communicators::all_reduce(int rank, float* values, std::int64_t count, cudaStream_t stream) const {
  const Nccl::Communicator communicator = communicators_.at(static_cast<std::size_t>(rank));
  nccl_.check(nccl_.all_reduce(values, values, static_cast<std::size_t>(count), Nccl::kFloat32, Nccl::kSum,
                               communicator, stream),
              "ncclAllReduce", communicator);
}

void Communicators::abort() noexcept {
  if (aborted_) return;
  aborted_ = true;
  for (const Nccl::Communicator communicator : communicators_) (void)nccl_.comm_abort(communicator);
}

std::string Communicators::version() const {
  int version = 0;
  nccl_.check(nccl_.get_version(&version), "ncclGetVersion");
  return version_text(version);
}

}  // namespace headroom::ranks
