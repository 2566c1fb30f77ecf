// The machine's instructions that CUDA C++ has no plain words for, one small function each: barriers in shared
// memory, bulk copies, matrix stores, and the fences around a warpgroup's products.
#pragma once

#include <cstdint>

#define FUSED_DEVICE __device__ __forceinline__

namespace headroom::fused {

FUSED_DEVICE std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Address of a block's dynamic shared memory where it has no other and is in no cluster: behind the 1 KB that the system
/// keeps (CUDA programming guide, compute capability 9.0). Who relies on it has to look first. A constant costs nothing,
/// where the address of a pointer is made anew wherever it is wanted, by reading the block's rank in its cluster.
constexpr std::uint32_t kSharedBegin = 1024;

// ---- barriers in shared memory; a phase is complete after its arrivals and the bytes announced to it

FUSED_DEVICE void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the bulk copies; __syncthreads() must follow.
FUSED_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
FUSED_DEVICE void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and announces bytes that bulk copies will bring.
FUSED_DEVICE void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Waits until the phase of this parity is complete.
FUSED_DEVICE void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}
/// Where a ring is: its stage, and the parity of the phase that the stage is in.
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;
  FUSED_DEVICE void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Waits for `threads` threads of this block, a multiple of 32, that name the same barrier (1 to 15).
FUSED_DEVICE void named_barrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Registers of each thread of the warpgroup from here on.
template <int kRegisters>
FUSED_DEVICE void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
FUSED_DEVICE void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- kernels that may start before the one before them has ended

/// Waits for it, and for all it wrote.
FUSED_DEVICE void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// The next kernel's blocks may take the place of blocks that end.
FUSED_DEVICE void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- bulk copies: 16-byte aligned, a multiple of 16 bytes

FUSED_DEVICE void bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes,
                            std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}
/// The same of what passes through the L2: it is to leave it before anything else does.
FUSED_DEVICE void bulk_load_passing(std::uint32_t shared, const void* global, std::uint32_t bytes,
                                    std::uint32_t barrier) {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
/// To the same place of every rank in `ranks` (one bit each), counted by each one's barrier.
FUSED_DEVICE void bulk_load_to(std::uint16_t ranks, std::uint32_t shared, const void* global,
                               std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "h"(ranks)
      : "memory");
}
/// The line at `global` into the L2.
FUSED_DEVICE void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}
/// The same of a multiple of 16 bytes.
FUSED_DEVICE void bulk_prefetch(const void* global, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
FUSED_DEVICE void bulk_store(void* global, std::uint32_t shared, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared),
               "r"(bytes)
               : "memory");
}
/// The same of what is read again soon and then written anew: it is to leave the L2 last.
FUSED_DEVICE void bulk_store_kept(void* global, std::uint32_t shared, std::uint32_t bytes) {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(global),
               "r"(shared), "r"(bytes), "l"(policy)
               : "memory");
}
FUSED_DEVICE void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// This thread's stores, but for the last kPending groups, have read their shared memory.
template <int kPending>
FUSED_DEVICE void bulk_stores_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// This thread's stores have read their shared memory.
FUSED_DEVICE void bulk_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// This thread's stores are in global memory.
FUSED_DEVICE void bulk_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Before a barrier, by every thread that wrote shared memory which products or bulk copies read next.
FUSED_DEVICE void shared_writes_to_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// The same of all memory, the device's as well; and between what copies have written and what copies read.
FUSED_DEVICE void writes_to_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

// ---- single words, for the thread itself

