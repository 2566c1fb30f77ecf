// The resident kernel behind the trainer contract: picks a form that fits.
//
// Between launches the masters lie in the flat parameters on the device; a launch reads them, trains, and writes
// them back.
#include "resident/trainer.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <variant>
#include <vector>

#include "core/error.h"
#include "device/copies.h"
#include "device/device.h"
#include "device/peer_access.h"
#include "resident/block_arguments.h"
#include "resident/column_peers.h"
#include "resident/patch_arguments.h"
#include "resident/slice_arguments.h"
#include "resident/slice_ranks.h"
#include "resident/slice_slots.h"
#include "trainers/persistent_trainer.h"
#include "trainers/ranked_trainer.h"
#include "trainers/samples.h"
#include "trainers/step_factors.h"

namespace headroom {
namespace {

using namespace resident;

constexpr std::int64_t kFirstLaunch = 64;  // steps, before a launch was timed
constexpr std::int64_t kMostSteps = std::int64_t{1} << 16;

/// One of the kernels with its plan, and what of the plan the host needs whichever it is.
struct Program {
  AnyPlan plan;
  PlanKernel kernel;
  Form form;
  std::int32_t members, cluster, team, batch, exchanges, shared_bytes;  // cluster: thread blocks of one
  std::int64_t exchange_bytes, x_batch_bytes;

  template <class OnePlan>
  Program(const OnePlan& given, PlanKernel made)
      : plan(given),
        kernel(std::move(made)),
        form(layout_of(given).form),
        members(blocks_of(layout_of(given))),
        cluster(cluster_of(layout_of(given))),
        team(team_of(layout_of(given))),
        batch(layout_of(given).batch),
        exchanges(layout_of(given).exchanges),
        shared_bytes(layout_of(given).shared_bytes),
        exchange_bytes(layout_of(given).exchange_bytes),
        x_batch_bytes(layout_of(given).x_batch_bytes) {}

  static const SlicePlan& layout_of(const SlotPlan& plan) { return plan.slices; }
  static const ColumnPlan& layout_of(const RankPlan& plan) { return plan.columns; }
  static const SlicePlan& layout_of(const SliceRankPlan& plan) { return plan.slices; }
  template <class OtherPlan>
  static const OtherPlan& layout_of(const OtherPlan& plan) {
    return plan;
  }
  static int blocks_of(const SlicePlan& plan) { return thread_blocks(plan); }
  static int blocks_of(const ColumnPlan& plan) { return plan.shape.members * plan.shape.clusters; }
  template <class OtherPlan>
  static int blocks_of(const OtherPlan& plan) {
    return plan.members;
  }
  static int cluster_of(const BlockPlan&) { return kBlockRanks; }
  static int cluster_of(const ColumnPlan& plan) { return plan.shape.members; }
  static int cluster_of(const SlicePlan& plan) {
    return plan.form == Form::kCluster ? plan.members / plan.own : plan.team;
  }
  template <class OtherPlan>
  static int cluster_of(const OtherPlan& plan) {
    return plan.form == Form::kCluster ? plan.members : 1;
  }
  static int team_of(const SlicePlan& plan) { return plan.team; }
  template <class OtherPlan>
  static int team_of(const OtherPlan&) {
    return 1;
  }

  bool has_columns() const {
    return std::holds_alternative<ColumnPlan>(plan) || std::holds_alternative<RankPlan>(plan);
  }
  bool has_ranks() const {
    return std::holds_alternative<RankPlan>(plan) || std::holds_alternative<SliceRankPlan>(plan);
  }
  /// Whether thread blocks wait for others outside of their cluster, through the L2 or on other devices.
  bool cooperates() const { return form == Form::kGrid || members > cluster || has_ranks(); }

  std::string note() const {
    const bool in_clusters = form == Form::kCluster;
    const auto* slices = std::get_if<SlicePlan>(&plan);
    return (std::holds_alternative<PatchPlan>(plan)          ? "a patch of every weight a thread block, "
            : slices != nullptr && in_pair_clusters(*slices) ? "two slices a thread block, "
            : std::holds_alternative<BlockPlan>(plan)        ? "a block of weights a thread block, "
            : has_columns()                                  ? "16 columns a thread block, "
            : team == 1 ? "one slice a thread block, "
                        : "one slice for " + std::to_string(team) + " thread blocks, ") +
           (in_clusters && members > cluster ? std::to_string(members / cluster) + " clusters"
                                             : std::string(to_string(form))) +
           " of " + std::to_string(in_clusters ? cluster : members) + " thread blocks, " +
           std::to_string(shared_bytes) + " bytes of shared memory each; " + kernel.ready.note;
  }
};

struct LaunchShape {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};

