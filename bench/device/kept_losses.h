// The losses that a trainer keeps on the device: a ring with a slot for each of the latest
// Trainer::kKeptLosses steps. Kernels write slot step mod kKeptLosses of data(); which steps are there is
// counted here.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/trainer.h"
#include "device/memory.h"
#include "device/stream.h"

namespace headroom {

class KeptLosses {
 public:
  KeptLosses() : slots_(Trainer::kKeptLosses) { slots_.fill_bytes(0); }

  float* data() { return slots_.data(); }

  /// Throws std::invalid_argument unless train() may be asked for these steps.
  static void require_steps(std::int64_t first_step, std::int64_t count) {
    if (first_step < 0 || count < 0)
      throw std::invalid_argument("train: first step " + std::to_string(first_step) + ", count " +
                                  std::to_string(count) + "; neither may be negative");
  }
  /// Steps first_step to first_step + count - 1 have been written.
  void trained(std::int64_t first_step, std::int64_t count) {
    if (first_step > end_ || first_step < begin_) begin_ = first_step;
    end_ = first_step + count;
  }
  /// Waits for `stream`. Throws InputError for steps that are not kept.
  std::vector<float> read(std::int64_t first_step, std::int64_t count, Stream& stream) const {
    const std::int64_t oldest = std::max(begin_, end_ - Trainer::kKeptLosses);
    if (count < 0 || first_step < oldest || first_step + count > end_)
      throw InputError("losses: asked for steps " + std::to_string(first_step) + " to " +
                       std::to_string(first_step + count - 1) + "; kept are steps " + std::to_string(oldest) +
                       " to " + std::to_string(end_ - 1));
    std::vector<float> result(static_cast<std::size_t>(count));
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t slot = (first_step + done) % Trainer::kKeptLosses;
      const std::int64_t run = std::min(count - done, Trainer::kKeptLosses - slot);
      CUDA_CHECK(cudaMemcpyAsync(result.data() + done, slots_.data() + slot,
                                 static_cast<std::size_t>(run) * sizeof(float), cudaMemcpyDeviceToHost,
                                 stream.get()));
      done += run;
    }
    stream.synchronize();
    return result;
  }

 private:
  DeviceBuffer<float> slots_;
  std::int64_t begin_ = 0, end_ = 0;  // the steps trained without a gap
};

}  // namespace headroom
