// Products of a warpgroup on the tensor cores (wgmma): c [64, N] += a [64, K] * b [K, N], fp32 sums. sm_90a.
//
// Factors of fp16 or bf16 have K = 16, of tf32 K = 8. A factor in shared memory lies in rows of 128 bytes, or of 32, swizzled; panels.cuh
// describes it. `Turned` factors are read across their rows, which tf32 cannot. c: warp w of the warpgroup has rows 16w to 16w + 15, of
// which lane 4g + t holds rows g and g + 8; sums 4j to 4j + 3 are columns 8j + 2t and 8j + 2t + 1 of the first, then of the second.
//
//   fence_proxy_async_shared();  // by those who wrote the factors with ordinary stores, before a barrier
//   wgmma_fence();
//   for each k: wgmma_shared<Format, Factor::kPlain, Factor::kPlain>(sums, a + k * step, b + k * step, 1);
//   wgmma_commit();
//   wgmma_wait<0>();
//   wgmma_sums_are_final(sums);
//
// The PTX has no arrays: each N names its registers one by one, so the lists are spelled out once here and nowhere else.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

enum class Factor { kPlain = 0, kTurned = 1 };  ///< k runs along a row of 128 bytes, or across the rows

/// A matrix in shared memory as the instruction wants it described; panels.cuh makes it. Only the lower half of the
/// description differs from one matrix to another, and all arithmetic stays in it.
template <int kRowBytes>
struct PanelsOf {
  static_assert(kRowBytes == 128 || kRowBytes == 32);
  std::uint32_t low;
  MACHINE_DEVICE PanelsOf operator+(int further) const { return {low + static_cast<std::uint32_t>(further)}; }
  MACHINE_DEVICE std::uint64_t description() const {
    constexpr std::uint64_t kEightRows = 8 * kRowBytes, kSwizzle = kRowBytes == 128 ? 1 : 3;
    return kEightRows >> 4 << 32 | kSwizzle << 62 | low;
  }
};
using Panels = PanelsOf<128>;
using NarrowPanel = PanelsOf<32>;

/// Format: formats.cuh's Fp16, Bf16 or Tf32, or a kernel's own with their kIsBf16.
template <class Format>
constexpr bool kHasTf32Factors = requires { requires Format::kIsTf32; };

// ---- order

/// Between the last change of registers that products read or add to and the first product.
MACHINE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MACHINE_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// At most the newest kNewest groups of products are under way.
template <int kNewest>
MACHINE_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNewest) : "memory");
}
/// After a wait: the compiler must not read these sums before it.
template <int kCount>
MACHINE_DEVICE void wgmma_sums_are_final(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
/// The same for words that are made before this and used behind it.
template <int kCount>
MACHINE_DEVICE void wgmma_words_are_final(std::uint32_t (&words)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(words[i])::"memory");
}

// ---- products

#define MACHINE_LIST_4 "{%0, %1, %2, %3}"
#define MACHINE_LIST_8 "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define MACHINE_LIST_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define MACHINE_LIST_32                                                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define MACHINE_LIST_36                                                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35}"
#define MACHINE_LIST_64                                                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "  \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "  \
  "%59, %60, %61, %62, %63}"
#define MACHINE_LIST_68                                                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "  \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "  \
  "%59, %60, %61, %62, %63, %64, %65, %66, %67}"
#define MACHINE_LIST_100                                                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "  \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "  \
  "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "  \
  "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "  \
  "%97, %98, %99}"
#define MACHINE_LIST_128                                                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "  \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "  \
  "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "  \
  "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "  \
  "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "    \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"
#define MACHINE_SUMS_4 "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define MACHINE_SUMS_8 MACHINE_SUMS_4, "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
#define MACHINE_SUMS_16                                                                                    \
  MACHINE_SUMS_8, "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), \
      "+f"(c[15])
#define MACHINE_SUMS_32                                                                          \
  MACHINE_SUMS_16, "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), \
      "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), \
      "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
