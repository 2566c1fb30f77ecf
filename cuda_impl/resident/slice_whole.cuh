// The slice kernel for clusters of 16 in 16 bits, four layers: sums over hidden columns are whole in one warp.
//
// Up to 128 columns a product of 16 rows is eight instructions, less than it takes to divide it among eight warps, as
// slice_step.cuh does: partial sums through shared memory, a barrier, and an addition of eight. So two warps, each with 16 of
// the 32 rows, are the chain from h1 to the first layer's gradient. What one has summed up it rounds and publishes from its
// registers; logits, softmax, the gradient below the last layer and the next product follow each other without a barrier.
// Eight others own the masters as in slice_step.cuh. They multiply the first layer, whose 784 inputs are worth
// dividing, update every weight, and leave weights in shared memory in the order in which the two take them. An eleventh warp
// updates biases, stores the loss and asks for inputs: little work, but a long row of instructions that wait for each
// other, for which nobody is to be waited for.
//
//   tiles:     [32 rows, 8 columns] as two halves of 16 rows; in a half 8 bytes of each lane (4g + t: rows g and g + 8, columns
//              2t and 2t + 1). 16 bytes of them are what a lane of a product takes: of a pair of slices, lanes with t < 2
//              take four columns of the first and the others four of the second. The order in which a product sums is
//              free if its weights follow, and the gradient below the last layer is made in it, so that it
//              is masked by activations and multiplied where it is. In tiles of odd slices 16-byte places 0 to 3 and 4 to 7
//              change places (and so on), so that a lane's quad meets no bank twice.
//   own tiles: are in this member's buffers of the exchanges, too. Own gradients, and those of the logits, are also kept row
//              by row, which is how they are read transposed.
//   weights:   a row of 16 bytes for each column, also read transposed.
//   barriers, all of all eleven warps, in a step, and what is done before each besides the chain's own:
//              1. the first layer's partial sums are complete (on the chain); its bias
//              2. rows of the second layer and its bias are updated from the step before, while h1 travels
//              3. rows of the third and its bias, while h2 travels
//              4. the last layer, while h3 travels
//              5. inputs as columns are in registers; columns of the second layer. The gradient below the last layer and that
//                 of the logits are kept, behind d2's publication
//              6. columns of the third, in the step itself, while d2 travels; inputs as rows are in registers. The first
//                 layer's gradient is complete (on the chain)
//              Whoever writes weights, biases or kept tiles again is one of these behind their last reader.
//   exchanges: a chain warp waits for its half of everybody's tiles only; what the eight read of both halves is behind a barrier.
//              The buffers' two stages are enough as before, for each half: h1 is read for the last time before the
//              second barrier of the next step, and written again by members that have taken a d2 which this one
//              published behind the fourth. The others are read before the fifth, and written by members that have taken
//              an h1 published in the step after. A member's own tiles are written by itself.
#pragma once

#include "machine/cluster.cuh"
#include "machine/compiler.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/thread.cuh"
#include "resident/slice_whole_sums.cuh"

namespace headroom::resident {

inline constexpr int kChainWarps = 2, kWholeThreads = kThreads + 32 * (kChainWarps + 1);

template <class Format>
class SliceWholeMember : SliceWholeSums<Format, SliceHalves, 1, 1> {
  using Base = SliceWholeSums<Format, SliceHalves, 1, 1>;
  using Base::exchange_, Base::lane_, Base::member_, Base::next_batch_, Base::waiter_, Base::warp_;
  using Base::hidden, Base::load_own_gradient, Base::load_rows, Base::masked, Base::update_bias;
  using typename Base::Arguments;
  using typename Base::EarlyInputs;
  using typename Base::Fragments;
  using typename Base::Own;
  using typename Base::Place;
  using typename Base::Two;
  using typename Base::Values;

 public:
  static constexpr int kThreadCount = kWholeThreads;

  MACHINE_DEVICE explicit SliceWholeMember(const Arguments& a) : Base(a) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    Base::template load<kWholeThreads>(a, warp_ < kWarps);
    exchange_.begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    Base::begin_staging(a);
    const bool updates = warp_ < kWarps;
    bool complete = false;
    if (updates)
      complete = update(a);
    else if (warp_ < kWarps + kChainWarps)
      chain(a);
    else
      serve(a);
    block_sync();
    if (updates && complete) Base::store(a);
    exchange_.end();
  }

