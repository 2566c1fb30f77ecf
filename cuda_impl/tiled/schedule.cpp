#include "tiled/schedule.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <queue>
#include <stdexcept>

#include "core/error.h"

namespace headroom::tiled {
namespace {

/// Numbers of the counters: of each row of tiles of a layer's activations and gradient, and of all of them, on all ranks; of a layer's
/// weights, and of the parts of their gradients; and of each row of tiles of the outputs where the loss is a task of its own.
class Counters {
 public:
  Counters(int layers, int row_tiles) : layers_(layers), rows_(row_tiles) {}
  int hidden_row(int layer, int row) const { return layer * rows_ + row; }
  int gradient_row(int layer, int row) const { return (layers_ + layer) * rows_ + row; }
  int outputs_row(int row) const { return 2 * layers_ * rows_ + row; }
  int hidden(int layer) const { return (2 * layers_ + 1) * rows_ + layer; }
  int gradient(int layer) const { return hidden(layers_) + layer; }
  int weights(int layer) const { return gradient(layers_) + layer; }
  int parts(int layer) const { return weights(layers_) + layer; }
  int count() const { return parts(layers_); }
  bool is_of_all_ranks(int counter) const { return counter >= hidden(0) && counter < weights(0); }

 private:
  int layers_, rows_;
};

/// What the link between GPUs adds to Costs::link, cycles: a way there with a release fence of all GPUs. Not measured; a way there and back
/// took 1.45 us between two H200 (docs/kernels/log/tiled.md).
constexpr double kPeerLink = 3000;

/// Of a task: until its tile is stored, and until its multiprocessor can begin the next one but for what that waits for.
struct Cycles {
  double all, busy;
};

/// Tasks of one form, layer and row of tiles: they wait for the same, but for weight gradients, which all wait for the whole batch.
struct Group {
  std::vector<Task> tasks;
  int urgency = 0;  ///< the smallest first
  Cycles cost{};    ///< of one of them
  std::size_t next = 0;
  double ready = std::numeric_limits<double>::infinity();
  bool left() const { return next < tasks.size(); }
};

/// Rough costs in cycles, from the times of tasks on an H200: of the wgmma kernel's fifth version, and of the portable kernel's steps.
struct Costs {
  double bytes_per_cycle;  ///< that a multiprocessor takes in
  /// Multiply-adds a cycle of tiles up to 32x16, 32x32, 64x64, and larger.
  double rates[4];
  double weight_rate;       ///< of weight gradients; 0: as of other products
  double value_bytes;       ///< of a factor's value
  double least_slab;        ///< however small the tile
  double task, task_value;  ///< epilogue and store, and of them for each value of the tile
  double loss;
  double update_bytes, update_bytes_per_cycle;  ///< of a weight
  double link;                                  ///< from a counter to who waits for it
};
constexpr Costs kWgmmaCosts = {.bytes_per_cycle = 60,
                               .rates = {1850, 1850, 1850, 1850},
                               .weight_rate = 0,
                               .value_bytes = 2,
                               .least_slab = 310,
                               .task = 900,
                               .task_value = 0.13,
                               .loss = 1700,
                               .update_bytes = 10,
                               .update_bytes_per_cycle = 40,
                               .link = 900};
/// Half the products a cycle, values twice as wide, and every tile stored twice: what that takes is fitted to twelve networks on an H200 of
/// which both kernels were timed; which of the two is faster comes out right in all of them (docs/kernels/log/tiled.md).
constexpr Costs kWgmmaTf32Costs = {.bytes_per_cycle = 60,
                                   .rates = {925, 925, 925, 925},
                                   .weight_rate = 0,
                                   .value_bytes = 4,
                                   .least_slab = 155,
                                   .task = 1100,
                                   .task_value = 0.6,
                                   .loss = 1700,
                                   .update_bytes = 16,
                                   .update_bytes_per_cycle = 40,
                                   .link = 900};
constexpr Costs portable_costs(const double (&rates)[4], double weight_rate, double value_bytes,
                               double update_bytes) {
  return {.bytes_per_cycle = 56,
          .rates = {rates[0], rates[1], rates[2], rates[3]},
          .weight_rate = weight_rate,
          .value_bytes = value_bytes,
          .least_slab = 0,
          .task = 1600,
          .task_value = 0,
          .loss = 1500,
          .update_bytes = update_bytes,
          .update_bytes_per_cycle = 20,
          .link = 1500};
}
constexpr Costs kPortableFp32 = portable_costs({48, 64, 74, 68}, 97, 4, 8);
constexpr Costs kPortableTf32 = portable_costs({112, 112, 215, 245}, 0, 4, 12);
constexpr Costs kPortableSixteen = portable_costs({280, 280, 430, 460}, 0, 2, 10);

constexpr Costs costs_of(const Tiling& tiling, Precision precision) {
  if (!tiling.portable) return precision == Precision::kTf32 ? kWgmmaTf32Costs : kWgmmaCosts;
  if (precision == Precision::kFp32) return kPortableFp32;
  return precision == Precision::kTf32 ? kPortableTf32 : kPortableSixteen;
}

/// Of `slabs` slabs of a tile's product.
double product_cycles(const Costs& costs, int slab, double rows, double columns, double slabs,
                      bool of_weights = false) {
  const double values = rows * columns;
  constexpr double kUpTo[] = {32 * 16, 32 * 32, 64 * 64};
  const double rate = of_weights && costs.weight_rate > 0
                          ? costs.weight_rate
                          : costs.rates[std::ranges::lower_bound(kUpTo, values) - std::begin(kUpTo)];
  return slabs * std::max({values * slab / rate, costs.least_slab,
                           (rows + columns) * costs.value_bytes * slab / costs.bytes_per_cycle});
}

/// Of a task's time, what two teams take for one each in turn. With it the scheduler took the fastest tiles, or ones within 2 %, in all of
/// 24 cells that were measured on an H200 with several tiles (docs/kernels/log/tiled.md).
constexpr double kShareOfTeams = 0.7;

Cycles cycles_of(const Costs& costs, const Task& task, const Tiling& tiling, int parts) {
  const bool updates = task.form == Form::kWeightGradient || task.form == Form::kUpdate,
             of_weights = updates || task.form == Form::kWeightGradientPart;
  const double rows = of_weights ? tiling.weight_rows() : tiling.rows(),
               columns = task.form == Form::kUpdate ? kColumnsOfUpdate
                         : of_weights               ? tiling.weight_columns()
                                                    : tiling.columns;
  double product = 0;
  if (tiling.portable && task.form == Form::kOutputLoss)
    product += product_cycles(costs, tiling.slab, rows, kOutputsOfTile, task.slabs);
  else if (tiling.portable && task.form == Form::kLossGradient)
    product +=
        product_cycles(costs, tiling.slab, rows, kOutputsOfTile, task.slabs - 1) +
        product_cycles(costs, tiling.slab, rows, columns, static_cast<double>(kOutputsOfTile) / tiling.slab);
  else
    product += product_cycles(costs, tiling.slab, rows, columns, task.slabs, of_weights);
  double rest = costs.task + costs.task_value * rows * columns;
  if (task.form == Form::kOutputLoss || task.form == Form::kLossGradient || task.form == Form::kLoss)
    rest += costs.loss;
  double bytes = updates ? costs.update_bytes : 0;  // of a weight
  if (task.form == Form::kUpdate) bytes += 4 * parts;
  if (task.form == Form::kUpdate && tiling.portable) bytes *= 2;  // halves of lines
  if (task.form == Form::kWeightGradientPart) bytes += 4;
  rest += rows * columns * bytes / costs.update_bytes_per_cycle;
  const double all = product + rest;
  return {all, tiling.teams == 1 ? all : std::max(product, kShareOfTeams * all)};
}

/// All tasks of a step, in groups, with what each waits for.
class Step {
 public:
  Step(const Network& network, const Tiling& tiling, int multiprocessors, Precision precision,
       int slabs_of_part)
      : network_(network),
        tiling_(tiling),
        costs_(costs_of(tiling, precision)),
        multiprocessors_(multiprocessors),
        slabs_of_part_(has_parts(tiling, precision) ? slabs_of_part : kNoParts),
        row_tiles_(divide_up(network.batch, tiling.rows())),
        counters_(network.layers(), row_tiles_),
        needs_(static_cast<std::size_t>(counters_.count()), 0),
        one_link_less_(makes_loss_gradients(network, tiling, multiprocessors)) {
    make_groups();
    // Counters have to be counted before anything can wait for them.
    for (Group& group : groups_)
      for (Task& task : group.tasks)
        for (int i = 0; i < 3; ++i)
          if (task.signals[i] >= 0) needs_[static_cast<std::size_t>(task.signals[i])] += signals_of(i);
    for (Group& group : groups_)
      for (Task& task : group.tasks)
        for (Wait* wait : {&task.rows, &task.columns})
          if (wait->counter >= 0) wait->need = needs_[static_cast<std::size_t>(wait->counter)] & 0x7fffffffu;
    std::stable_sort(groups_.begin(), groups_.end(),
                     [](const Group& a, const Group& b) { return a.urgency < b.urgency; });
  }

