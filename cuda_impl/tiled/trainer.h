// `cuda-tiled`: the whole step as a list of tiles, for the batches and widths that most networks are trained with.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/workload.h"
#include "jit/ready_kernel.h"
#include "tiled/plan.h"
#include "trainers/launched_trainer.h"

namespace headroom {

namespace tiled {
/// Makes the kernel of a shape, whose argument is Arguments (arguments.h): compiled.h for a GPU, tests/emulated for one that the CPU plays.
using MakeKernel = std::function<jit::ReadyKernel(const KernelShape&)>;
}  // namespace tiled

/// For measurements and tests.
struct TiledOptions {
  bool timed = false;  ///< a kernel that can tell when its tasks were done
  /// The kernel for every GPU, or the one for wgmma where the device has it; else the one that is chosen.
  std::optional<bool> portable{};
  std::optional<tiled::Tiling> tiling{};  ///< instead of the one that choose_tiling() takes
  std::optional<int> slabs_of_part{};     ///< instead of choose_parts()'s
  int shared_bytes = 0;     ///< of a thread block of the portable kernel, at most; 0: what the device has
  double wait_seconds = 0;  ///< how long a wait may take; 0: far longer than a step does
  int lost_task = -1;       ///< this task of the first multiprocessor waits for more than comes
  int multiprocessors = 0;  ///< that have lists, at most; 0: all of the device
  // Of several ranks.
  bool ranks_share_devices =
      false;             ///< a device may be named for several of them, which share out its multiprocessors
  int absent_rank = -1;  ///< this one never starts
  int silent_rank = -1;  ///< this one's signals to its peers are lost
};

/// What became of a task in a step.
struct TiledTaskTimes {
  int multiprocessor;
  tiled::Task task;
  double begin, first_slab, products, end;  ///< seconds since the first of the step; 0 where there is none
};

class TiledTrainer : public LaunchedTrainer {
 public:
  /// Trains `count` steps and tells what the multiprocessors did when in the last of them. Throws std::logic_error if it was not made with
  /// TiledOptions::timed.
  virtual std::vector<TiledTaskTimes> traced_step(std::int64_t first_step, std::int64_t count) = 0;
};

/// Why CUDA device `device` cannot run cuda-tiled; nullopt if it can.
std::optional<std::string> tiled_unavailable(int device);
/// The same of a GPU of this compute capability.
std::optional<std::string> tiled_too_old(int compute_major, int compute_minor);
/// Whether it is the kernel for every GPU (tiled/portable.cuh) that trains this on a GPU of this compute capability with so many
/// multiprocessors.
bool tiled_takes_portable(const Workload& workload, Precision precision, int compute_major, int compute_minor,
                          int multiprocessors, const TiledOptions& options = {});

/// Throws UnsupportedError with the reason of tiled_unavailable(), and for a step of too many tiles; InputError if
/// the data does not fit the workload, OutOfMemoryError. Every wait of its kernel has a bound: train() throws DeviceStuckError that says
/// which task of which multiprocessor waited for what, and the process has to end. And what `make` throws, which is called once.
std::unique_ptr<TiledTrainer> make_tiled_trainer(const Workload& workload, Precision precision,
                                                 const DatasetView& data, const Parameters& initial,
                                                 int device, const TiledOptions& options,
                                                 const tiled::MakeKernel& make);
/// On as many devices as the workload says, each of them a rank (ranks.cuh). Throws as well: UnsupportedError if a device cannot reach
/// another's memory, std::invalid_argument for another number of devices.
std::unique_ptr<Trainer> make_tiled_trainer(const Workload& workload, Precision precision,
                                            const DatasetView& data, const Parameters& initial,
                                            const std::vector<int>& devices, const TiledOptions& options,
                                            const tiled::MakeKernel& make);
/// The devices of which one trains a network, at most.
inline constexpr int kMostTiledRanks = 8;

}  // namespace headroom
