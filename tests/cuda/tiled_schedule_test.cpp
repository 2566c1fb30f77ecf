// The lists of cuda-tiled, played through without a GPU: multiprocessors work through them at random speeds, and nothing may be read
// before it is made, overwritten before it was read, or waited for in a circle. Where several ranks train together all of them are played.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <tuple>

#include "fresh_seed.h"
#include "tiled/schedule.h"

namespace headroom::tiled {
namespace {

using Tile = std::tuple<Form, int, int, int, int>;  // form, layer, row, column, part
Tile tile_of(const Task& task) { return {task.form, task.layer, task.row, task.column, task.part}; }

std::string described(const Network& network, const Tiling& tiling, int multiprocessors) {
  std::string text = "widths";
  for (const int width : network.widths) text += " " + std::to_string(width);
  return text + ", batch " + std::to_string(network.batch) + ", tiles " + std::to_string(tiling.rows()) +
         "x" + std::to_string(tiling.columns) + ", " + std::to_string(tiling.teams) + " teams, " +
         std::to_string(multiprocessors) + " multiprocessors, " + std::to_string(network.ranks) + " ranks";
}

/// What a network's step consists of, written down from the formulas and not from the scheduler.
struct Work {
  Network network;
  Tiling tiling;
  bool loss_gradients;  // made with the loss
  int multiprocessors, slabs_of_part;
  Precision precision;

  int rows() const { return divide_up(network.batch, tiling.rows()); }
  int across(int width) const { return divide_up(width, tiling.columns); }
  int last() const { return network.layers() - 1; }
  bool wide_outputs() const { return network.out(last()) > kOutputsOfTile; }

  std::set<Tile> activations(int layer, int row) const {
    std::set<Tile> tiles;
    for (int column = 0; column < across(network.out(layer)); ++column)
      tiles.insert({Form::kForward, layer, row, column, 0});
    return tiles;
  }
  std::set<Tile> outputs(int row) const {
    std::set<Tile> tiles;
    if (loss_gradients) {
      for (int column = 0; column < across(network.in(last())); ++column)
        tiles.insert({Form::kLossGradient, last() - 1, row, column, 0});
      return tiles;
    }
    for (int column = 0; column < across(network.out(last())); ++column)
      tiles.insert({wide_outputs() ? Form::kOutputs : Form::kOutputLoss, last(), row, column, 0});
    return tiles;
  }
  std::set<Tile> gradient(int layer, int row) const {
    std::set<Tile> tiles;
    if (layer == last() && !wide_outputs()) return outputs(row);
    if (layer == last()) {
      for (int part = 0; part < tiling.group_rows / kRowsOfLoss; ++part)
        tiles.insert({Form::kLoss, layer, row, part, 0});
      return tiles;
    }
    if (layer == last() - 1 && loss_gradients) return outputs(row);
    for (int column = 0; column < across(network.out(layer)); ++column)
      tiles.insert({Form::kInputGradient, layer, row, column, 0});
    return tiles;
  }
  int tiles_of_weights(int layer) const {
    return divide_up(network.out(layer), tiling.weight_rows()) *
           divide_up(network.in(layer), tiling.weight_columns());
  }
  int parts_of(int layer) const {
    int parts = 1;
    if (slabs_of_part == kNoParts || !has_parts(tiling, precision)) return parts;
    while ((parts + 1) * tiles_of_weights(layer) <= multiprocessors &&
           (parts + 1) * slabs_of_part <= divide_up(network.joined(), kSlab))
      ++parts;
    return parts;
  }
  /// The tasks that write a layer's weights.
  std::set<Tile> weights(int layer) const {
    std::set<Tile> tiles;
    for (int row = 0; row < divide_up(network.out(layer), tiling.weight_rows()); ++row)
      for (int column = 0; column < divide_up(network.in(layer), tiling.weight_columns()); ++column)
        if (parts_of(layer) == 1)
          tiles.insert({Form::kWeightGradient, layer, row, column, 0});
        else
          for (int first = 0; first < tiling.weight_columns(); first += kColumnsOfUpdate)
            if (column * tiling.weight_columns() + first < network.in(layer))
              tiles.insert({Form::kUpdate, layer, row, column, first / kColumnsOfUpdate});
    return tiles;
  }
  /// The tasks that make the sums of parts, none where there is one part.
  std::set<Tile> parts(int layer) const {
    std::set<Tile> tiles;
    if (const int count = parts_of(layer); count > 1)
      for (const Tile& tile : weights(layer))
        for (int part = 0; part < count; ++part)
          tiles.insert({Form::kWeightGradientPart, layer, std::get<2>(tile), std::get<3>(tile), part});
    return tiles;
  }
  std::set<Tile> forward(int layer, int row) const {
    return layer == last() ? outputs(row) : activations(layer, row);
  }
  template <class OfRow>
  std::set<Tile> all_rows(const OfRow& of_row) const {
    std::set<Tile> tiles;
    for (int row = 0; row < rows(); ++row) tiles.merge(of_row(row));
    return tiles;
  }
  std::set<Tile> whole_step() const {
    std::set<Tile> tiles;
    for (int layer = 0; layer < network.layers(); ++layer) {
      tiles.merge(weights(layer));
      tiles.merge(parts(layer));
      tiles.merge(all_rows([&](int row) { return forward(layer, row); }));
      tiles.merge(all_rows([&](int row) { return gradient(layer, row); }));
    }
    return tiles;
  }