FUSED_DEVICE std::uint32_t load_word(std::uint32_t address) {
  std::uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
/// Four bytes from device memory to shared memory; the thread waits for all of its loads at once.
FUSED_DEVICE void word_load(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
FUSED_DEVICE void word_loads_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- tensor copies: a box of a matrix whose tensor map says where it ends; what lies outside is read as zero and not
// written. `map` lies in the kernel's parameters; column and row are of the box's first element.

FUSED_DEVICE void tensor_load(std::uint32_t shared, const void* map, int column, int row,
                              std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
/// To the same place of every rank in `ranks` (one bit each), counted by each one's barrier.
FUSED_DEVICE void tensor_load_to(std::uint16_t ranks, std::uint32_t shared, const void* map, int column,
                                 int row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(ranks)
      : "memory");
}
FUSED_DEVICE void tensor_store(const void* map, int column, int row, std::uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(column), "r"(row), "r"(shared)
               : "memory");
}

// ---- clusters: addresses of another rank's shared memory

FUSED_DEVICE std::uint32_t remote_address(std::uint32_t local, std::uint32_t rank) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  return remote;
}
FUSED_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// Waits for all threads of the cluster, and hands nothing on: it does not wait for what a thread has stored.
FUSED_DEVICE void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
/// Says that a place was read. Relaxed: nothing that this thread wrote is handed on, and a release would wait for it.
FUSED_DEVICE void barrier_arrive_remote(std::uint32_t remote_barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier)
               : "memory");
}
/// As barrier_wait(), for what bulk copies of other ranks have brought. Where arrivals are relaxed, barrier_wait() is enough.
FUSED_DEVICE void barrier_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}
/// From this block's shared memory to another rank's, counted by a barrier there.
FUSED_DEVICE void bulk_send(std::uint32_t remote, std::uint32_t shared, std::uint32_t bytes,
                            std::uint32_t remote_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          remote),
      "r"(shared), "r"(bytes), "r"(remote_barrier)
      : "memory");
}

// ---- two values rounded to nearest, ties to even, `low` in the lower half; relu: of max(value, 0), where NaN stays NaN

#define FUSED_PACK(name, instruction)                                   \
  FUSED_DEVICE std::uint32_t name(float low, float high) {              \
    std::uint32_t pair;                                                 \
    asm(instruction " %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low)); \
    return pair;                                                        \
  }
FUSED_PACK(pack_fp16, "cvt.rn.f16x2.f32")
FUSED_PACK(pack_fp16_relu, "cvt.rn.relu.f16x2.f32")
FUSED_PACK(pack_bf16, "cvt.rn.bf16x2.f32")
FUSED_PACK(pack_bf16_relu, "cvt.rn.relu.bf16x2.f32")
#undef FUSED_PACK

/// The top bit of byte 1 or 0 and of byte 3 or 2, spread over the lower and the upper half.
template <bool kUpperBytes>
FUSED_DEVICE std::uint32_t spread(std::uint32_t word) {
  std::uint32_t halves;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(halves) : "r"(word), "n"(kUpperBytes ? 0xbb99 : 0xaa88));
  return halves;
}

/// What follows from `value` is worked out where it is needed: the compiler would do it before the loop and keep it in registers
/// that nobody has.
template <class Word>
FUSED_DEVICE Word worked_out_here(Word value) {
  asm volatile("" : "+r"(value));
  return value;
}

// ---- products of a warp: sums = start + a [16, 16] * b [16, 8]

#define FUSED_ROWS(name, type)                                                                               \
  FUSED_DEVICE void name(float (&sums)[4], const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1,       \
                         float s0, float s1, float s2, float s3) {                                           \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                               \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                           \
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(s0), "f"(s1), "f"(s2), "f"(s3)); \
  }
FUSED_ROWS(multiply_rows_fp16, "f16")
FUSED_ROWS(multiply_rows_bf16, "bf16")
#undef FUSED_ROWS

// ---- products of a warpgroup (wgmma.cuh)

/// Between the last change of registers that products read or add to and the first product.
FUSED_DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FUSED_DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// At most kPending groups of products are under way.
template <int kPending>
FUSED_DEVICE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// After a wait: the compiler must not read these sums before it.
template <int kCount>
FUSED_DEVICE void sums_are_final(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

/// The same for words that are made before this and used behind it.
template <int kCount>
FUSED_DEVICE void words_are_final(std::uint32_t (&words)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(words[i])::"memory");
}

/// Four 8x8 matrices of 16-bit values; `row` is the address of row lane % 8 of matrix lane / 8.
FUSED_DEVICE void store_matrices(std::uint32_t row, const std::uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

/// The same of the transposes.
FUSED_DEVICE void store_matrices_turned(std::uint32_t row, const std::uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

/// Back from shared memory what store_matrices() put there.
FUSED_DEVICE void load_matrices(std::uint32_t row, std::uint32_t* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

/// Back from shared memory what store_matrices_turned() put there.
FUSED_DEVICE void load_matrices_turned(std::uint32_t row, std::uint32_t* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}

/// e to the power of `value` / log2(e), to about 2^-22.
FUSED_DEVICE float exponential2(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
/// Of values that are not subnormal, which the compiler's own would scale first.
FUSED_DEVICE float reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
FUSED_DEVICE float logarithm2(float value) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
FUSED_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(~0u, value, mask); }

}  // namespace headroom::fused