  LaunchShape(const Program& plan, cudaStream_t stream, bool is_alone = true) {
    config.gridDim = dim3(static_cast<unsigned>(plan.members));
    config.blockDim = dim3(static_cast<unsigned>(plan.kernel.threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(plan.shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 0;
    if (plan.cooperates() && is_alone) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
    }
    if (plan.form == Form::kCluster || plan.cluster > 1) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(plan.cluster), 1, 1};
    }
  }
  LaunchShape(const LaunchShape&) = delete;
  LaunchShape& operator=(const LaunchShape&) = delete;
};

/// Lets the kernel have its shared memory, and asks whether all members can be resident at once. The reason if not.
std::optional<std::string> not_resident(const Program& plan, int sm_count, int beside_each_other = 1) {
  const void* kernel = plan.kernel.ready.function;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes));
  int fitting = 0;
  if (plan.form == Form::kCluster || plan.cluster > 1) {
    if (plan.cluster > 8)
      CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    const LaunchShape shape(plan, nullptr);
    int clusters = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &shape.config));
    fitting = clusters * plan.cluster;
  } else {
    int blocks = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, plan.kernel.threads,
                                                             static_cast<std::size_t>(plan.shared_bytes)));
    fitting = blocks * sm_count;
  }
  if (fitting >= plan.members * beside_each_other) return std::nullopt;
  return "cuda-resident: " + std::to_string(plan.members * beside_each_other) + " thread blocks with " +
         std::to_string(plan.shared_bytes) + " bytes of shared memory each (" +
         std::string(to_string(plan.form)) + ") must be resident at once; the device holds " +
         std::to_string(fitting);
}

/// Of programs that are made one after the other, the first whose thread blocks can all be resident, of so many beside each other.
class FirstResident {
 public:
  explicit FirstResident(int sm_count, int beside_each_other = 1)
      : sm_count_(sm_count), beside_each_other_(beside_each_other) {}

  /// Makes it if none has been found. make() may throw UnsupportedError.
  template <class Make>
  void consider(const Make& make) {
    if (found_) return;
    try {
      const Program program = make();
      if (const auto problem = not_resident(program, sm_count_, beside_each_other_))
        reason_ = *problem;
      else
        found_ = program;
    } catch (const UnsupportedError& error) {
      reason_ = error.what();
    }
  }
  /// Throws UnsupportedError with the last one's reason if there is none.
  const Program& program() const {
    if (!found_)
      throw UnsupportedError(reason_.empty() ? "cuda-resident: no such kernel is compiled" : reason_);
    return *found_;
  }

 private:
  int sm_count_, beside_each_other_;
  std::optional<Program> found_;
  std::string reason_;
};

bool in_sixteen_bits(Precision precision) {
  return precision == Precision::kFp16 || precision == Precision::kBf16;
}
int widest_hidden(const Workload& workload) {
  return *std::max_element(workload.model.widths.begin() + 1, workload.model.widths.end() - 1);
}

/// One or four clusters whose thread blocks own two slices each (slice_whole_pair.cuh), in 16 bits.
constexpr Sharing kOnePairCluster = {1, 2}, kPairClusters = {WholePair::kMostClusters, 2};
bool is_pair_clusters(const Sharing& sharing) {
  return sharing.own == 2 && (sharing.team == kOnePairCluster.team || sharing.team == kPairClusters.team);
}
/// Where one cluster with a slice a thread block is not enough.
bool takes_pair_clusters(const Workload& workload, Precision precision) {
  const int widest = widest_hidden(workload);
  return in_sixteen_bits(precision) && workload.layers() == 4 && widest > kMaxCluster * kSliceColumns &&
         widest <= WholePair::kColumns;
}

/// Four clusters that divide rows and updates, in tf32: with a slice a thread block (slice_whole_rows.cuh) or two
/// (slice_wide_rows.cuh).
constexpr Sharing kRowClusters = {WholeRows::kClusters, 1},
                  kWideRowClusters = {WideRows::kClusters, WideRows::kOwn};
/// Those that are asked for, or the fastest where nothing is (docs/kernels/log/resident.md, versions 44 and 48).
std::optional<Sharing> row_clusters(const Workload& workload, Precision precision,
                                    const ResidentOptions& options) {
  if (precision != Precision::kTf32 || workload.layers() != 4 || options.form == ResidentOptions::Form::kGrid)
    return std::nullopt;
  const Sharing& asked = options.sharing;
  const int widest = widest_hidden(workload);
  for (const Sharing& sharing : {kRowClusters, kWideRowClusters}) {
    if (asked.team == 0 ? widest <= kMaxCluster * kSliceColumns * sharing.own
                        : options.form == ResidentOptions::Form::kCluster && asked.team == sharing.team &&
                              asked.own == sharing.own)
      return sharing;
  }
  return std::nullopt;
}