  /// What a weight gradient reads that other ranks have stored here, by the tasks of theirs that do.
  std::set<Tile> read_of_peers(const Task& task) const {
    std::set<Tile> tiles;
    if (task.form != Form::kWeightGradient && task.form != Form::kWeightGradientPart) return tiles;
    tiles.merge(all_rows([&](int row) { return gradient(task.layer, row); }));
    if (task.layer > 0) tiles.merge(all_rows([&](int row) { return forward(task.layer - 1, row); }));
    return tiles;
  }
  /// The tasks of another rank that read what a task stores there, none if it stores nothing.
  static std::set<Tile> stored_at_peers(const Task& task, const Work& work) {
    const auto readers = [&](int layer) {
      std::set<Tile> tiles = work.weights(layer);
      tiles.merge(work.parts(layer));
      return tiles;
    };
    switch (task.form) {
      case Form::kForward:
        return readers(task.layer + 1);
      case Form::kOutputLoss:
      case Form::kLoss:
      case Form::kInputGradient:
        return readers(task.layer);
      case Form::kLossGradient: {
        std::set<Tile> tiles = readers(task.layer);
        tiles.merge(readers(task.layer + 1));
        return tiles;
      }
      default:
        return {};
    }
  }

  using Needs = std::vector<std::pair<int, std::set<Tile>>>;  // steps ago, tiles that have to be done by then
  /// What a task reads, and who has to have read what it overwrites.
  Needs needs(const Task& task) const {
    const int layer = task.layer, row = task.row;
    const auto forward_all = [&](int of) { return all_rows([&](int r) { return forward(of, r); }); };
    const auto gradient_all = [&](int of) { return all_rows([&](int r) { return gradient(of, r); }); };
    Needs needs;
    const auto overwrites_gradient = [&] {
      needs.push_back({1, weights(layer)});
      if (layer > 0) needs.push_back({1, gradient(layer - 1, row)});
    };
    switch (task.form) {
      case Form::kForward:
      case Form::kOutputLoss:
      case Form::kOutputs:
        if (layer > 0) needs.push_back({0, activations(layer - 1, row)});
        needs.push_back({1, weights(layer)});
        if (task.form == Form::kForward) {
          needs.push_back({2, forward(layer + 1, row)});
          needs.push_back({2, weights(layer + 1)});
          needs.push_back({1, gradient(layer, row)});  // reads the slopes that are kept
        } else if (task.form == Form::kOutputs) {
          needs.push_back({1, gradient(layer, row)});
        } else {
          overwrites_gradient();
        }
        return needs;
      case Form::kLossGradient:
        needs.push_back({0, activations(layer, row)});
        needs.push_back({1, weights(layer + 1)});
        overwrites_gradient();
        return needs;
      case Form::kLoss:
        needs.push_back({0, outputs(row)});
        overwrites_gradient();
        return needs;
      case Form::kInputGradient:
        needs.push_back({0, gradient(layer + 1, row)});
        needs.push_back({0, {{Form::kForward, layer, row, task.column, 0}}});
        needs.push_back({1, weights(layer + 1)});
        overwrites_gradient();
        return needs;
      case Form::kWeightGradient:
        needs.push_back({0, gradient_all(layer)});
        if (layer > 0) needs.push_back({0, forward_all(layer - 1)});
        needs.push_back({0, forward_all(layer)});  // reads the biases, which are updated in place
        needs.push_back({1, forward_all(layer)});
        if (layer > 0) needs.push_back({1, gradient_all(layer - 1)});
        return needs;
      case Form::kWeightGradientPart:
        needs.push_back({0, gradient_all(layer)});
        if (layer > 0) needs.push_back({0, forward_all(layer - 1)});
        needs.push_back({1, weights(layer)});  // reads the sums of the step before
        return needs;
      case Form::kUpdate:
        needs.push_back({0, parts(layer)});
        needs.push_back({0, forward_all(layer)});
        needs.push_back({1, forward_all(layer)});
        if (layer > 0) needs.push_back({1, gradient_all(layer - 1)});
        return needs;
      case Form::kPause:
        return {};
    }
    return {};
  }
};

Network random_network(std::mt19937_64& random) {
  const auto below = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<std::uint64_t>(most));
  };
  Network network;
  const int layers = random() % 8 == 0 ? 16 : below(5);
  for (int i = 0; i <= layers; ++i) network.widths.push_back(below(random() % 3 == 0 ? 400 : 150));
  network.batch = below(random() % 2 == 0 ? 700 : 130);
  return network;
}