 private:
  static constexpr int kTile = 512, kHalf = 256, kMembers = kMaxCluster, kPairs = kMembers / 2;
  static constexpr int kStepBarrier = 1;
  static constexpr int kFirstHidden = 0, kSecondHidden = 1, kThirdHidden = 2,
                       kSecondGradient = 3;  // exchanges
  // Of weights, 2 KB each; the last layer's backward is twice that.
  enum Matrix { kSecondRows, kThirdRows, kSecondColumns, kThirdColumns, kLastLow, kLastHigh, kLastAcross };

  MACHINE_DEVICE static void step_sync() { named_barrier<kWholeThreads>(kStepBarrier); }
  MACHINE_DEVICE static unsigned char* fragments(const Arguments& a, Matrix matrix) {
    return shared_memory() + plan_of(a).hidden_offset + 2048 * matrix;
  }
  /// The gradient below the last layer, a tile of every member: where others have a second buffer of partial sums.
  MACHINE_DEVICE static std::uint32_t third_gradient(const Arguments& a) {
    static_assert(kMembers * kTile == kWarps * kPartialTile);
    return static_cast<std::uint32_t>(plan_of(a).partial_offset + kWarps * kPartialTile);
  }
  /// Behind the last barrier of a step, one for each of the first lanes; written before it.
  MACHINE_DEVICE std::uint32_t timed_out_word(const Arguments& a) const {
    return lane_ < kChainWarps ? Base::timed_out_words(a)[lane_] : 0;
  }

  // ---- eight warps that own masters

  /// Whether all steps were made.
  MACHINE_DEVICE bool update(const Arguments& a) {
    keep_all_weights(a);
    Base::multiply_first(a, 0, next_batch_);
    for (int step = 0; step < a.steps; ++step) {
      exchange_.begin_step(step);
      Base::next_batch(a);
      Base::partial_ = 1;  // one buffer is enough
      Base::store_partial(a, Base::first_sums_);
      step_sync();  // 1
      if (step > 0) update_second_rows(a);
      step_sync();  // 2
      if (step > 0) update_third_rows(a);
      step_sync();  // 3
      if (step > 0) update_last(a);
      step_sync();  // 4
      EarlyInputs columns;
      Base::load_inputs(a, columns, step);
      if (step > 0) update_second_columns(a);
      step_sync();  // 5
      update_third_columns(a);
      if (step + 1 < a.steps) Base::wait_for_inputs(a, 0, plan_of(a).x_rows_offset, step + 1);
      Fragments rows[kEarlyRows];
#pragma unroll
      for (int i = 0; i < kEarlyRows; ++i) rows[i] = Base::load_row_inputs(a, i);
      step_sync();  // 6
      const std::uint32_t timed_out = timed_out_word(a);
      Base::update_first_and_multiply(a, columns, rows);
      if (warp_any(timed_out != 0)) return false;
    }
    exchange_.begin_step(a.steps);
    update_second_rows(a);
    update_third_rows(a);
    update_last(a);
    update_second_columns(a);
    return true;
  }
  MACHINE_DEVICE void keep_all_weights(const Arguments& a) const {
#pragma unroll
    for (int layer = 1; layer < 3; ++layer) {
      keep_matrix(a, static_cast<Matrix>(kSecondRows + layer - 1),
                  Base::matrix(plan_of(a).rows_offset, layer)[lane_]);
      keep_matrix(a, static_cast<Matrix>(kSecondColumns + layer - 1),
                  Base::matrix(plan_of(a).columns_offset, layer)[lane_]);
    }
    keep_last_weights(a, Base::matrix(plan_of(a).last_offset[0], 1)[lane_],
                      Base::second_tile(a, 0).load(lane_));
  }
  /// Of this warp's pair: a row of 16 bytes for each of its 16 columns, as load_product() takes them.
  MACHINE_DEVICE void keep_weights(const Arguments& a, Matrix matrix, std::uint32_t first,
                                   std::uint32_t second) const {
    const int g = lane_ >> 2, t = lane_ & 3;
    unsigned char* place = fragments(a, matrix) + warp_ * 256 + t * 4;
    *reinterpret_cast<std::uint32_t*>(place + weight_row(0, g) * 16) = first;
    *reinterpret_cast<std::uint32_t*>(place + weight_row(1, g) * 16) = second;
  }
  /// In an order in which eight columns that are read together are in different banks.
  MACHINE_DEVICE static int weight_row(int slice, int column) {
    return slice == 0 ? column : 8 + (column ^ 2);
  }
  MACHINE_DEVICE void keep_matrix(const Arguments& a, Matrix matrix, const float4& masters) const {
    keep_weights(a, matrix, Format::pack_weights(masters.x, masters.y),
                 Format::pack_weights(masters.z, masters.w));
  }
  MACHINE_DEVICE void keep_last_weights(const Arguments& a, const float4& low, const float4& high) const {
    const auto across = Format::across_weights(low, high);
    keep_weights(a, kLastLow, across.low[0], across.low[1]);
    keep_weights(a, kLastHigh, across.high[0], across.high[1]);
    // [pair] [lane] [2 instructions] two words, of columns in the order of whole sums.
    const int g = lane_ >> 2, t = lane_ & 3, column = 2 * (g >> 2) + (g & 1);
#pragma unroll
    for (int slice = 0; slice < 2; ++slice)
      *reinterpret_cast<uint2*>(fragments(a, kLastAcross) + (warp_ * 32 + (4 * slice + column) * 4 + t) * 16 +
                                (g >> 1 & 1) * 8) = make_uint2(across.low[slice], across.high[slice]);
  }