  /// What a task adds to its signal number i; with several ranks each of them, of which the lists are the same.
  std::uint32_t signals_of(int i) const {
    return static_cast<std::uint32_t>(tiling_.groups * (i >= kFirstOfAllRanks ? network_.ranks : 1));
  }
  std::vector<Group>& groups() { return groups_; }
  const std::vector<std::uint32_t>& needs() const { return needs_; }
  int counters() const { return counters_.count(); }
  int layers() const { return network_.layers(); }
  /// Of a layer's weight gradients: so many that there is a task for every multiprocessor.
  int parts_of(int layer) const {
    if (slabs_of_part_ == kNoParts) return 1;
    const std::int64_t tiles = std::int64_t{rows_of_weights(layer)} * columns_of_weights(layer);
    return static_cast<int>(
        std::clamp<std::int64_t>(multiprocessors_ / tiles, 1,
                                 std::max(1, divide_up(network_.joined(), tiling_.slab) / slabs_of_part_)));
  }
  /// From a counter to who waits for it.
  double link(int counter) const {
    return costs_.link + (network_.ranks > 1 && counters_.is_of_all_ranks(counter) ? kPeerLink : 0);
  }

 private:
  Task blank(Form form, int layer, int row, int column, int inner) const {
    Task task;
    task.form = form;
    task.layer = static_cast<std::int16_t>(layer);
    task.row = static_cast<std::uint16_t>(row);
    task.column = static_cast<std::uint16_t>(column);
    task.slabs = static_cast<std::uint16_t>(divide_up(inner, tiling_.slab));
    return task;
  }
  static Wait now(int counter) { return {.counter = counter, .need = 0, .of_last_step = 0}; }
  static Wait last_step(int counter) { return {.counter = counter, .need = 0, .of_last_step = 1}; }