/// Each multiprocessor of each rank begins and ends its tasks at random moments, and begins one as soon as its counters allow. With several
/// ranks a task of the chain ends for its own rank first; then its tile is stored at the others, which begins and ends at random moments, too.
class Played {
 public:
  Played(const Work& work, const Schedule& schedule, int steps, std::mt19937_64& random)
      : work_(work),
        schedule_(schedule),
        steps_(static_cast<std::size_t>(steps)),
        ranks_(static_cast<std::size_t>(work.network.ranks), Rank(schedule, steps_)) {
    const std::size_t size = schedule.lists.size(), all = size * ranks_.size();
    for (std::size_t left = all; left > 0;) {
      // In a random order, until one is found that can go on.
      std::size_t found = all;
      const std::size_t first = random() % all;
      for (std::size_t i = 0; i < all && found == all; ++i) {
        const std::size_t one = (first + i) % all;
        const Block& block = ranks_[one / size].blocks[one % size];
        if (block.step == steps_) continue;
        if (block.state != State::kWaits || may_begin(ranks_[one / size], task_of(one), block.step))
          found = one;
      }
      if (found == all) {
        for (std::size_t one = 0; one < all; ++one)
          if (const Block& block = ranks_[one / size].blocks[one % size]; block.step < steps_)
            ADD_FAILURE() << "rank " << one / size << " stuck in step " << block.step << ": "
                          << describe(task_of(one));
        return;
      }
      const Task& task = task_of(found);
      const std::size_t rank = found / size;
      Block& block = ranks_[rank].blocks[found % size];
      if (block.state == State::kWaits) {
        begin(rank, task, block.step);
        block.state = State::kWorks;
        continue;
      }
      if (block.state == State::kWorks) {
        end(rank, task, block.step);
        if (ranks_.size() > 1 && !Work::stored_at_peers(task, work_).empty()) {
          block.state = State::kHasSignalled;
          continue;
        }
      } else if (block.state == State::kHasSignalled) {
        begin_sending(rank, task, block.step);
        block.state = State::kSends;
        continue;
      } else {
        end_sending(rank, task, block.step);
      }
      block.state = State::kWaits;
      if (++block.next < schedule.lists[found % size].size()) continue;
      block.next = 0;
      if (++block.step == steps_) --left;
    }
  }

 private:
  enum class State { kWaits, kWorks, kHasSignalled, kSends };
  struct Block {
    std::size_t next = 0, step = 0;
    State state = State::kWaits;
  };
  struct Rank {
    std::vector<Block> blocks;
    std::vector<std::uint64_t> counts[2];    // the second one of counters of all ranks only
    std::vector<std::set<Tile>> done, sent;  // of each step; sent: to all others
    Rank(const Schedule& schedule, std::size_t steps)
        : blocks(schedule.lists.size()),
          counts{std::vector<std::uint64_t>(static_cast<std::size_t>(schedule.counters)),
                 std::vector<std::uint64_t>(static_cast<std::size_t>(schedule.counters))},
          done(steps),
          sent(steps) {}
  };