/// The ways to share slices in the order in which they are tried, but for clusters that divide rows.
std::vector<Sharing> sharings_to_try(const Workload& workload, Precision precision, Form form,
                                     const ResidentOptions& options) {
  const bool any = options.sharing.team == 0;
  if (form == Form::kCluster) {
    if (any && takes_pair_clusters(workload, precision)) return {kOnePairCluster, kPairClusters};
    if (is_pair_clusters(options.sharing)) return {options.sharing};
    return {{1, 1}};
  }
  if (!any) return {options.sharing};
  if (!in_sixteen_bits(precision)) return slice_sharings(precision);
  // Up to 512 columns teams divide rows; they have four layers.
  if (widest_hidden(workload) <= kRowsMembers * kSliceColumns) return {{2, 1}, {1, 1}};
  return {{2, 2}};
}

/// Whether the block kernel was measured to be faster than slices: its time is nearly the same for every width
/// (docs/kernels/log/resident.md, version 39).
bool worth_blocks(const Workload& workload, const ResidentOptions& options) {
  constexpr int kNarrowest = 600;  // at 520 slices are faster
  return options.form == ResidentOptions::Form::kAny && options.sharing.team == 0 &&
         std::all_of(workload.model.widths.begin() + 1, workload.model.widths.end() - 1,
                     [](int width) { return width >= kNarrowest; });
}

/// Before anything else, so that it is said on every machine.
void require_a_sharing_with_kernels(Precision precision, const Sharing& asked) {
  if (asked.team == 0 || (in_sixteen_bits(precision) && is_pair_clusters(asked)) ||
      (precision == Precision::kTf32 && asked.team == kWideRowClusters.team &&
       asked.own == kWideRowClusters.own) ||
      (precision == Precision::kTf32 && asked.team == 1 && asked.own == 1))  // in a cluster
    return;
  std::string there_are;
  for (const Sharing& sharing : slice_sharings(precision)) {
    if (sharing.team == asked.team && sharing.own == asked.own) return;
    there_are += " {" + std::to_string(sharing.team) + ", " + std::to_string(sharing.own) + "}";
  }
  throw std::invalid_argument("cuda-resident: no kernel in " + std::string(to_string(precision)) +
                              " for the sharing {" + std::to_string(asked.team) + ", " +
                              std::to_string(asked.own) + "}; there are" + there_are);
}

/// Of thread blocks that own a slice together where the optimizer has slots, in the order in which they are tried.
std::vector<int> teams_of_slots(Precision precision, const ResidentOptions& options) {
  if (options.sharing.team != 0) return {options.sharing.team};
  if (in_sixteen_bits(precision)) return {2, 1};
  return {4, 2};
}

/// Whether columns would have slots in device memory.
bool keeps_slots_outside(const Workload& workload, Precision precision, const Limits& limits) {
  try {
    return make_column_plan(workload, precision, limits).slot_bytes > 0;
  } catch (const UnsupportedError&) {
    return false;
  }
}

/// What no kernel takes.
void require_a_shape_with_kernels(const Workload& workload, bool is_for_columns) {
  const auto require = [](bool fits, const std::string& what, const std::string& takes) {
    if (!fits) throw UnsupportedError("cuda-resident: " + what + "; it trains " + takes);
  };
  const auto layers = workload.layers();
  require(layers >= 2 && layers <= resident::kMaxLayers, std::to_string(layers) + " layers",
          "2 to " + std::to_string(resident::kMaxLayers));
  const int most_rows = is_for_columns ? kMostColumnRows : kGroupRows;
  require(workload.batch_size <= most_rows, "batch size " + std::to_string(workload.batch_size),
          "up to " + std::to_string(most_rows));
  const std::string outputs = workload.loss == Loss::kCrossEntropy ? " classes" : " outputs";
  require(workload.outputs() <= kMostClasses, std::to_string(workload.outputs()) + outputs,
          "up to " + std::to_string(kMostClasses));
}