#define MACHINE_SUMS_36 MACHINE_SUMS_32, "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35])
#define MACHINE_SUMS_64                                                                          \
  MACHINE_SUMS_36, "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]), \
      "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]), \
      "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]), \
      "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
#define MACHINE_SUMS_68 MACHINE_SUMS_64, "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67])
#define MACHINE_SUMS_100                                                                         \
  MACHINE_SUMS_68, "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71]), "+f"(c[72]), "+f"(c[73]), \
      "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), "+f"(c[77]), "+f"(c[78]), "+f"(c[79]), "+f"(c[80]), \
      "+f"(c[81]), "+f"(c[82]), "+f"(c[83]), "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]), \
      "+f"(c[88]), "+f"(c[89]), "+f"(c[90]), "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), \
      "+f"(c[95]), "+f"(c[96]), "+f"(c[97]), "+f"(c[98]), "+f"(c[99])
#define MACHINE_SUMS_128                                                                                \
  MACHINE_SUMS_100, "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), "+f"(c[103]), "+f"(c[104]), "+f"(c[105]), \
      "+f"(c[106]), "+f"(c[107]), "+f"(c[108]), "+f"(c[109]), "+f"(c[110]), "+f"(c[111]), "+f"(c[112]), \
      "+f"(c[113]), "+f"(c[114]), "+f"(c[115]), "+f"(c[116]), "+f"(c[117]), "+f"(c[118]), "+f"(c[119]), \
      "+f"(c[120]), "+f"(c[121]), "+f"(c[122]), "+f"(c[123]), "+f"(c[124]), "+f"(c[125]), "+f"(c[126]), \
      "+f"(c[127])

// Operand numbers after the N / 2 sums are those of what follows, in its order.
#define MACHINE_WGMMA_SHARED_16(columns, count, type, a, b, keep, turn_a, turn_b)                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " keep ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
               "k16.f32." type "." type " " MACHINE_LIST_##count ", " a ", " b ", p, 1, 1, " turn_a       \
                                                                 ", " turn_b ";\n}"                       \
               : MACHINE_SUMS_##count                                                                     \
               : "l"(a_rows.description()), "l"(b_rows.description()), "r"(accumulate),                   \
                 "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)))
#define MACHINE_WGMMA_SHARED(count, columns, a, b, keep, turn_a, turn_b)                                    \
  if constexpr (kCount == count && kHasTf32Factors<Format>)                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " keep ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
                 "k8.f32.tf32.tf32 " MACHINE_LIST_##count ", " a ", " b ", p, 1, 1;\n}"                     \
                 : MACHINE_SUMS_##count                                                                     \
                 : "l"(a_rows.description()), "l"(b_rows.description()), "r"(accumulate));                  \
  else if constexpr (kCount == count && Format::kIsBf16)                                                    \
    MACHINE_WGMMA_SHARED_16(columns, count, "bf16", a, b, keep, turn_a, turn_b);                            \
  else if constexpr (kCount == count)                                                                       \
    MACHINE_WGMMA_SHARED_16(columns, count, "f16", a, b, keep, turn_a, turn_b);
#define MACHINE_WGMMA_HELD_16(columns, count, type, a0, a1, a2, a3, b, keep, turn_b)                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " keep ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
               "k16.f32." type "." type " " MACHINE_LIST_##count ", {" a0 ", " a1 ", " a2 ", " a3 "}, " b \
                                                                 ", p, 1, 1, " turn_b ";\n}"              \
               : MACHINE_SUMS_##count                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_rows.description()), "r"(accumulate),  \
                 "n"(static_cast<int>(kB)))
#define MACHINE_WGMMA_HELD(count, columns, a0, a1, a2, a3, b, keep, turn_b)         \
  if constexpr (kCount == count && Format::kIsBf16)                                 \
    MACHINE_WGMMA_HELD_16(columns, count, "bf16", a0, a1, a2, a3, b, keep, turn_b); \
  else if constexpr (kCount == count)                                               \
    MACHINE_WGMMA_HELD_16(columns, count, "f16", a0, a1, a2, a3, b, keep, turn_b);