  /// A tile in the order of slice_step.cuh.
  MACHINE_DEVICE Values tile(std::uint32_t tiles, int slice) const {
    const unsigned char* place = shared_memory() + tiles + slice * kTile + ((lane_ * 8) ^ ((slice & 1) * 64));
    const uint2 upper = *reinterpret_cast<const uint2*>(place),
                lower = *reinterpret_cast<const uint2*>(place + kHalf);
    return {{upper.x, upper.y, lower.x, lower.y}};
  }
  /// masters += factor * columns^T * own, of this warp's pair of `tiles`.
  MACHINE_DEVICE void update_matrix(const Arguments& a, int offset, int layer, Matrix matrix,
                                    std::uint32_t tiles, const Own& own) const {
    float4& master = Base::matrix(offset, layer)[lane_];
    const float4 before = master;
    const float4 sum = Format::outer(Format::transposed(tile(tiles, 2 * warp_)),
                                     Format::transposed(tile(tiles, 2 * warp_ + 1)), own, lane_);
    const float4 now = Base::updated(a, before, sum);
    master = now;
    keep_matrix(a, matrix, now);
  }
  // From the step before.
  MACHINE_DEVICE void update_second_rows(const Arguments& a) const {
    update_matrix(a, plan_of(a).rows_offset, 1, kSecondRows, exchange_.buffer_offset(a, kFirstHidden, true),
                  load_own_gradient(a, 1));
  }
  MACHINE_DEVICE void update_third_rows(const Arguments& a) const {
    update_matrix(a, plan_of(a).rows_offset, 2, kThirdRows, exchange_.buffer_offset(a, kSecondHidden, true),
                  load_own_gradient(a, 2));
  }
  MACHINE_DEVICE void update_second_columns(const Arguments& a) const {
    update_matrix(a, plan_of(a).columns_offset, 1, kSecondColumns,
                  exchange_.buffer_offset(a, kSecondGradient, true),
                  Format::transposed(tile(exchange_.buffer_offset(a, kFirstHidden, true), member_)));
  }
  MACHINE_DEVICE void update_third_columns(const Arguments& a) const {
    update_matrix(a, plan_of(a).columns_offset, 2, kThirdColumns, third_gradient(a),
                  Format::transposed(tile(exchange_.buffer_offset(a, kSecondHidden), member_)));
  }
  MACHINE_DEVICE void update_last(const Arguments& a) const {
    float4& master = Base::matrix(plan_of(a).last_offset[0], 1)[lane_];
    const SecondTile second = Base::second_tile(a, 0);
    const float4 low_before = master, high_before = second.load(lane_);
    const std::uint32_t tiles = exchange_.buffer_offset(a, kThirdHidden, true);
    const Values first_slice = Format::transposed(tile(tiles, 2 * warp_)),
                 second_slice = Format::transposed(tile(tiles, 2 * warp_ + 1));
    const float4 low =
        Base::updated(a, low_before, Format::outer(first_slice, second_slice, load_dlogits(a, 0), lane_));
    const float4 high =
        Base::updated(a, high_before, Format::outer(first_slice, second_slice, load_dlogits(a, 1), lane_));
    master = low;
    second.store(lane_, high);
    keep_last_weights(a, low, high);
  }
  /// Pairs of rows of the next step's inputs that are in registers before the first layer's gradient is complete. In 16 bits
  /// there is always room to stage them.
  static constexpr int kEarlyRows = 4;
  MACHINE_DEVICE Own load_dlogits(const Arguments& a, int tile) const {
    return load_rows(shared_memory() + plan_of(a).dlogits_offset + tile * kTile);
  }