  const Task& task_of(std::size_t one) const {
    const std::size_t size = schedule_.lists.size();
    return schedule_.lists[one % size][ranks_[one / size].blocks[one % size].next];
  }
  bool may_begin(const Rank& rank, const Task& task, std::size_t step) const {
    const bool of_all_ranks =
        ranks_.size() > 1 && (task.form == Form::kWeightGradient || task.form == Form::kWeightGradientPart);
    for (const Wait& wait : {task.rows, task.columns}) {
      if (wait.counter < 0) continue;
      const auto& counts = rank.counts[of_all_ranks ? copy_of_counter(step) : 0];
      const std::uint64_t steps = of_all_ranks ? steps_of_copy(step) : step + 1 - wait.of_last_step;
      if (counts[static_cast<std::size_t>(wait.counter)] < wait.need * steps) return false;
    }
    return true;
  }
  void begin(std::size_t rank, const Task& task, std::size_t step) {
    auto& needs = needs_[tile_of(task)];
    if (needs.empty()) needs = work_.needs(task);
    for (const auto& [ago, tiles] : needs) {
      if (static_cast<std::size_t>(ago) > step) continue;
      EXPECT_TRUE(std::ranges::includes(ranks_[rank].done[step - static_cast<std::size_t>(ago)], tiles))
          << describe(task) << " begins in step " << step << " too early";
    }
    const std::set<Tile> of_peers = work_.read_of_peers(task);
    for (std::size_t peer = 0; peer < ranks_.size(); ++peer) {
      if (peer == rank) continue;
      EXPECT_TRUE(std::ranges::includes(ranks_[peer].sent[step], of_peers))
          << describe(task) << " of rank " << rank << " begins in step " << step << " too early for rank "
          << peer;
    }
  }
  void end(std::size_t rank, const Task& task, std::size_t step) {
    if (task.form != Form::kPause) ranks_[rank].done[step].insert(tile_of(task));
    for (int i = 0; i < 3; ++i) add(ranks_[rank], task, i, step);
  }
  /// Copies of activations and gradients are two: what is overwritten is of the step before the last one.
  void begin_sending(std::size_t rank, const Task& task, std::size_t step) {
    if (step < 2) return;
    const std::set<Tile> readers = Work::stored_at_peers(task, work_);
    for (std::size_t peer = 0; peer < ranks_.size(); ++peer) {
      if (peer == rank) continue;
      EXPECT_TRUE(std::ranges::includes(ranks_[peer].done[step - 2], readers))
          << describe(task) << " of rank " << rank << " overwrites in step " << step << " what rank " << peer
          << " has not read";
    }
  }
  void end_sending(std::size_t rank, const Task& task, std::size_t step) {
    ranks_[rank].sent[step].insert(tile_of(task));
    for (std::size_t peer = 0; peer < ranks_.size(); ++peer)
      for (int i = kFirstOfAllRanks; peer != rank && i < 3; ++i) add(ranks_[peer], task, i, step);
  }
  void add(Rank& rank, const Task& task, int i, std::size_t step) const {
    if (task.signals[i] < 0) return;
    const bool of_all_ranks = ranks_.size() > 1 && i >= kFirstOfAllRanks;
    rank.counts[of_all_ranks ? copy_of_counter(step) : 0][static_cast<std::size_t>(task.signals[i])] +=
        static_cast<std::uint64_t>(work_.tiling.groups);
  }

  const Work& work_;
  const Schedule& schedule_;
  const std::size_t steps_;
  std::vector<Rank> ranks_;
  std::map<Tile, Work::Needs> needs_;
};

