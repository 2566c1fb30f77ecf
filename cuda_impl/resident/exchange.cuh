// How members hand each other tiles: two ways with the same functions.
//
// An exchange is an all-gather: every member publishes its own tiles of a layer and reads all of them. Both ways
// use only what the PTX memory model promises. Cluster: st.async into every member's shared memory, completed
// on an mbarrier there, whose wait acquires. Grid: 8-byte relaxed stores to global memory, each of which is its own
// sign that it has arrived: until then the place holds a value that is never published. So no fence and no flag is
// waited for. Before a buffer is cleared or written again, all members have said `free` (release), and the
// writer has seen it (acquire); before it is polled again, the reader has seen that its writers cleared it.
//
// Every wait is bounded. One that runs out reports where it was, once, and from then on nothing is waited for:
// the member leaves at the next step, the others follow when they see the report or their own time is up.
#pragma once

#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "machine/wait.cuh"
#include "resident/arguments.h"
#include "resident/formats.cuh"
#include "resident/unit_range.cuh"

namespace headroom::resident {

MACHINE_DEVICE const Arguments& arguments() { return *reinterpret_cast<const Arguments*>(shared_memory()); }
MACHINE_DEVICE const Plan& plan() { return arguments().plan; }

/// Where this thread is, and waiting with a bound. The exchanges below are functions only: what they need lies in
/// shared memory or here, so that it stays in registers.
struct Waiter {
  int warp, lane;
  std::uint32_t member;
  bool timed_out;

  /// Called by whole warps: all lanes go on together, or all give up. Lanes that decided by their own clocks would part,
  /// and the next vote would wait for them for ever.
  template <class Ready>
  MACHINE_DEVICE void wait_until(Ready&& ready, std::uint32_t exchange) {
    if (timed_out) return;
    std::uint64_t begin = 0;
    for (std::uint32_t polls = 1; !warp_all(ready()); ++polls) {
      if (polls % 256 != 0) continue;
      if (begin == 0) begin = nanoseconds();
      const bool late = nanoseconds() - begin > static_cast<std::uint64_t>(arguments().wait_nanoseconds);
      if (late)
        report_once(arguments().status, wait_status(exchange, member, static_cast<std::uint32_t>(warp)));
      if (warp_any(late || load_relaxed_gpu(arguments().status) != 0)) {
        timed_out = true;
        return;
      }
    }
  }
};

// Sources of a product: load() fills the rows of up to kBatch units for the forward products, `count` of them real,
// load_columns() the columns of two neighbouring chunks for a weight gradient.

/// Tiles of one exchange or of the logits' gradient in shared memory.
template <class Format>
struct SharedTiles {
  using Values = typename Format::Values;
  const unsigned char* tiles;  // [groups, chunks]
  int chunks, lane;
  std::uint32_t barrier = 0, parity = 0;  // whose phase load() waits for; 0: none
  int exchange = 0;

  template <int kBatch>
  MACHINE_DEVICE void load(Values (&rows)[kBatch][4], int group, int unit, int count, Waiter& waiter) const {
    if (barrier != 0)
      waiter.wait_until([&] { return barrier_try_wait_cluster(barrier, parity); },
                        static_cast<std::uint32_t>(exchange));
    const unsigned char* row = tiles +
                               (group * chunks + unit * kUnitChunks + (lane & 3)) * Format::kSharedTile +
                               (lane >> 2) * 8 * Format::kElementBytes;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (u >= count) break;
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int part = 0; part < Format::kParts; ++part)
          assign(rows[u][i], part,
                 load_shared16(row + u * kUnitChunks * Format::kSharedTile + i * 64 * Format::kElementBytes +
                               16 * part));
    }
  }
  template <int kBatch>
  MACHINE_DEVICE void load_columns(Values (&columns)[kBatch][2], int group, int pair, int count,
                                   Waiter&) const {
    const unsigned char* tile = tiles + (group * chunks + 2 * pair) * Format::kSharedTile;
#pragma unroll
    for (int p = 0; p < kBatch; ++p) {
      if (p >= count) break;
      columns[p][0] = Format::column(tile + 2 * p * Format::kSharedTile, lane);
      columns[p][1] = Format::column(tile + (2 * p + 1) * Format::kSharedTile, lane);
    }
  }
};