  /// Urgent is what the chain of the step goes through: forward, loss and back; weight gradients fill the gaps, those of the first
  /// layers first, which the next step begins with.
  void add(Group group, int urgency, int parts = 1) {
    group.urgency = urgency;
    group.cost = cycles_of(costs_, group.tasks.front(), tiling_, parts);
    groups_.push_back(std::move(group));
  }

  void make_groups() {
    const int layers = network_.layers(), last = layers - 1;
    const int gradient_urgency = 2 * layers;  // of the first layer's weight gradient
    for (int row = 0; row < row_tiles_; ++row) {
      for (int layer = 0; layer < (one_link_less_ ? last : layers); ++layer)
        add(forward_row(layer, row), layer);
      if (network_.out(last) > kOutputsOfTile) add(loss_row(row), layers);
      if (one_link_less_) add(loss_gradient_row(row), layers);
      for (int layer = one_link_less_ ? last - 2 : last - 1; layer >= 0; --layer)
        add(gradient_row(layer, row), layers + last - layer);
    }
    for (int layer = 0; layer < layers; ++layer) {
      const int parts = parts_of(layer);
      if (parts > 1) add(weight_gradient_parts(layer, parts), gradient_urgency + layer);
      add(weight_gradients(layer, parts), gradient_urgency + layer, parts);
    }
  }