  // ---- a warp for what is small: a warp that did it besides would be waited for

  /// Biases and the loss of a step are due in the next one, but for the first layer's bias.
  MACHINE_DEVICE void serve(const Arguments& a) {
    constexpr int kThread = kWholeThreads - 1;
    Base::stage_rows(a, kThread);
    for (int step = 0; step < a.steps; ++step) {
      exchange_.begin_step(step);
      Base::next_batch(a);
      step_sync();  // 1: behind it nobody reads the last inputs
      if (step > 0) update_second_bias(a);
      Base::stage_columns(a, kThread);
      if (step + 1 < a.steps) Base::stage_rows(a, kThread);
      step_sync();  // 2
      if (step > 0) {
        update_third_bias(a);
        if (member_ == 0) Base::store_loss(a, step - 1);
      }
      step_sync();  // 3
      if (step > 0) update_last_bias(a);
      step_sync();  // 4
      step_sync();  // 5
      step_sync();  // 6
      if (warp_any(timed_out_word(a) != 0)) return;
      update_bias(a, own_bias(a, 0), load_own_gradient(a, 0));
    }
    exchange_.begin_step(a.steps);
    update_second_bias(a);
    update_third_bias(a);
    update_last_bias(a);
    if (member_ == 0) Base::store_loss(a, a.steps - 1);
  }
  MACHINE_DEVICE static float* own_bias(const Arguments& a, int layer) {
    return Base::floats(plan_of(a).bias_offset) + 8 * layer;
  }
  MACHINE_DEVICE void update_second_bias(const Arguments& a) const {
    update_bias(a, own_bias(a, 1), load_own_gradient(a, 1));
  }
  MACHINE_DEVICE void update_third_bias(const Arguments& a) const {
    update_bias(a, own_bias(a, 2), load_own_gradient(a, 2));
  }
  MACHINE_DEVICE void update_last_bias(const Arguments& a) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      update_bias(a, Base::floats(plan_of(a).last_bias_offset) + 8 * i, load_dlogits(a, i));
  }

  // ---- two warps that are the chain

  MACHINE_DEVICE int half() const { return warp_ - kWarps; }
  /// Where this warp's 16 rows are: of a pair of tiles, what this lane of a product takes; of this member's tile, what it
  /// publishes, to every other member, with the lane 16 further, which holds the same. So half a warp writes 256 bytes in a row.
  struct Lane {
    int row, pair_place, weights_place;
    std::uint32_t tile_place;
    std::uint32_t to[kMembers / 2];  // from this member's shared memory to another's
  };
  MACHINE_DEVICE Lane place_lane() const {
    const int half = this->half(), g = lane_ >> 2, t = lane_ & 3, slice = t >> 1;
    Lane lane;
    lane.row = 16 * half + g;
    lane.pair_place = slice * kTile + half * kHalf + ((2 * g + (t & 1)) ^ (4 * slice)) * 16;
    // Of two pairs' weights, the row that this lane names of the four blocks of a load: the columns that two lanes of a quad
    // take first, of either slice, then those that they take last.
    const int block = lane_ >> 3, in_block = lane_ & 7;
    lane.weights_place =
        (block >> 1) * 256 +
        weight_row(in_block >> 2, 4 * (in_block >> 1 & 1) + 2 * (block & 1) + (in_block & 1)) * 16;
    lane.tile_place = static_cast<std::uint32_t>(member_ * kTile + half * kHalf +
                                                 ((lane_ & 15) ^ (4 * (member_ & 1))) * 16);
    const std::uint32_t here = shared_address(shared_memory());
#pragma unroll
    for (int i = 0; i < kMembers / 2; ++i)
      lane.to[i] =
          remote_address(here, static_cast<std::uint32_t>(member_ + (lane_ >> 4) + 2 * i) % kMembers) - here;
    return lane;
  }
  using Product = WholeProduct<Format, kPairs>;
  MACHINE_DEVICE Product load_product(const Arguments& a, const Lane& lane, Matrix matrix) const {
    Product product;
#pragma unroll
    for (int i = 0; i < kPairs / 2; ++i)
      load_matrices_transposed(fragments(a, matrix) + i * 512 + lane.weights_place, product.weights[i]);
    return product;
  }
  MACHINE_DEVICE Place place(const Arguments& a, const Lane& lane, int exchange) const {
    Place place = {shared_address(shared_memory()) + exchange_.buffer_offset(a, exchange) + lane.tile_place,
                   exchange_.buffer_barrier(a, exchange, half()), exchange == a.lost_exchange};
    compute_now(place.tile);
    compute_now(place.barrier);
    return place;
  }
  MACHINE_DEVICE void publish(const Lane& lane, const Place& place, const Two& two) const {
    const uint4 packet = Base::packet_of(two);
    if (place.lost) return;
#pragma unroll
    for (int i = 0; i < kMembers / 2; ++i)
      store_async16(place.tile + lane.to[i], packet, place.barrier + lane.to[i]);
  }
  MACHINE_DEVICE void take(const Arguments& a, const Lane& lane, int exchange, uint4 (&tiles)[kPairs]) {
    const unsigned char* begin = shared_memory() + exchange_.buffer_offset(a, exchange) + lane.pair_place;
    exchange_.await(a, waiter_, exchange, half());
#pragma unroll
    for (int i = 0; i < kPairs; ++i) tiles[i] = load_shared16(begin + 2 * i * kTile);
  }
  /// When the buffer is taken and what depends on it is on its way.
  MACHINE_DEVICE void expect_next(const Arguments& a, int exchange) const {
    if (lane_ == 0) exchange_.expect_next(a, waiter_, exchange, half());
  }

  MACHINE_DEVICE void chain(const Arguments& a) {
    const Lane lane = place_lane();
    for (int step = 0; step < a.steps; ++step) {
      exchange_.begin_step(step);
      Base::next_batch(a);
      int label[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = lane.row + 8 * i;
        label[i] =
            row < plan_of(a).batch ? a.labels[std::int64_t{Base::batch_} * plan_of(a).batch + row] : -1;
      }
      Place to = place(a, lane, kFirstHidden);
      step_sync();  // 1
      float sum[4];
      add_first(a, sum);
      const Two first = hidden(sum);
      publish(lane, to, first);

      uint4 tiles[kPairs];
      to = place(a, lane, kSecondHidden);
      step_sync();  // 2
      Product product = load_product(a, lane, kSecondRows);
      float2 bias = Base::bias_of(a, 1, 0);
      take(a, lane, kFirstHidden, tiles);
      multiply<4>(sum, tiles, product, bias);
      const Two second = hidden(sum);
      publish(lane, to, second);
      expect_next(a, kFirstHidden);

      to = place(a, lane, kThirdHidden);
      step_sync();  // 3
      product = load_product(a, lane, kThirdRows);
      bias = Base::bias_of(a, 2, 0);
      take(a, lane, kSecondHidden, tiles);
      multiply<4>(sum, tiles, product, bias);
      publish(lane, to, hidden(sum));
      expect_next(a, kSecondHidden);

      step_sync();                   // 4
      loss(a, lane, label, second);  // with barrier 5
      product = load_product(a, lane, kSecondColumns);
      take(a, lane, kSecondGradient, tiles);
      multiply<4>(sum, tiles, product);
      const Two gradient = masked(sum, first);
      keep_rows(lane, Base::own_gradient(a, 0), gradient);
      if (waiter_.timed_out && lane_ == 0) Base::timed_out_words(a)[half()] = 1;
      step_sync();  // 6
      expect_next(a, kSecondGradient);
      if (warp_any(timed_out_word(a) != 0)) return;
    }
  }
  /// Into a tile that lies row by row.
  MACHINE_DEVICE void keep_rows(const Lane& lane, unsigned char* tile, const Two& two) const {
    auto* place = reinterpret_cast<std::uint32_t*>(tile + lane.row * 16) + (lane_ & 3);
    place[0] = two.upper;
    place[8 * 4] = two.lower;
  }
  MACHINE_DEVICE void add_first(const Arguments& a, float (&sum)[4]) const {
    const float4* mine = Base::partial(a, 0) + half() * 32 + lane_;
    const float4 total = add_up<kWarps>(mine, kPartialTile / 16);
    const float2 bias = Base::bias_of(a, 0, 0);
    sum[0] = total.x + bias.x, sum[1] = total.y + bias.y;
    sum[2] = total.z + bias.x, sum[3] = total.w + bias.y;
  }

  /// From the activations below the last layer to the publication of the gradient one layer further down.
  MACHINE_DEVICE void loss(const Arguments& a, const Lane& lane, const int (&label)[2], const Two& second) {
    const Place to = place(a, lane, kSecondGradient);
    const Product low_weights = load_product(a, lane, kLastLow),
                  high_weights = load_product(a, lane, kLastHigh);
    const int t = lane_ & 3;
    const auto bias =
        TwoRowsOfLoss::load_bias(Base::floats(plan_of(a).last_bias_offset), plan_of(a).classes, t);
    uint4 tiles[kPairs];
    take(a, lane, kThirdHidden, tiles);
    float low[4], high[4];
    multiply<2>(low, tiles, low_weights, bias.low);
    multiply<2>(high, tiles, high_weights, bias.high);
    uint4 across[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      across[i] = load_shared16(fragments(a, kLastAcross) + i * 512 + lane_ * 16);
    const Product product = load_product(a, lane, kThirdColumns);

    const int row[2] = {lane.row, lane.row + 8};
    const auto rows = TwoRowsOfLoss::of(low, high, label, row, plan_of(a).batch, a.gradient_scale, t);
    const auto& power = rows.gradient;
    const uint4 dlogits =
        make_uint4(Format::pack(power[0][0], power[0][1]), Format::pack(power[1][0], power[1][1]),
                   Format::pack(power[0][2], power[0][3]), Format::pack(power[1][2], power[1][3]));
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float first[4] = {}, other[4] = {};
      Format::product(first, dlogits, across[i].x, across[i].y);
      Format::product(other, dlogits, across[i].z, across[i].w);
      const Two columns = masked(first, {tiles[i].x, tiles[i].y}),
                further = masked(other, {tiles[i].z, tiles[i].w});
      tiles[i] = make_uint4(columns.upper, columns.lower, further.upper, further.lower);
    }
    float sum[4];
    multiply<4>(sum, tiles, product);
    const Two gradient = masked(sum, second);
    publish(lane, to, gradient);
    expect_next(a, kThirdHidden);

    // What updates take.
    unsigned char* begin = shared_memory() + third_gradient(a) + lane.pair_place;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      *reinterpret_cast<uint4*>(begin + 2 * i * kTile) = tiles[i];
      if (2 * i + (t >> 1) == member_) {  // this lane has four columns of this member's own
        auto* place = reinterpret_cast<uint2*>(Base::own_gradient(a, 2) + lane.row * 16) + (t & 1);
        place[0] = make_uint2(tiles[i].x, tiles[i].z);
        place[8 * 2] = make_uint2(tiles[i].y, tiles[i].w);
      }
    }
    keep_rows(lane, Base::own_gradient(a, 1), gradient);
    unsigned char* kept = shared_memory() + plan_of(a).dlogits_offset;
    keep_rows(lane, kept, {dlogits.x, dlogits.y});
    keep_rows(lane, kept + kTile, {dlogits.z, dlogits.w});
    if (member_ == 0)
      rows.keep(reinterpret_cast<float2*>(shared_memory() + plan_of(a).row_loss_offset), label, row, t);
    step_sync();  // 5
  }
};

}  // namespace headroom::resident