/// What a place in the L2 holds until a tile is published there: no value that is ever published. Products and
/// roundings turn every NaN into one with a clear sign.
inline constexpr std::uint32_t kNotYet = 0xffffffffu;
MACHINE_DEVICE bool arrived(uint4 packets) { return packets.y != kNotYet && packets.w != kNotYet; }

/// Tiles of one exchange in global memory, read from the L2: once row by row, once as the registers of column(). Reading
/// is waiting: everything is read again until every 8 bytes of it have arrived.
template <class Format>
struct GlobalTiles {
  using Values = typename Format::Values;
  const unsigned char* tiles;         // [groups, chunks with padding], rows
  const unsigned char* column_tiles;  // [groups, chunks with padding], parts of [32 lanes, 16 bytes]
  int chunks, chunks_with_padding, lane, exchange;

  template <int kBatch>
  MACHINE_DEVICE void load(Values (&rows)[kBatch][4], int group, int unit, int count, Waiter& waiter) const {
    const int chunk = unit * kUnitChunks + (lane & 3);
    const unsigned char* row = tiles + (group * chunks_with_padding + chunk) * Format::kTile +
                               (lane >> 2) * 8 * Format::kElementBytes;
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[u][i] = {};
    waiter.wait_until(
        [&] {
          bool all = true;
#pragma unroll
          for (int u = 0; u < kBatch; ++u)
            if (u < count && chunk + u * kUnitChunks < chunks)
#pragma unroll
              for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int part = 0; part < Format::kParts; ++part) {
                  const uint4 packets = load_relaxed_gpu_2x64(row + u * kUnitChunks * Format::kTile +
                                                              i * 64 * Format::kElementBytes + 16 * part);
                  all = all && arrived(packets);
                  assign(rows[u][i], part, packets);
                }
          return all;
        },
        static_cast<std::uint32_t>(exchange));
  }
  template <int kBatch>
  MACHINE_DEVICE void load_columns(Values (&columns)[kBatch][2], int group, int pair, int count,
                                   Waiter& waiter) const {
    const unsigned char* first =
        column_tiles + (group * chunks_with_padding + 2 * pair) * Format::kTile + lane * 16;
#pragma unroll
    for (int p = 0; p < kBatch; ++p) columns[p][0] = columns[p][1] = {};
    waiter.wait_until(
        [&] {
          bool all = true;
#pragma unroll
          for (int p = 0; p < kBatch; ++p)
#pragma unroll
            for (int chunk = 0; chunk < 2; ++chunk)
              if (p < count && 2 * (pair + p) + chunk < chunks)
#pragma unroll
                for (int part = 0; part < Format::kParts; ++part) {
                  const uint4 packets =
                      load_relaxed_gpu_2x64(first + (2 * p + chunk) * Format::kTile + 512 * part);
                  all = all && arrived(packets);
                  assign(columns[p][chunk], part, packets);
                }
          return all;
        },
        static_cast<std::uint32_t>(exchange));
  }
};

/// The inputs of one batch: packed on the device beforehand in exactly the order in which lanes read them, so that
/// staging them in shared memory is a plain copy that each lane makes for itself. Generic loads: `memory` is either.
template <class Format>
struct PackedInputs {
  using Values = typename Format::Values;
  const unsigned char* memory;  // [groups, units, 4 rows or chunks, parts] of [32 lanes, 16 bytes]
  int units, lane;

  template <int kBatch>
  MACHINE_DEVICE void load(Values (&rows)[kBatch][4], int group, int unit, int count, Waiter&) const {
    const unsigned char* first = memory + (group * units + unit) * 4 * Format::kParts * 512 + lane * 16;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      if (u >= count) break;
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int part = 0; part < Format::kParts; ++part)
          assign(rows[u][i], part, load_generic16(first + ((u * 4 + i) * Format::kParts + part) * 512));
    }
  }
  template <int kBatch>
  MACHINE_DEVICE void load_columns(Values (&columns)[kBatch][2], int group, int pair, int count,
                                   Waiter&) const {
    const unsigned char* first = memory + (group * units * 4 + 2 * pair) * Format::kParts * 512 + lane * 16;
#pragma unroll
    for (int p = 0; p < kBatch; ++p) {
      if (p >= count) break;
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
        for (int part = 0; part < Format::kParts; ++part)
          assign(columns[p][chunk], part,
                 load_generic16(first + ((2 * p + chunk) * Format::kParts + part) * 512));
    }
  }
};