/// The first kernel and form that fit, of those that `maker` makes; throws the last one's reason. The slice kernel is several
/// times faster than the patch kernel at the widths that both take.
Program choose_program(const Workload& workload, Precision precision, const Limits& limits,
                       const ResidentOptions& options, const KernelMaker& maker) {
  using Kernel = ResidentOptions::Kernel;
  // Larger batches are for columns alone; the others, and columns where these do not fit, say so themselves.
  const bool is_for_columns =
      in_sixteen_bits(precision) && (options.kernel == Kernel::kAny || options.kernel == Kernel::kColumns);
  require_a_shape_with_kernels(workload, is_for_columns);
  std::vector<Form> forms = {Form::kGrid};
  if (widest_hidden(workload) <= kMaxCluster * kSliceColumns) forms = {Form::kCluster, Form::kGrid};
  if (options.form == ResidentOptions::Form::kCluster) forms = {Form::kCluster};
  if (options.form == ResidentOptions::Form::kGrid) forms = {Form::kGrid};
  FirstResident first(limits.sm_count);
  const auto consider = [&](auto&& make) { first.consider(make); };
  using Kernel = ResidentOptions::Kernel;
  const auto allowed = [&](Kernel kernel) {
    return options.kernel == Kernel::kAny || options.kernel == kernel;
  };
  const auto consider_columns = [&] {
    if (!allowed(Kernel::kColumns) || options.form != ResidentOptions::Form::kAny ||
        options.sharing.team != 0)
      return;
    consider([&] {
      const ColumnPlan plan = make_column_plan(workload, precision, limits);
      return Program(plan, maker.make(plan, precision));
    });
  };
  if (!beyond_plain_training(workload).empty()) {
    // With four layers slices, which hold all their slots in shared memory, were the faster ones there (version 53 of the log).
    const bool has_faster_slices = workload.layers() == 4 && keeps_slots_outside(workload, precision, limits);
    if (!has_faster_slices) consider_columns();
    if (allowed(Kernel::kSlices))
      for (const int team : teams_of_slots(precision, options))
        consider([&] {
          const SlotPlan plan = make_slot_plan(workload, precision, Form::kGrid, limits, team);
          return Program(plan, maker.make(plan, precision));
        });
    consider_columns();
    return first.program();
  }
  // With four layers there are kernels of slices that were measured to be faster (docs/kernels/log/resident.md, version 50).
  const bool has_faster_slices = workload.layers() == 4;
  if (!has_faster_slices) consider_columns();
  if (options.kernel == Kernel::kBlocks ||
      (options.kernel == Kernel::kAny && worth_blocks(workload, options)))
    consider([&] {
      const BlockPlan plan = make_block_plan(workload, precision, limits);
      return Program(plan, maker.make(plan, precision));
    });
  // In 32 bits products take longer than the grid's exchanges: there teams are faster than a cluster without them, in tf32
  // where the first layer's has something to divide or sums are whole (docs/kernels/log/resident.md, versions 17 and 23).
  std::vector<Form> slice_forms = forms;
  if (options.form == ResidentOptions::Form::kAny && takes_pair_clusters(workload, precision))
    slice_forms = {Form::kCluster, Form::kGrid};
  if (precision == Precision::kFp32 ||
      (precision == Precision::kTf32 && (workload.inputs() > 64 || workload.layers() == 4)))
    std::reverse(slice_forms.begin(), slice_forms.end());
  const auto consider_slices = [&](Form form, const Sharing& sharing) {
    for (const int gram_teams : {kGramTeams, 0})
      consider([&] {
        const SlicePlan plan =
            make_slice_plan(workload, precision, form, limits, sharing.team, sharing.own, gram_teams);
        return Program(plan, maker.make(plan, precision));
      });
  };
  if (allowed(Kernel::kSlices)) {
    if (const auto sharing = row_clusters(workload, precision, options))
      consider_slices(Form::kCluster, *sharing);
    for (const Form form : slice_forms)
      for (const Sharing& sharing : sharings_to_try(workload, precision, form, options))
        consider_slices(form, sharing);
  }
  if (has_faster_slices) consider_columns();
  const bool has_patches = in_sixteen_bits(precision) && workload.layers() == kPatchLayers;
  if (has_patches && allowed(Kernel::kPatches) && options.form != ResidentOptions::Form::kCluster)
    consider([&] {
      const PatchPlan plan = make_patch_plan(workload, precision, limits);
      return Program(plan, maker.make(plan, precision));
    });
  return first.program();
}

/// The same on several devices. Products in fp32 take so long that they are worth dividing.
std::vector<int> teams_of_ranks(Precision precision, const ResidentOptions& options) {
  if (options.sharing.team != 0) return {options.sharing.team};
  if (in_sixteen_bits(precision)) return {2, 1};
  return {4, 2, 1};
}
/// On several devices: columns where they fit, else slices. `on_device`: ranks beside each other on a device, at most.
Program choose_rank_program(const Workload& workload, Precision precision, const Limits& limits,
                            const ResidentOptions& options, const KernelMaker& maker, int on_device = 1) {
  using Kernel = ResidentOptions::Kernel;
  FirstResident first(limits.sm_count, on_device);
  const auto consider = [&](auto&& make_plan) {
    first.consider([&] {
      const auto plan = make_plan();
      return Program(plan, maker.make(plan, precision));
    });
  };
  if (options.kernel != Kernel::kSlices)
    consider([&] { return make_rank_plan(workload, precision, limits); });
  if (options.kernel != Kernel::kColumns)
    for (const int team : teams_of_ranks(precision, options))
      consider([&] { return make_slice_rank_plan(workload, precision, limits, team); });
  return first.program();
}