  Group forward_row(int layer, int row) const {
    const bool is_last = layer + 1 == network_.layers();
    const Form form = !is_last                                ? Form::kForward
                      : network_.out(layer) <= kOutputsOfTile ? Form::kOutputLoss
                                                              : Form::kOutputs;
    Group group;
    for (int column = 0; column < divide_up(network_.out(layer), tiling_.columns); ++column) {
      Task task = blank(form, layer, row, column, network_.in(layer));
      if (layer > 0) task.rows = now(counters_.hidden_row(layer - 1, row));
      task.columns = last_step(counters_.weights(layer));
      if (form == Form::kForward)
        task.signals[0] = counters_.hidden_row(layer, row), task.signals[1] = counters_.hidden(layer);
      else if (form == Form::kOutputLoss)
        task.signals[0] = counters_.gradient_row(layer, row), task.signals[1] = counters_.gradient(layer);
      else
        task.signals[0] = counters_.outputs_row(row);
      group.tasks.push_back(task);
    }
    return group;
  }

  Group loss_row(int row) const {
    const int last = network_.layers() - 1;
    Group group;
    for (int part = 0; part < tiling_.group_rows / kRowsOfLoss; ++part) {
      Task task = blank(Form::kLoss, last, row, part, 0);
      task.rows = now(counters_.outputs_row(row));
      task.signals[0] = counters_.gradient_row(last, row), task.signals[1] = counters_.gradient(last);
      group.tasks.push_back(task);
    }
    return group;
  }

  /// The first of a row stores the loss and its gradient, and the last layer's biases may be updated when all have read them.
  Group loss_gradient_row(int row) const {
    const int last = network_.layers() - 1, layer = last - 1;
    Group group;
    for (int column = 0; column < divide_up(network_.out(layer), tiling_.columns); ++column) {
      Task task = blank(Form::kLossGradient, layer, row, column, network_.in(last));
      ++task.slabs;  // of the second product, over the outputs
      task.rows = now(counters_.hidden_row(layer, row));
      task.columns = last_step(counters_.weights(last));
      task.signals[0] = counters_.gradient_row(layer, row), task.signals[1] = counters_.gradient(layer);
      task.signals[2] = counters_.gradient(last);
      group.tasks.push_back(task);
    }
    return group;
  }

  Group gradient_row(int layer, int row) const {
    Group group;
    for (int column = 0; column < divide_up(network_.out(layer), tiling_.columns); ++column) {
      Task task = blank(Form::kInputGradient, layer, row, column, network_.out(layer + 1));
      task.rows = now(counters_.gradient_row(layer + 1, row));
      task.columns = last_step(counters_.weights(layer + 1));
      task.signals[0] = counters_.gradient_row(layer, row), task.signals[1] = counters_.gradient(layer);
      group.tasks.push_back(task);
    }
    return group;
  }

  int rows_of_weights(int layer) const { return divide_up(network_.out(layer), tiling_.weight_rows()); }
  int columns_of_weights(int layer) const { return divide_up(network_.in(layer), tiling_.weight_columns()); }

  /// The gradients of whole weights, with their update, or the update from the sums of parts.
  Group weight_gradients(int layer, int parts) const {
    Group group;
    for (int row = 0; row < rows_of_weights(layer); ++row)
      for (int column = 0; column < columns_of_weights(layer); ++column) {
        if (parts > 1) {
          add_updates(group, layer, row, column);
          continue;
        }
        Task task = whole_gradient(Form::kWeightGradient, layer, row, column);
        task.signals[0] = counters_.weights(layer);
        group.tasks.push_back(task);
      }
    return group;
  }
  /// Of a tile, as far as the layer's columns go.
  void add_updates(Group& group, int layer, int row, int column) const {
    const int across = tiling_.weight_columns(),
              columns = std::min(across, network_.in(layer) - column * across);
    for (int part = 0; part < divide_up(columns, kColumnsOfUpdate); ++part) {
      Task task = blank(Form::kUpdate, layer, row, column, 0);
      task.rows = now(counters_.parts(layer));
      task.signals[0] = counters_.weights(layer);
      task.part = static_cast<std::uint16_t>(part);
      group.tasks.push_back(task);
    }
  }