template <class Check>
void for_random_networks(int count, const Check& check, int most_ranks = 1) {
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < count; ++i) {
    const int choices[] = {1, 2, 3, 7, 20, 84, 108, 132, 144};
    const int multiprocessors = choices[random() % std::size(choices)];
    Network network = random_network(random);
    network.ranks = 1 + static_cast<int>(random() % static_cast<std::uint64_t>(most_ranks));
    const Precision precision = kAllPrecisions[random() % kAllPrecisions.size()];
    const std::span<const Tiling> portable = portable_tilings(precision);
    const std::size_t which = random() % (std::size(kTilings) + portable.size());
    const Tiling& tiling =
        which < std::size(kTilings) ? kTilings[which] : portable[which - std::size(kTilings)];
    const int slabs_of_part = std::array{kNoParts, 1, 3}[random() % 3];
    const Work work{network,         tiling,        makes_loss_gradients(network, tiling, multiprocessors),
                    multiprocessors, slabs_of_part, precision};
    SCOPED_TRACE(described(work.network, work.tiling, multiprocessors) + ", parts of " +
                 std::to_string(slabs_of_part));
    check(work, make_schedule(work.network, work.tiling, multiprocessors, precision, slabs_of_part),
          multiprocessors, random);
  }
}

TEST(TiledSchedule, NothingIsReadTooEarlyOverwrittenTooEarlyOrWaitedForInACircle) {
  for_random_networks(40, [](const Work& work, const Schedule& schedule, int, std::mt19937_64& random) {
    Played(work, schedule, 4, random);
  });
}
TEST(TiledSchedule, NothingIsReadTooEarlyOverwrittenTooEarlyOrWaitedForInACircleBySeveralRanks) {
  for_random_networks(
      20,
      [](const Work& work, const Schedule& schedule, int, std::mt19937_64& random) {
        Played(work, schedule, 5, random);
      },
      4);
}

/// A thread sees what others have written only behind a wait of its own, and each factor is fetched by another one.
TEST(TiledSchedule, EveryFactorWaitsItselfForAllThatItReads) {
  for_random_networks(
      40,
      [](const Work& work, const Schedule& schedule, int, std::mt19937_64&) {
        std::map<int, std::set<Tile>> signalled;
        std::set<int> to_peers;
        for (const auto& list : schedule.lists)
          for (const Task& task : list) {
            for (const int signal : task.signals) signalled[signal].insert(tile_of(task));
            for (int i = kFirstOfAllRanks; i < 3; ++i) to_peers.insert(task.signals[i]);
          }
        const auto check = [&](const Task& task, const Wait& wait, const std::set<Tile>& reads,
                               bool of_last_step) {
          EXPECT_EQ(wait.of_last_step, of_last_step ? 1u : 0u) << describe(task);
          const bool of_all_ranks =
              task.form == Form::kWeightGradient || task.form == Form::kWeightGradientPart;
          EXPECT_EQ(wait.need, reads.size() * static_cast<std::size_t>(work.tiling.groups) *
                                   static_cast<std::size_t>(of_all_ranks ? work.network.ranks : 1))
              << describe(task);
          EXPECT_EQ(signalled[wait.counter], reads) << describe(task);
          EXPECT_EQ(to_peers.contains(wait.counter), of_all_ranks) << describe(task);
        };
        for (const auto& list : schedule.lists)
          for (std::size_t i = 0; i < list.size(); ++i) {
            const Task& task = list[i];
            const int layer = task.layer, row = task.row;
            if (task.form == Form::kPause) {
              // What a report of waits takes for the one that the others wait for is never a pause.
              ASSERT_GT(i, 0u);
              EXPECT_EQ(task.order, list[i - 1].order);
              continue;
            }
            if (task.form == Form::kLoss) {
              check(task, task.rows, work.outputs(row), false);
            } else if (task.form == Form::kLossGradient) {
              check(task, task.rows, work.activations(layer, row), false);
              check(task, task.columns, work.weights(layer + 1), true);
            } else if (task.form == Form::kInputGradient) {
              check(task, task.rows, work.gradient(layer + 1, row), false);
              check(task, task.columns, work.weights(layer + 1), true);
            } else if (task.form == Form::kUpdate) {
              check(task, task.rows, work.parts(layer), false);
            } else if (task.form == Form::kWeightGradient || task.form == Form::kWeightGradientPart) {
              check(task, task.rows, work.all_rows([&](int r) { return work.gradient(layer, r); }), false);
              if (layer > 0)
                check(task, task.columns,
                      work.all_rows([&](int r) { return work.activations(layer - 1, r); }), false);
            } else {
              if (layer > 0) check(task, task.rows, work.activations(layer - 1, row), false);
              check(task, task.columns, work.weights(layer), true);
            }
          }
      },
      4);
}