/// Of the ranks that train together, which one.
struct RankOf {
  int rank = 0, ranks = 1;
};

/// What a rank waited for of another.
std::string peer_in_words(std::uint32_t exchange, int hidden_layers, int rank) {
  const std::uint32_t peer = (exchange - kWaitPeers) / 16 + 1, kind = (exchange - kWaitPeers) % 16;
  const auto hidden = static_cast<std::uint32_t>(hidden_layers);
  const std::string what = kind < hidden       ? "the activations of layer " + std::to_string(kind + 1)
                           : kind < 2 * hidden ? "the gradient of layer " + std::to_string(kind - hidden + 1)
                                               : "the gradient of the outputs";
  return what + " of rank " + std::to_string(static_cast<std::uint32_t>(rank) ^ peer);
}

std::string in_words(std::uint32_t status, const Program& plan, const RankOf& of) {
  const std::uint32_t exchange = (status & 0xff) - 1, member = status >> 8 & 0xffff, warp = status >> 24;
  const auto* columns = std::get_if<RankPlan>(&plan.plan);
  const auto* slices = std::get_if<SliceRankPlan>(&plan.plan);
  const int hidden = columns != nullptr  ? columns->columns.shape.hidden
                     : slices != nullptr ? slices->slices.layers - 1
                                         : 0;
  return "cuda-resident: warp " + std::to_string(warp) + " of thread block " + std::to_string(member) +
         " of " + std::to_string(plan.members) + " waited too long for " +
         (exchange == kWaitFree   ? std::string("a buffer to be free")
          : exchange == kWaitTeam ? std::string("the partial sums of its team")
          : hidden > 0 && exchange >= kWaitPeers
              ? peer_in_words(exchange, hidden, of.rank)
              : "exchange " + std::to_string(exchange) + " of " + std::to_string(plan.exchanges)) +
         "; the launch was given up";
}

class ResidentTrainer : public PersistentTrainer {
 public:
  ResidentTrainer(const Workload& workload, Precision precision, const DatasetView& data,
                  const Parameters& initial, const Program& program, const ResidentOptions& options,
                  const RankOf& of = {})
      : PersistentTrainer(workload.model.widths, {kFirstLaunch, kMostSteps}),
        optimizer_(workload.optimizer),
        of_(of),
        batches_(data.batches(workload.batch_size * of.ranks)),
        is_absent_(options.absent_rank == of.rank),
        is_alone_(!options.ranks_share_devices),
        program_(program) {
    const auto parameters = static_cast<std::int64_t>(initial.flat().size());
    parameters_ = DeviceBuffer<float>(parameters);
    mirror_ = DeviceBuffer<float>(parameters);
    exchange_ = zeros<unsigned char>(program.exchange_bytes);
    for (int slot = 0; slot < optimizer_.slots(); ++slot) slots_.emplace_back(parameters);
    if (!slots_.empty()) step_factors_ = DeviceBuffer<rules::UpdateFactors>(kMostSteps);
    upload(workload, data, precision);
    set_state(State::initial(initial, optimizer_.slots()));

    const bool has_labels = workload.loss == Loss::kCrossEntropy;
    const int joined_batch = program.batch * of.ranks;
    const auto mean_of =
        static_cast<float>(joined_batch) * (has_labels ? 1.0f : static_cast<float>(workload.outputs()));
    const auto scale = static_cast<float>(loss_scale(precision, joined_batch));
    std::visit([&](const auto& plan) { set_arguments(plan, options); }, program_.plan);
    std::visit(
        [&](auto& arguments) {
          arguments.parameters = parameters_.data();
          arguments.mirror = mirror_.data();
          arguments.x_rows = x_rows_.data();
          arguments.x_columns = x_columns_.data();
          arguments.labels = labels_.data();
          arguments.losses = losses_.data();
          arguments.exchange = exchange_.data();
          arguments.status = status_.data();
          arguments.batches = batches_;
          arguments.loss_slots = kKeptLosses;
          arguments.wait_nanoseconds = static_cast<std::int64_t>(1e9 * options.wait_seconds);
          arguments.update_factor = -static_cast<float>(workload.optimizer.learning_rate) / scale;
          arguments.gradient_scale = scale / mean_of;
          if constexpr (requires { arguments.inverse_loss_scale; }) arguments.inverse_loss_scale = 1 / scale;
          if constexpr (requires { arguments.targets; }) arguments.targets = targets_.data();
        },
        arguments_);
  }