template <class Format>
class ClusterExchange {
 public:
  using Tiles = SharedTiles<Format>;

  /// After shared memory was cleared and before anybody publishes.
  MACHINE_DEVICE static void begin() {
    if (thread_index() == 0) {
      for (int barrier = 0; barrier < 2 * plan().exchanges; ++barrier)
        barrier_init(barriers() + 8 * static_cast<std::uint32_t>(barrier), 1);
      barrier_init(free_barrier(), static_cast<std::uint32_t>(plan().members));
      barrier_init_fence();
      for (int exchange = 0; exchange < plan().exchanges; ++exchange)
        for (int stage = 0; stage < 2; ++stage) expect(exchange, stage);
    }
    block_sync();
    cluster_sync();
  }
  /// Nobody may leave while others still store into its memory.
  MACHINE_DEVICE static void end() { cluster_sync(); }

  MACHINE_DEVICE static void wait(Waiter& waiter, int exchange, int step) {
    const std::uint32_t barrier = barrier_of(exchange, stage(step));
    const std::uint32_t parity = static_cast<std::uint32_t>(step >> 1) & 1;
    waiter.wait_until([&] { return barrier_try_wait_cluster(barrier, parity); },
                      static_cast<std::uint32_t>(exchange));
    warp_sync();
    // For the step after the next. A completed phase stays visible until that one is complete too.
    if (thread_index() == 0 && !waiter.timed_out) expect(exchange, stage(step));
  }
  MACHINE_DEVICE static void wait_logits(Waiter& waiter, int step) {
    wait(waiter, plan().logit_exchange, step);
  }

  MACHINE_DEVICE static Tiles tiles(const Waiter& waiter, int exchange, int step) {
    return {shared_memory() + plan().exchange[exchange].shared_offset[stage(step)],
            plan().exchange[exchange].chunks_with_padding,
            waiter.lane,
            barrier_of(exchange, stage(step)),
            static_cast<std::uint32_t>(step >> 1) & 1,
            exchange};
  }
  MACHINE_DEVICE static float logit(Waiter&, bool /*wait*/, int step, int group, int chunk, int row,
                                    int column) {
    const ExchangePlan& exchange = plan().exchange[plan().logit_exchange];
    const unsigned char* tile = shared_memory() + exchange.shared_offset[stage(step)] +
                                (group * exchange.chunks_with_padding + chunk) * kLogitTileBytes;
    return reinterpret_cast<const float*>(tile)[row * 8 + column];
  }

  /// Warps that publish the same tile, each to its share of the members: all of them have its values.
  MACHINE_DEVICE static int senders(int tiles) { return tiles <= 2 ? 4 : tiles <= 4 ? 2 : 1; }