/// Both factors in shared memory; N = 2 * kCount. With `accumulate` 0 the sums begin anew.
template <class Format, Factor kA, Factor kB, int kCount, class Left, class Right>
MACHINE_DEVICE void wgmma_shared(float (&c)[kCount], Left a_rows, Right b_rows, int accumulate) {
  static_assert(kCount == 4 || kCount == 8 || kCount == 16 || kCount == 32 || kCount == 36 || kCount == 64 ||
                kCount == 68 || kCount == 100 || kCount == 128);
  static_assert(!kHasTf32Factors<Format> || (kA == Factor::kPlain && kB == Factor::kPlain));
  MACHINE_WGMMA_SHARED(4, "8", "%4", "%5", "%6", "%7", "%8")
  MACHINE_WGMMA_SHARED(8, "16", "%8", "%9", "%10", "%11", "%12")
  MACHINE_WGMMA_SHARED(16, "32", "%16", "%17", "%18", "%19", "%20")
  MACHINE_WGMMA_SHARED(32, "64", "%32", "%33", "%34", "%35", "%36")
  MACHINE_WGMMA_SHARED(36, "72", "%36", "%37", "%38", "%39", "%40")
  MACHINE_WGMMA_SHARED(64, "128", "%64", "%65", "%66", "%67", "%68")
  MACHINE_WGMMA_SHARED(68, "136", "%68", "%69", "%70", "%71", "%72")
  MACHINE_WGMMA_SHARED(100, "200", "%100", "%101", "%102", "%103", "%104")
  MACHINE_WGMMA_SHARED(128, "256", "%128", "%129", "%130", "%131", "%132")
}

/// a [64, 16] in registers: of lane 4g + t of warp w rows 16w + g and 16w + g + 8, columns 2t, 2t + 1 and 8 more.
template <class Format, Factor kB, int kCount>
MACHINE_DEVICE void wgmma_held(float (&c)[kCount], const std::uint32_t* a, Panels b_rows, int accumulate) {
  static_assert(kCount == 4 || kCount == 8 || kCount == 16 || kCount == 32 || kCount == 36 || kCount == 64);
  static_assert(!kHasTf32Factors<Format>);
  MACHINE_WGMMA_HELD(4, "8", "%4", "%5", "%6", "%7", "%8", "%9", "%10")
  MACHINE_WGMMA_HELD(8, "16", "%8", "%9", "%10", "%11", "%12", "%13", "%14")
  MACHINE_WGMMA_HELD(16, "32", "%16", "%17", "%18", "%19", "%20", "%21", "%22")
  MACHINE_WGMMA_HELD(32, "64", "%32", "%33", "%34", "%35", "%36", "%37", "%38")
  MACHINE_WGMMA_HELD(36, "72", "%36", "%37", "%38", "%39", "%40", "%41", "%42")
  MACHINE_WGMMA_HELD(64, "128", "%64", "%65", "%66", "%67", "%68", "%69", "%70")
}

#undef MACHINE_WGMMA_SHARED
#undef MACHINE_WGMMA_SHARED_16
#undef MACHINE_WGMMA_HELD
#undef MACHINE_WGMMA_HELD_16
#undef MACHINE_LIST_4
#undef MACHINE_SUMS_4
#undef MACHINE_LIST_8
#undef MACHINE_SUMS_8
#undef MACHINE_LIST_16
#undef MACHINE_SUMS_16
#undef MACHINE_LIST_32
#undef MACHINE_SUMS_32
#undef MACHINE_LIST_36
#undef MACHINE_SUMS_36
#undef MACHINE_LIST_64
#undef MACHINE_SUMS_64
#undef MACHINE_LIST_68
#undef MACHINE_SUMS_68
#undef MACHINE_LIST_100
#undef MACHINE_SUMS_100
#undef MACHINE_LIST_128
#undef MACHINE_SUMS_128

}  // namespace headroom::machine