  /// Before the first launch, once all ranks are there: where this one writes in the memory of the others.
  void find_peers(const std::vector<ResidentTrainer*>& ranks) {
    std::visit(
        [&](auto& arguments) {
          if constexpr (requires { arguments.outboxes; })
            for (int peer = 1; peer < of_.ranks; ++peer) {
              ResidentTrainer& other = *ranks[static_cast<std::size_t>(of_.rank ^ peer)];
              arguments.outboxes[peer - 1] =
                  other.inbox_.data() + (peer - 1) * (other.inbox_.bytes() / (of_.ranks - 1));
            }
        },
        arguments_);
  }

  /// Throws std::runtime_error if the two copies of a weight differ: then a member computed on wrong values.
  Parameters parameters() override {
    Parameters result(widths_), mirror(widths_);
    parameters_.copy_to(result.flat());
    mirror_.copy_to(mirror.flat());
    for (int layer = 1; layer < result.layers(); ++layer) {
      const auto rows = result.weight(layer), columns = mirror.weight(layer);
      for (std::size_t i = 0; i < rows.size(); ++i)
        if (std::memcmp(&rows[i], &columns[i], sizeof(float)) != 0)
          throw std::runtime_error("cuda-resident: the two copies of weight" + std::to_string(layer + 1) +
                                   " differ at element " + std::to_string(i) + ": " +
                                   std::to_string(rows[i]) + " and " + std::to_string(columns[i]));
    }
    return result;
  }

  void set_parameters(const Parameters& parameters) override {
    require_widths_of(parameters);
    parameters_.copy_from(parameters.flat());
    mirror_.copy_from(parameters.flat());
    ahead_step_ = -1;
  }

  std::vector<Parameters> slots() override {
    std::vector<Parameters> result;
    for (const DeviceBuffer<float>& slot : slots_) slot.copy_to(result.emplace_back(widths_).flat());
    return result;
  }
  void set_slots(const std::vector<Parameters>& slots) override {
    require_slots(slots, widths_, optimizer_.slots());
    for (std::size_t slot = 0; slot < slots.size(); ++slot) slots_[slot].copy_from(slots[slot].flat());
  }

  std::string note() override { return program_.note(); }
  std::optional<SetupCache> setup_cache() override {
    return program_.kernel.ready.was_kept ? SetupCache::kWarm : SetupCache::kCold;
  }