  /// Of the tiles that weight_gradients() updates.
  Group weight_gradient_parts(int layer, int parts) const {
    Group group;
    for (int row = 0; row < rows_of_weights(layer); ++row)
      for (int column = 0; column < columns_of_weights(layer); ++column)
        for (int part = 0; part < parts; ++part) {
          Task task = whole_gradient(Form::kWeightGradientPart, layer, row, column);
          const int slabs = task.slabs, first = slabs * part / parts;
          task.first_slab = static_cast<std::uint16_t>(first);
          task.slabs = static_cast<std::uint16_t>(slabs * (part + 1) / parts - first);
          task.signals[0] = counters_.parts(layer);
          task.part = static_cast<std::uint16_t>(part);
          group.tasks.push_back(task);
        }
    return group;
  }
  Task whole_gradient(Form form, int layer, int row, int column) const {
    Task task = blank(form, layer, row, column, network_.joined());
    task.rows = now(counters_.gradient(layer));
    if (layer > 0) task.columns = now(counters_.hidden(layer - 1));
    return task;
  }

  const Network& network_;
  Tiling tiling_;
  Costs costs_;
  int multiprocessors_, slabs_of_part_;
  int row_tiles_;
  Counters counters_;
  std::vector<std::uint32_t> needs_;
  bool one_link_less_;  // the last hidden layer's gradient comes with the loss
  std::vector<Group> groups_;
};

/// Tells each task how many stages of the other team pass before its team's next one, across the end of the list as well.
void count_stages_of_others(std::vector<Task>& list, const Tiling& tiling) {
  if (tiling.teams == 1) return;
  if (list.size() % 2 != 0) {  // a pause, so that a task is the same team's in every step
    Task pause;
    pause.order = list.back().order;  // it waits for that team's turn, and not before it
    list.push_back(pause);
  }
  for (std::size_t i = 0; i < list.size(); ++i)
    list[i].stages_of_others =
        static_cast<std::uint16_t>(stages_of(list[(i + 1) % list.size()], tiling.slabs_of_stage));
}

/// Walks through one step and gives every task to the multiprocessor that is free first.
class Walk {
 public:
  Walk(Step& step, int multiprocessors)
      : step_(step),
        missing_(step.needs()),
        finished_(step.needs().size(), 0.0),
        waiting_(step.needs().size()),
        lists_(static_cast<std::size_t>(multiprocessors)) {
    for (std::size_t i = 0; i < lists_.size(); ++i) free_.push({0.0, i});
    for (std::size_t i = 0; i < step.groups().size(); ++i) {
      const Task& task = step.groups()[i].tasks.front();
      for (const Wait& wait : {task.rows, task.columns})
        if (wait.counter >= 0 && !wait.of_last_step)
          waiting_[static_cast<std::size_t>(wait.counter)].push_back(i);
      learn_ready(step.groups()[i]);
    }
    std::size_t left = 0;
    for (const Group& group : step.groups()) left += group.tasks.size();
    for (; left > 0; --left) place_one();
  }

  std::vector<std::vector<Task>>& lists() { return lists_; }
  double end() const { return end_; }

 private:
  void learn_ready(Group& group) {
    double ready = 0;
    const Task& task = group.tasks.front();
    for (const Wait& wait : {task.rows, task.columns}) {
      if (wait.counter < 0 || wait.of_last_step) continue;
      const auto counter = static_cast<std::size_t>(wait.counter);
      if (missing_[counter] > 0) return;
      ready = std::max(ready, finished_[counter] + step_.link(wait.counter));
    }
    group.ready = ready;
  }

  /// The first that is ready when the multiprocessor is free, else the one that is ready soonest.
  Group& most_urgent(double at) {
    Group* best = nullptr;
    auto& groups = step_.groups();
    while (first_ < groups.size() && !groups[first_].left()) ++first_;
    for (std::size_t i = first_; i < groups.size(); ++i) {
      Group& group = groups[i];
      if (!group.left()) continue;
      if (group.ready <= at) return group;
      if (best == nullptr || group.ready < best->ready) best = &group;
    }
    return *best;
  }