  /// Row `lane` of an own tile. `own` is the tile in this member's shared memory, not used here.
  MACHINE_DEVICE static void publish(const Waiter& waiter, int exchange, int step, int group, int chunk,
                                     const typename Format::Values& row, const unsigned char* /*own*/,
                                     int sender, int sender_count) {
    uint4 parts[Format::kParts];
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part) parts[part] = part_of(row, part);
    send<Format::kParts>(waiter, exchange, step, group, chunk, Format::kSharedTile, parts, sender,
                         sender_count);
  }
  MACHINE_DEVICE static void publish_logits(const Waiter& waiter, int step, int group, int chunk,
                                            const float (&row)[8], int sender, int sender_count) {
    const Eight<8> bits = ThirtyTwoBit::store_exactly(row);
    const uint4 parts[2] = {part_of(bits, 0), part_of(bits, 1)};
    send<2>(waiter, plan().logit_exchange, step, group, chunk, kLogitTileBytes, parts, sender, sender_count);
  }

  /// By one warp, after a block barrier behind the last read of the other stage's buffers in this step.
  MACHINE_DEVICE static void say_free(const Waiter& waiter, int /*step*/) {
    if (waiter.lane < plan().members)
      barrier_arrive_remote_release(remote_address(free_barrier(), static_cast<std::uint32_t>(waiter.lane)));
  }
  /// By one warp, before a block barrier ahead of the first publish of the step. This step writes the buffers of two
  /// steps ago, which the step before this one still reads.
  MACHINE_DEVICE static void wait_free(Waiter& waiter, int step) {
    if (step < 1) return;
    const std::uint32_t parity = static_cast<std::uint32_t>(step - 1) & 1;
    waiter.wait_until([&] { return barrier_try_wait_cluster(free_barrier(), parity); }, kWaitFree);
  }
  MACHINE_DEVICE static void wait_free_ahead(Waiter&, int /*step*/) {}
  MACHINE_DEVICE static void clear(const Waiter&, int, int, int, int) {}

 private:
  MACHINE_DEVICE static int stage(int step) { return static_cast<int>(step & 1); }
  MACHINE_DEVICE static std::uint32_t barriers() {
    return shared_address(shared_memory()) + static_cast<std::uint32_t>(plan().barrier_offset);
  }
  MACHINE_DEVICE static std::uint32_t barrier_of(int exchange, int stage) {
    return barriers() + static_cast<std::uint32_t>(8 * (2 * exchange + stage));
  }
  MACHINE_DEVICE static std::uint32_t free_barrier() {
    return barriers() + static_cast<std::uint32_t>(16 * plan().exchanges);
  }
  MACHINE_DEVICE static void expect(int exchange, int stage) {
    barrier_arrive_expect(barrier_of(exchange, stage),
                          static_cast<std::uint32_t>(plan().exchange[exchange].bytes_per_step));
  }
  template <int kParts>
  MACHINE_DEVICE static void send(const Waiter& waiter, int exchange, int step, int group, int chunk,
                                  int pitch, const uint4 (&parts)[kParts], int sender, int sender_count) {
    const ExchangePlan& place = plan().exchange[exchange];
    const std::uint32_t local =
        shared_address(shared_memory()) +
        static_cast<std::uint32_t>(place.shared_offset[stage(step)] +
                                   (group * place.chunks_with_padding + chunk) * pitch +
                                   waiter.lane * 16 * kParts);
    const std::uint32_t barrier = barrier_of(exchange, stage(step));
    const int members = plan().members;
#pragma unroll 4
    for (int i = sender; i < members; i += sender_count) {
      // Everybody starts with another member, so that nobody is everybody's first.
      const std::uint32_t to =
          (waiter.member + static_cast<std::uint32_t>(i)) & static_cast<std::uint32_t>(members - 1);
      const std::uint32_t remote = remote_address(local, to), remote_barrier = remote_address(barrier, to);
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        store_async16(remote + 16 * part, parts[part], remote_barrier);
    }
  }
};

template <class Format>
class GridExchange {
 public:
  static constexpr int kStages = stages(Form::kGrid);
  using Tiles = GlobalTiles<Format>;

  MACHINE_DEVICE static void begin() { block_sync(); }
  MACHINE_DEVICE static void end() {}

  MACHINE_DEVICE static void wait(Waiter&, int /*exchange*/, int /*step*/) {}  // reading waits
  MACHINE_DEVICE static void wait_logits(Waiter&, int /*step*/) {}

  MACHINE_DEVICE static Tiles tiles(const Waiter& waiter, int exchange, int step) {
    const ExchangePlan& place = plan().exchange[exchange];
    const unsigned char* rows = stage_of(exchange, step);
    return {rows,    rows + place.global_columns, place.chunks, place.chunks_with_padding, waiter.lane,
            exchange};
  }
  /// With `wait` by whole warps.
  MACHINE_DEVICE static float logit(Waiter& waiter, bool wait, int step, int group, int chunk, int row,
                                    int column) {
    const unsigned char* pair =
        stage_of(plan().logit_exchange, step) +
        (group * plan().exchange[plan().logit_exchange].chunks_with_padding + chunk) * kLogitTileBytes +
        (row * 8 + (column & ~1)) * 4;
    uint2 packet = make_uint2(0, 0);
    if (wait)
      waiter.wait_until(
          [&] {
            packet = load_relaxed_gpu_64(pair);
            return packet.y != kNotYet;
          },
          static_cast<std::uint32_t>(plan().logit_exchange));
    else
      packet = load_relaxed_gpu_64(pair);
    return bits_to_float((column & 1) != 0 ? packet.y : packet.x);
  }