 private:
  void set_arguments(const BlockPlan& plan, const ResidentOptions& options) {
    BlockArguments arguments{};
    arguments.plan = plan;
    arguments.lost_exchange = options.lost_exchange;
    arguments_ = arguments;
  }
  void set_arguments(const SlicePlan& plan, const ResidentOptions& options) {
    SliceArguments arguments{};
    arguments.plan = plan;
    const std::int64_t tiles = std::int64_t{plan.members} * plan.tile;
    const std::int64_t buffers = std::int64_t{plan.exchanges} << plan.stage_shift;
    const std::int64_t in_flight = plan.behind_tiles >= 0 ? plan.behind_tiles : plan.exchange_bytes;
    arguments.slot_bytes = static_cast<std::uint32_t>(plan.form == Form::kGrid ? in_flight / buffers : tiles);
    arguments.lost_exchange = options.lost_exchange;
    if (sums_ahead(plan)) ahead_ = DeviceBuffer<float>(std::int64_t{plan.members} * 256);
    arguments.ahead = ahead_.data();
    arguments_ = arguments;
  }
  void set_arguments(const SlotPlan& plan, const ResidentOptions& options) {
    set_arguments(plan.slices, options);
    SlotArguments arguments{};
    static_cast<SliceArguments&>(arguments) = std::get<SliceArguments>(arguments_);
    set_slots_of(arguments);
    arguments_ = arguments;
  }
  template <class WithSlots>
  void set_slots_of(WithSlots& arguments) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) arguments.slots[slot] = slots_[slot].data();
    arguments.step_factors = step_factors_.data();
    arguments.factors = rules::update_factors(optimizer_, 0);
  }
  void set_arguments(const ColumnPlan& plan, const ResidentOptions& options) {
    ColumnArguments arguments{};
    arguments.plan = plan;
    arguments.lost_exchange = options.lost_exchange;
    set_slots_of(arguments);
    slot_memory_ = DeviceBuffer<unsigned char>(plan.slot_bytes);
    arguments.slot_memory = slot_memory_.data();
    arguments_ = arguments;
  }
  void set_arguments(const RankPlan& plan, const ResidentOptions& options) {
    set_arguments(plan.columns, options);
    RankArguments arguments{};
    static_cast<ColumnArguments&>(arguments) = std::get<ColumnArguments>(arguments_);
    inbox_ = zeros<unsigned char>(plan.inbox_bytes);
    arguments.inbox = inbox_.data();
    arguments.rank = of_.rank;
    arguments_ = arguments;
  }
  void set_arguments(const SliceRankPlan& plan, const ResidentOptions& options) {
    set_arguments(plan.slices, options);
    SliceRankArguments arguments{};
    static_cast<SliceArguments&>(arguments) = std::get<SliceArguments>(arguments_);
    inbox_ = DeviceBuffer<unsigned char>((plan.ranks - 1) * plan.slices.exchange_bytes);
    // The marks of a step that nobody has published. The numbers of steps begin so that the first has another one.
    for (DeviceBuffer<unsigned char>* buffer : {&inbox_, &exchange_})
      CUDA_CHECK(cudaMemset(buffer->data(), 0xff, static_cast<std::size_t>(buffer->bytes())));
    next_mark_ = 2 << kRankStageShift;
    arguments.inbox = inbox_.data();
    arguments.rank = of_.rank;
    arguments.peer_tiles_offset = plan.peer_tiles_offset;
    arguments_ = arguments;
  }
  void set_arguments(const PatchPlan& plan, const ResidentOptions& options) {
    PatchArguments arguments{};
    arguments.plan = plan;
    arguments.lost_exchange = options.lost_exchange;
    arguments_ = arguments;
  }

  void pack(Precision precision, const float* features, std::int64_t batches, std::int64_t first_batch) {
    unsigned char* x_rows = x_rows_.data() + first_batch * program_.x_batch_bytes;
    unsigned char* x_columns = x_columns_.data() + first_batch * program_.x_batch_bytes;
    if (const auto* blocks = std::get_if<BlockPlan>(&program_.plan))
      pack_blocks(*blocks, features, batches, x_rows, stream_.get());
    else if (const auto* plan = std::get_if<SlicePlan>(&program_.plan))
      pack_slices(*plan, precision, features, batches, x_rows, x_columns, stream_.get());
    else if (const auto* slots = std::get_if<SlotPlan>(&program_.plan))
      pack_slices(slots->slices, precision, features, batches, x_rows, x_columns, stream_.get());
    else if (const auto* rank_slices = std::get_if<SliceRankPlan>(&program_.plan))
      pack_slices(rank_slices->slices, precision, features, batches, x_rows, x_columns, stream_.get());
    else if (const auto* columns = std::get_if<ColumnPlan>(&program_.plan))
      pack_columns(*columns, precision, features, batches, x_rows, x_columns, stream_.get());
    else if (const auto* ranks = std::get_if<RankPlan>(&program_.plan))
      pack_columns(ranks->columns, precision, features, batches, x_rows, x_columns, stream_.get());
    else
      pack_patches(std::get<PatchPlan>(program_.plan), precision, features, batches, x_rows, stream_.get());
  }

  void upload(const Workload& workload, const DatasetView& data, Precision precision) {
    // A joined batch is one of each rank after the other.
    const std::int64_t batches = batches_ * of_.ranks, samples = batches * program_.batch;
    if (workload.loss == Loss::kCrossEntropy) {
      labels_ = labels_of(data, samples);
    } else {
      targets_ = DeviceBuffer<float>(samples * workload.outputs());
      targets_.copy_from({data.targets, static_cast<std::size_t>(samples * workload.outputs())});
    }
    x_rows_ = DeviceBuffer<unsigned char>(batches * program_.x_batch_bytes);
    x_columns_ = DeviceBuffer<unsigned char>(batches * program_.x_batch_bytes);
    for_each_staged_batches(data, program_.batch, batches, stream_,
                            [&](const float* features, std::int64_t count, std::int64_t first) {
                              pack(precision, features, count, first);
                            });
  }

  void launch(std::int64_t first_step, std::int64_t steps) override {
    if (is_absent_) return;
    // Of slices of several ranks marks go on from launch to launch.
    if (program_.exchange_bytes > 0 && !std::holds_alternative<SliceRankPlan>(program_.plan)) {
      const auto bytes = static_cast<std::size_t>(exchange_.bytes());
      CUDA_CHECK(cudaMemsetAsync(exchange_.data(), 0xff, bytes, stream_.get()));
    }
    if (!slots_.empty()) set_step_factors(optimizer_, first_step, steps, step_factors_.data(), stream_.get());
    const LaunchShape shape(program_, stream_.get(), is_alone_);
    std::visit(
        [&](auto& arguments) {
          arguments.first_step = first_step;
          arguments.steps = static_cast<std::int32_t>(steps);
          if constexpr (requires { arguments.continues; }) arguments.continues = first_step == ahead_step_;
          if constexpr (requires { arguments.first_mark; }) {
            arguments.first_mark = next_mark_;
            next_mark_ += static_cast<std::uint32_t>(steps);
          }
          void* parameters[] = {&arguments};
          CUDA_CHECK(cudaLaunchKernelExC(&shape.config, program_.kernel.ready.function, parameters));
        },
        arguments_);
    ahead_step_ = first_step + steps;
  }

  std::string describe_status(std::uint32_t status) const override { return in_words(status, program_, of_); }

  const Optimizer optimizer_;
  const RankOf of_;
  const std::int64_t batches_;  // joined ones
  const bool is_absent_, is_alone_;
  const Program program_;

  DeviceBuffer<float> parameters_, mirror_;
  std::vector<DeviceBuffer<float>> slots_;
  DeviceBuffer<unsigned char> slot_memory_;
  DeviceBuffer<rules::UpdateFactors> step_factors_;
  DeviceBuffer<float>
      ahead_;  // the first layer's sums of step ahead_step_, by a kernel that makes them a step ahead
  std::int64_t ahead_step_ = -1;
  DeviceBuffer<unsigned char> inbox_;  // what peers write
  std::uint32_t next_mark_ = 1;
  DeviceBuffer<std::int32_t> labels_;
  DeviceBuffer<float> targets_;
  DeviceBuffer<unsigned char> x_rows_, x_columns_, exchange_;
  std::variant<BlockArguments, SliceArguments, SlotArguments, PatchArguments, ColumnArguments, RankArguments,
               SliceRankArguments>
      arguments_;
};

}  // namespace

