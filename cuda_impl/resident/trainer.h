// `cuda-resident`: small networks whose weights stay in shared memory over thousands of steps in one launch.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "jit/ready_kernel.h"
#include "resident/block_plan.h"
#include "resident/column_peers.h"
#include "resident/patch_plan.h"
#include "resident/sharing.h"
#include "resident/slice_plan.h"
#include "resident/slice_ranks.h"
#include "resident/slice_slots.h"

namespace headroom {

namespace resident {

using AnyPlan = std::variant<BlockPlan, SlicePlan, SlotPlan, PatchPlan, ColumnPlan, RankPlan, SliceRankPlan>;

/// A kernel that trains what one plan, or several, say.
struct PlanKernel {
  jit::ReadyKernel ready;
  int threads;  ///< of a thread block
};
/// Makes the kernels of plans: compiled.h for a GPU, tests/emulated for one that the CPU plays.
class KernelMaker {
 public:
  virtual ~KernelMaker() = default;
  /// Throws UnsupportedError if there is no kernel for such a plan, but may be for another one.
  virtual PlanKernel make(const AnyPlan& plan, Precision precision) const = 0;
};

/// Where a slice kernel finds its plan: in its argument, so that networks of one kind share a kernel, or in constants of its code.
/// kChosen: plan_form_of() of requests.h.
enum class PlanForm { kChosen, kArgument, kConstants };

}  // namespace resident

/// Why CUDA device `device` cannot run cuda-resident; nullopt if it can.
std::optional<std::string> resident_unavailable(int device);

/// For tests: everybody else takes the defaults.
struct ResidentOptions {
  enum class Form { kAny, kCluster, kGrid };
  enum class Kernel { kAny, kBlocks, kSlices, kPatches, kColumns };
  Form form = Form::kAny;
  Kernel kernel = Kernel::kAny;
  /// Of the slice kernel over the grid, in 16 bits {1, 1} or {2, 2}. A team of 0: any. One that a precision has no
  /// kernels for is a std::invalid_argument.
  resident::Sharing sharing = {0, 0};
  resident::PlanForm plan_form = resident::PlanForm::kChosen;
  double wait_seconds = 2;  ///< longest wait for other thread blocks; a longer one fails the training
  int lost_exchange = -1;   ///< an exchange that waits for more than is ever sent
  int absent_rank = -1;     ///< one of several devices that launches nothing
  /// Ranks may be on one device, as far as all their thread blocks fit there at once. Their launches are not cooperative, as such launches
  /// of one device need not run beside each other.
  bool ranks_share_devices = false;
};

namespace resident {
/// Asks `maker` for the kernels of a workload's plans in the order in which a trainer on a device with these limits would, until
/// it makes one that can be resident there. What spoke against the last of them, if it makes none.
std::string offer_plans(const Workload& workload, Precision precision, const Limits& limits,
                        const ResidentOptions& options, const KernelMaker& maker);
}  // namespace resident

/// Throws UnsupportedError with resident_unavailable()'s reason or with the bytes that do not fit, InputError if
/// the data does not fit the workload, OutOfMemoryError, and what `maker` throws. Takes the first plan whose kernel `maker` makes and
/// whose thread blocks can all be resident. compiled.h has a maker that compiles.
std::unique_ptr<Trainer> make_resident_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const resident::KernelMaker& maker,
                                               const ResidentOptions& options = {});

/// The same on as many devices of one host as the workload has, a rank each (core/workload.h): columns and slices train on several, on 2, 4 or
/// 8. All ranks keep the same bits, which is checked whenever parameters are read. Throws UnsupportedError also where a device cannot
/// reach another's memory, and std::invalid_argument for another number of devices.
std::unique_ptr<Trainer> make_resident_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial,
                                               const std::vector<int>& devices,
                                               const resident::KernelMaker& maker,
                                               const ResidentOptions& options = {});

}  // namespace headroom