  MACHINE_DEVICE static int senders(int /*tiles*/) { return 1; }

  /// Row `lane` of an own tile, which this warp has just written to its shared memory at `own`.
  MACHINE_DEVICE static void publish(const Waiter& waiter, int exchange, int step, int group, int chunk,
                                     const typename Format::Values& row, const unsigned char* own,
                                     int /*sender*/, int /*sender_count*/) {
    const ExchangePlan& place = plan().exchange[exchange];
    unsigned char* tile =
        stage_of(exchange, step) + (group * place.chunks_with_padding + chunk) * Format::kTile;
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part)
      store_relaxed_gpu_2x64(tile + waiter.lane * 16 * Format::kParts + 16 * part, part_of(row, part));
    warp_sync();  // the tile in shared memory is whole
    const typename Format::Values column = Format::publishable(Format::column(own, waiter.lane));
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part)
      store_relaxed_gpu_2x64(tile + place.global_columns + part * 512 + waiter.lane * 16,
                             part_of(column, part));
  }
  MACHINE_DEVICE static void publish_logits(const Waiter& waiter, int step, int group, int chunk,
                                            const float (&row)[8], int /*sender*/, int /*sender_count*/) {
    unsigned char* tile =
        stage_of(plan().logit_exchange, step) +
        (group * plan().exchange[plan().logit_exchange].chunks_with_padding + chunk) * kLogitTileBytes;
    const Eight<8> bits = ThirtyTwoBit::store_exactly(row);
    store_relaxed_gpu_2x64(tile + waiter.lane * 32, part_of(bits, 0));
    store_relaxed_gpu_2x64(tile + waiter.lane * 32 + 16, part_of(bits, 1));
  }

  MACHINE_DEVICE static void say_free(const Waiter& waiter, int step) {
    if (waiter.lane == 0)
      store_release_gpu(arguments().free_steps + waiter.member, static_cast<std::uint32_t>(step + 1));
  }
  /// While the step waits anyway: everybody is done with the last step but one. Seen by one warp, and by the others
  /// behind the next block barrier.
  MACHINE_DEVICE static void wait_free_ahead(Waiter& waiter, int step) {
    if (step < 1) return;
    waiter.wait_until(
        [&] {
          bool all = true;
#pragma unroll 1
          for (int member = waiter.lane; member < plan().members; member += 32)
            all =
                all && load_acquire_gpu(arguments().free_steps + member) >= static_cast<std::uint32_t>(step);
          return all;
        },
        kWaitFree);
  }
  MACHINE_DEVICE static void wait_free(Waiter&, int /*step*/) {}

  /// Makes own places of a layer's tiles as they were before they were published in step - 3: wait_free_ahead() in the
  /// step before has seen that nobody reads them any more. say_free() tells the others, who wait for that before step
  /// + 2 reads these buffers again.
  MACHINE_DEVICE static void clear(const Waiter& waiter, int exchange, int step, int first_chunk,
                                   int chunk_count) {
    if (step < 3) return;
    const ExchangePlan& place = plan().exchange[exchange];
    const int tile_bytes = exchange == plan().logit_exchange ? kLogitTileBytes : Format::kTile;
    unsigned char* stage = stage_of(exchange, step - 3);
    const uint4 nothing = make_uint4(kNotYet, kNotYet, kNotYet, kNotYet);
#pragma unroll 1
    for (int group = 0; group < plan().groups; ++group) {
      unsigned char* tiles = stage + (group * place.chunks_with_padding + first_chunk) * tile_bytes;
#pragma unroll 1
      for (int byte = waiter.lane * 16; byte < chunk_count * tile_bytes; byte += 512) {
        store_relaxed_gpu_2x64(tiles + byte, nothing);
        if (place.global_columns != 0) store_relaxed_gpu_2x64(tiles + place.global_columns + byte, nothing);
      }
    }
  }

 private:
  MACHINE_DEVICE static unsigned char* stage_of(int exchange, int step) {
    const ExchangePlan& place = plan().exchange[exchange];
    return arguments().exchange + place.global_offset + (step % kStages) * place.global_stage_bytes;
  }
};

}  // namespace headroom::resident