TEST(TiledSchedule, EveryTileIsMadeOnce) {
  for_random_networks(100,
                      [](const Work& work, const Schedule& schedule, int multiprocessors, std::mt19937_64&) {
                        std::set<Tile> tiles;
                        ASSERT_LE(schedule.lists.size(), static_cast<std::size_t>(multiprocessors));
                        for (const auto& list : schedule.lists)
                          for (const Task& task : list) {
                            if (task.form == Form::kPause) continue;
                            EXPECT_TRUE(tiles.insert(tile_of(task)).second) << describe(task) << " twice";
                          }
                        EXPECT_EQ(tiles, work.whole_step());
                      });
}

TEST(TiledSchedule, PartsCoverTheBatch) {
  for_random_networks(
      100,
      [](const Work& work, const Schedule& schedule, int, std::mt19937_64&) {
        std::map<std::tuple<int, int, int>, std::map<int, const Task*>> tiles;  // parts of each
        for (const auto& list : schedule.lists)
          for (const Task& task : list) {
            if (task.form != Form::kWeightGradientPart) continue;
            EXPECT_TRUE((tiles[{task.layer, task.row, task.column}].insert({task.part, &task}).second));
          }
        for (const auto& list : schedule.lists)
          for (const Task& update : list) {
            if (update.form != Form::kUpdate) continue;
            const auto& parts = tiles[{update.layer, update.row, update.column}];
            EXPECT_EQ(parts.size(),
                      static_cast<std::size_t>(schedule.parts[static_cast<std::size_t>(update.layer)]));
            int slab = 0, next = 0;
            for (const auto& [number, of] : parts) {
              const Task& part = *of;
              EXPECT_EQ(number, next++);
              EXPECT_EQ(part.first_slab, slab) << describe(part);
              EXPECT_GE(part.slabs, work.slabs_of_part);
              slab += part.slabs;
            }
            EXPECT_EQ(slab, divide_up(work.network.joined(), kSlab));
          }
      },
      3);
}

TEST(TiledSchedule, DividesTheBatchWhereThatIsShorter) {
  EXPECT_EQ(choose_parts({{784, 256, 256, 256, 10}, 64}, kTilings[0], 132), kNoParts);
  EXPECT_EQ(choose_parts({{784, 512, 512, 512, 10}, 4096}, kTilings[1], 132), kNoParts);
  EXPECT_NE(choose_parts({{784, 256, 256, 256, 10}, 4096}, kTilings[1], 132), kNoParts);
  EXPECT_NE(choose_parts({{48, 512, 256, 128, 12}, 24576}, kTilings[2], 132), kNoParts);
  const Tiling plain = portable_tiling(64, 64, 64, 64);
  EXPECT_NE(choose_parts({{784, 256, 256, 256, 10}, 4096}, plain, 132, Precision::kFp32), kNoParts);
  EXPECT_EQ(choose_parts({{784, 512, 512, 512, 10}, 1024}, plain, 132, Precision::kFp32), kNoParts);
  EXPECT_EQ(choose_parts({{784, 1024, 1024, 1024, 10}, 1024}, plain, 132, Precision::kFp32), kNoParts);
  EXPECT_EQ(choose_parts({{784, 256, 256, 256, 10}, 4096}, plain, 132, Precision::kTf32), kNoParts);
}

TEST(TiledSchedule, TeamsTakeTurnsAndKnowWhatPassesBetween) {
  for_random_networks(60, [](const Work& work, const Schedule& schedule, int, std::mt19937_64&) {
    for (const auto& list : schedule.lists) {
      ASSERT_EQ(list.size() % static_cast<std::size_t>(work.tiling.teams), 0u);
      for (std::size_t i = 0; i < list.size(); ++i)
        EXPECT_EQ(
            list[i].stages_of_others,
            work.tiling.teams == 1 ? 0 : stages_of(list[(i + 1) % list.size()], work.tiling.slabs_of_stage));
    }
  });
}

TEST(TiledSchedule, EveryWeightHasAPlaceOfItsOwn) {
  for (const Tiling& tiling : kTilings) {
    const int rows = 150, columns = 290, column_tiles = divide_up(columns, tiling.columns);
    std::set<std::int64_t> places;
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < columns; ++column)
        places.insert(place_of_weight(tiling.rows(), tiling.columns, column_tiles, row, column));
    EXPECT_EQ(places.size(), static_cast<std::size_t>(rows * columns));
    EXPECT_LT(*places.rbegin(),
              std::int64_t{divide_up(rows, tiling.rows())} * column_tiles * tiling.rows() * tiling.columns);
  }
}