std::string resident::offer_plans(const Workload& workload, Precision precision, const Limits& limits,
                                  const ResidentOptions& options, const KernelMaker& maker) {
  try {
    if (workload.devices > 1)
      (void)choose_rank_program(workload, precision, limits, options, maker);
    else
      (void)choose_program(workload, precision, limits, options, maker);
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return {};
}

std::optional<std::string> resident_unavailable(int device) {
  if (auto reason = device_missing(device)) return reason;
  const DeviceInfo info = device_info(device);
  if (info.compute_major < 9)
    return "compute capability " + std::to_string(info.compute_major) + "." +
           std::to_string(info.compute_minor) + ", needs 9.0";
  return std::nullopt;
}

std::unique_ptr<Trainer> make_resident_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const KernelMaker& maker, const ResidentOptions& options) {
  validate(workload);
  require_a_sharing_with_kernels(precision, options.sharing);
  if (const auto reason = resident_unavailable(device)) throw UnsupportedError("cuda-resident: " + *reason);
  require_data_for(workload, data, "cuda-resident");
  use_device(device);
  const Limits limits{.sm_count = device_attribute(cudaDevAttrMultiProcessorCount, device),
                      .shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
  const Program program = choose_program(workload, precision, limits, options, maker);
  return std::make_unique<ResidentTrainer>(workload, precision, data, initial, program, options);
}

std::unique_ptr<Trainer> make_resident_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial,
                                               const std::vector<int>& devices, const KernelMaker& maker,
                                               const ResidentOptions& options) {
  validate(workload);
  const int ranks = workload.devices;
  if (devices.size() != static_cast<std::size_t>(ranks))
    throw std::invalid_argument("cuda-resident: " + std::to_string(devices.size()) +
                                " devices for a workload of " + std::to_string(ranks));
  if (ranks == 1)
    return make_resident_trainer(workload, precision, data, initial, devices.front(), maker, options);
  for (const int device : devices)
    if (const auto reason = resident_unavailable(device)) throw UnsupportedError("cuda-resident: " + *reason);
  require_data_for(workload, data, "cuda-resident");
  try {
    if (!options.ranks_share_devices) enable_peer_access(devices);
  } catch (const UnsupportedError& error) {
    throw UnsupportedError(std::string("cuda-resident: ") + error.what());
  }
  std::optional<Program> program;
  std::vector<RankedTrainer::Rank> all;
  std::vector<ResidentTrainer*> trainers;
  for (int rank = 0; rank < ranks; ++rank) {
    const int device = devices[static_cast<std::size_t>(rank)];
    use_device(device);
    const Limits limits{.sm_count = device_attribute(cudaDevAttrMultiProcessorCount, device),
                        .shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
    const auto on_device = static_cast<int>(std::count(devices.begin(), devices.end(), device));
    if (!program) program = choose_rank_program(workload, precision, limits, options, maker, on_device);
    // This loads the kernel onto the device, too: a launch that did so might wait for one that waits for it.
    if (const auto problem = not_resident(*program, limits.sm_count, on_device))
      throw UnsupportedError(*problem);
    auto trainer = std::make_unique<ResidentTrainer>(workload.of_a_rank(), precision, data, initial, *program,
                                                     options, RankOf{.rank = rank, .ranks = ranks});
    trainers.push_back(trainer.get());
    all.push_back({.device = device, .trainer = std::move(trainer)});
  }
  for (ResidentTrainer* trainer : trainers) trainer->find_peers(trainers);
  return std::make_unique<RankedTrainer>(std::move(all), LaunchPace{kFirstLaunch, kMostSteps});
}

}  // namespace headroom