  void place_one() {
    const auto [at, multiprocessor] = free_.top();
    free_.pop();
    Group& group = most_urgent(at);
    Task& task = group.tasks[group.next++];
    task.order = placed_++;
    const double begin = std::max(at, group.ready), end = begin + group.cost.all;
    free_.push({begin + group.cost.busy, multiprocessor});
    end_ = std::max(end_, end);
    lists_[multiprocessor].push_back(task);
    for (int i = 0; i < 3; ++i) {
      if (task.signals[i] < 0) continue;
      const auto counter = static_cast<std::size_t>(task.signals[i]);
      finished_[counter] = std::max(finished_[counter], end);
      missing_[counter] -= step_.signals_of(i);
      if (missing_[counter] == 0)
        for (const std::size_t group_of : waiting_[counter]) learn_ready(step_.groups()[group_of]);
    }
  }

  using Free = std::pair<double, std::size_t>;  // when, and which multiprocessor
  Step& step_;
  std::vector<std::uint32_t> missing_;
  std::vector<double> finished_;
  std::vector<std::vector<std::size_t>> waiting_;  // groups, by counter
  std::vector<std::vector<Task>> lists_;
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free_;
  std::size_t first_ = 0;
  int placed_ = 0;
  double end_ = 0;
};

}  // namespace

std::size_t Schedule::longest() const {
  std::size_t most = 0;
  for (const auto& list : lists) most = std::max(most, list.size());
  return most;
}

bool makes_loss_gradients(const Network& network, const Tiling& tiling, int multiprocessors) {
  const int last = network.layers() - 1;
  // In tf32 the fragments of a product's result are no left factor of another.
  return tiling.slab == kSlab && last > 0 && network.out(last) <= kOutputsOfTile &&
         std::int64_t{divide_up(network.batch, tiling.rows())} *
                 divide_up(network.in(last), tiling.columns) <=
             multiprocessors;
}

Tiling choose_tiling(const Network& network, bool relu, int multiprocessors, std::span<const Tiling> tilings,
                     Precision precision) {
  const Tiling* best = nullptr;
  double least = 0;
  for (const Tiling& tiling : tilings) {
    if (!may_choose(tiling, relu) || schedule_refusal(network, tiling)) continue;
    const double cycles = make_schedule(network, tiling, multiprocessors, precision,
                                        choose_parts(network, tiling, multiprocessors, precision))
                              .cycles;
    if (best != nullptr && cycles >= least) continue;
    best = &tiling, least = cycles;
  }
  return best != nullptr ? *best : tilings.front();
}

int choose_parts(const Network& network, const Tiling& tiling, int multiprocessors, Precision precision) {
  int best = kNoParts;
  if (!has_parts(tiling, precision)) return best;
  const auto cycles_with = [&](int parts) {
    return make_schedule(network, tiling, multiprocessors, precision, parts).cycles;
  };
  const std::span<const int> tried = tiling.portable            ? std::span<const int>(kSlabsOfPortablePart)
                                     : tiling.slab == kTf32Slab ? std::span<const int>(kSlabsOfTf32Part)
                                                                : std::span<const int>(kSlabsOfPart);
  if (divide_up(network.joined(), tiling.slab) < 2 * tried.front()) return best;
  // Plain multiply-adds gain less by parts than is planned, and lost 6 % in one of the cells that were measured.
  double least = (tiling.portable ? 0.98 : 1) * cycles_with(kNoParts);
  for (const int parts : tried) {
    const double cycles = cycles_with(parts);
    if (cycles < least) best = parts, least = cycles;
  }
  return best;
}

std::optional<std::string> schedule_refusal(const Network& network, const Tiling& tiling) {
  constexpr int kMostSlabs = std::numeric_limits<std::uint16_t>::max();
  constexpr std::int64_t kMostTasks = 1 << 20;
  if (divide_up(network.joined(), tiling.slab) > kMostSlabs)
    return "a batch of " + std::to_string(network.joined()) + " samples is over " +
           std::to_string(std::int64_t{kMostSlabs} * tiling.slab);
  std::int64_t tasks = 0;
  const std::int64_t rows = divide_up(network.batch, tiling.rows());
  for (int layer = 0; layer < network.layers(); ++layer) {
    const std::int64_t columns = divide_up(network.out(layer), tiling.columns);
    tasks += 2 * rows * columns + std::int64_t{divide_up(network.out(layer), tiling.weight_rows())} *
                                      divide_up(network.in(layer), tiling.weight_columns());
  }
  if (tasks > kMostTasks)
    return "a step is " + std::to_string(tasks) + " tiles, at most " + std::to_string(kMostTasks) +
           " are listed";
  return std::nullopt;
}

Schedule make_schedule(const Network& network, const Tiling& tiling, int multiprocessors, Precision precision,
                       int slabs_of_part) {
  if (const auto refusal = schedule_refusal(network, tiling))
    throw std::invalid_argument("schedule: " + *refusal);
  Step step(network, tiling, multiprocessors, precision, slabs_of_part);
  Walk walk(step, multiprocessors);
  Schedule schedule;
  schedule.counters = step.counters();
  for (int layer = 0; layer < step.layers(); ++layer) schedule.parts.push_back(step.parts_of(layer));
  schedule.cycles = walk.end();
  for (std::vector<Task>& list : walk.lists()) {
    if (list.empty()) continue;
    count_stages_of_others(list, tiling);
    schedule.lists.push_back(std::move(list));
  }
  return schedule;
}

StepPlan plan_step(const Workload& workload, Precision precision, bool portable, int multiprocessors,
                   const std::optional<Tiling>& tiling, const std::optional<int>& slabs_of_part) {
  const Network network{workload.model.widths, workload.batch_size, workload.devices};
  const bool relu = workload.model.activation == Activation::kRelu;
  const Tiling taken =
      tiling     ? *tiling
      : portable ? choose_tiling(network, relu, multiprocessors, portable_tilings(precision), precision)
                 : choose_tiling(network, relu, multiprocessors, wgmma_tilings(precision), precision);
  if (const auto reason = schedule_refusal(network, taken)) throw UnsupportedError("cuda-tiled: " + *reason);
  const int parts = slabs_of_part ? *slabs_of_part : choose_parts(network, taken, multiprocessors, precision);
  StepPlan plan{.network = network,
                .schedule = make_schedule(network, taken, multiprocessors, precision, parts),
                .kernel = {.precision = precision, .tiling = taken, .rules = {}}};
  KernelRules& rules = plan.kernel.rules;
  rules.activation = workload.model.activation;
  rules.loss = workload.loss;
  rules.slots = workload.optimizer.slots();
  rules.forms = 0;
  for (const std::vector<Task>& list : plan.schedule.lists)
    for (const Task& task : list) rules.forms |= bit_of(task.form);
  rules.whole_tiles = !taken.portable && network.batch % taken.rows() == 0;
  for (int layer = 0; layer + 1 < network.layers(); ++layer)
    rules.whole_tiles = rules.whole_tiles && network.out(layer) % taken.columns == 0;
  rules.timed = false;
  rules.ranked = network.ranks > 1;
  return plan;
}

bool portable_is_faster(const Workload& workload, Precision precision, int multiprocessors) {
  if (precision != Precision::kTf32) return false;
  const auto cycles = [&](bool portable) {
    try {
      return plan_step(workload, precision, portable, multiprocessors).schedule.cycles;
    } catch (const UnsupportedError&) {
      return std::numeric_limits<double>::infinity();
    }
  };
  return cycles(true) < cycles(false);
}

std::string describe(const Task& task) {
  const std::string layer = "layer " + std::to_string(task.layer + 1);
  const std::string place =
      ", tile row " + std::to_string(task.row) + ", column " + std::to_string(task.column);
  switch (task.form) {
    case Form::kForward:
      return "forward product of " + layer + place;
    case Form::kOutputLoss:
      return "outputs and loss" + place;
    case Form::kOutputs:
      return "outputs" + place;
    case Form::kLossGradient:
      return "loss and input gradient of " + layer + place;
    case Form::kLoss:
      return "loss, tile row " + std::to_string(task.row) + ", part " + std::to_string(task.column);
    case Form::kInputGradient:
      return "input gradient of " + layer + place;
    case Form::kWeightGradient:
      return "weight gradient of " + layer + place;
    case Form::kWeightGradientPart:
      return "part of the weight gradient of " + layer + place + ", part " + std::to_string(task.part);
    case Form::kUpdate:
      return "update of " + layer + place + ", part " + std::to_string(task.part);
    case Form::kPause:
      return "pause";
  }
  return "";
}

}  // namespace headroom::tiled