TEST(TiledSchedule, TakesTheTilesThatWereFastestOnAnH200) {
  const auto chosen = [](int batch, int width) {
    return choose_tiling({{784, width, width, width, 10}, batch}, true, 132);
  };
  EXPECT_EQ(chosen(64, 256), kTilings[0]);
  EXPECT_EQ(chosen(1024, 512), kTilings[0]);
  EXPECT_EQ(chosen(256, 1024), kTilings[0]);
  EXPECT_EQ(chosen(1024, 1024), kTilings[1]);
  EXPECT_EQ(chosen(4096, 1024), kTilings[2]);
  EXPECT_EQ(chosen(4096, 256), kTilings[1]);
  EXPECT_EQ(chosen(4096, 512), kTilings[1]);
  EXPECT_EQ(chosen(16384, 512), kTilings[2]);
  EXPECT_EQ(choose_tiling({{64, 1024, 512, 256, 101}, 32768}, true, 132), kTilings[2]);
  EXPECT_EQ(choose_tiling({{48, 512, 256, 128, 12}, 24576}, false, 132), kTilings[2]);
}

TEST(TiledSchedule, ThePortableKernelTakesTheTilesThatWereFastestOnAnH200) {
  const auto chosen = [](Precision precision, int batch, int width) {
    return choose_tiling({{784, width, width, width, 10}, batch}, true, 132, portable_tilings(precision),
                         precision);
  };
  const auto expect_plain = [&](int batch, int width, int rows, int columns) {
    const Tiling tiling = chosen(Precision::kFp32, batch, width);
    EXPECT_EQ(tiling.rows(), rows) << batch << " " << width;
    EXPECT_EQ(tiling.columns, columns) << batch << " " << width;
  };
  for (const auto& [batch, width] : {std::pair{64, 256}, {256, 256}, {64, 512}, {64, 1024}})
    expect_plain(batch, width, 32, 16);
  for (const auto& [batch, width] : {std::pair{512, 256}, {1024, 256}, {512, 512}, {256, 1024}})
    expect_plain(batch, width, 32, 32);
  for (const auto& [batch, width] : {std::pair{4096, 256}, {512, 1024}, {1024, 1024}})
    expect_plain(batch, width, 64, 64);
  EXPECT_EQ(chosen(Precision::kTf32, 64, 256), kPortableTilings[0]);
  EXPECT_EQ(chosen(Precision::kTf32, 512, 512), kPortableTilings[1]);
  EXPECT_EQ(chosen(Precision::kTf32, 1024, 1024), kPortableTilings[2]);
  EXPECT_EQ(chosen(Precision::kBf16, 1024, 1024), kPortableTilings[2]);
}

TEST(TiledSchedule, ThePortableKernelHasSmallTilesForSmallBatchesOnEveryGpu) {
  for (const int multiprocessors : {84, 108, 132})
    for (const Precision precision : kAllPrecisions) {
      const auto chosen = [&](int batch, int width) {
        return choose_tiling({{784, width, width, width, 10}, batch}, true, multiprocessors,
                             portable_tilings(precision), precision);
      };
      SCOPED_TRACE(std::to_string(multiprocessors) + " " + std::string(to_string(precision)));
      EXPECT_EQ(chosen(64, 256), portable_tilings(precision)[0]);
      EXPECT_GE(chosen(16384, 1024).rows(), 64);
    }
}

TEST(TiledSchedule, SaysWhatIsTooLarge) {
  const Network network{{10, 10}, 70000 * kSlab};
  EXPECT_THROW(make_schedule(network, kTilings[0], 132), std::invalid_argument);
  EXPECT_NE(schedule_refusal(network, kTilings[0])->find("4480000"), std::string::npos);
  EXPECT_TRUE(schedule_refusal({std::vector<int>(17, 65536), 65536}, kTilings[2]).has_value());
}

TEST(TiledSchedule, LargeNetworksAreScheduledInTime) {
  const Schedule schedule = make_schedule({{784, 4096, 4096, 4096, 10}, 16384}, kTilings[2], 132);
  EXPECT_GT(schedule.longest(), 200u);
}

}  // namespace
}  // namespace headroom::tiled
