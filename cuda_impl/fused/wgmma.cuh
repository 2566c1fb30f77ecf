// Warpgroup products: c [64, N] += a [64, 16] * b [16, N], fp32 sums, fp16 or bf16 factors.
//
// The PTX has no arrays: each N names its registers one by one, so the lists are spelled out once here and nowhere
// else. Factors in shared memory lie in swizzled rows of 128 bytes, or of 32 (plan.h); `Turned` factors are read across
// their rows.
#pragma once

#include <cstdint>

#include "fused/formats.cuh"
#include "fused/ptx.cuh"

namespace headroom::fused {

enum class Factor { kPlain = 0, kTurned = 1 };  ///< k runs along a row of 128 bytes, or across the rows

/// A matrix in shared memory as the instruction wants it described; describe() makes it. Only the lower half of the
/// description differs from one matrix to another, and all arithmetic stays in it.
template <int kRowBytes>
struct PanelsOf {
  static_assert(kRowBytes == 128 || kRowBytes == 32);
  std::uint32_t low;
  FUSED_DEVICE PanelsOf operator+(int further) const { return {low + static_cast<std::uint32_t>(further)}; }
  FUSED_DEVICE std::uint64_t description() const {
    constexpr std::uint64_t kEightRows = 8 * kRowBytes, kSwizzle = kRowBytes == 128 ? 1 : 3;
    return kEightRows >> 4 << 32 | kSwizzle << 62 | low;
  }
};
using Panels = PanelsOf<128>;
using NarrowPanel = PanelsOf<32>;

#define FUSED_LIST_4 "{%0, %1, %2, %3}"
#define FUSED_LIST_8 "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define FUSED_LIST_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define FUSED_LIST_32                                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define FUSED_LIST_36                                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35}"
#define FUSED_LIST_64                                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "  \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
  "%62, %63}"
#define FUSED_LIST_68                                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "  \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "  \
  "%62, %63, %64, %65, %66, %67}"
#define FUSED_LIST_100                                                                                   \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "     \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, " \
  "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, " \
  "%61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99}"
#define FUSED_LIST_128                                                                                     \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "  \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "   \
  "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "   \
  "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "   \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, " \
  "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, " \
  "%119, %120, %121, %122, %123, %124, %125, %126, %127}"
#define FUSED_REGISTERS_4 "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define FUSED_REGISTERS_8 FUSED_REGISTERS_4, "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
#define FUSED_REGISTERS_16                                                                       \
  FUSED_REGISTERS_8, "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), \
      "+f"(c[14]), "+f"(c[15])
#define FUSED_REGISTERS_32                                                                          \
  FUSED_REGISTERS_16, "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), \
      "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]),    \
      "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
#define FUSED_REGISTERS_36 FUSED_REGISTERS_32, "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35])
#define FUSED_REGISTERS_64                                                                          \
  FUSED_REGISTERS_36, "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]), \
      "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),    \
      "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),    \
      "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
#define FUSED_REGISTERS_68 FUSED_REGISTERS_64, "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67])
#define FUSED_REGISTERS_100                                                                         \
  FUSED_REGISTERS_64, "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), \
      "+f"(c[70]), "+f"(c[71]), "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]),    \
      "+f"(c[77]), "+f"(c[78]), "+f"(c[79]), "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]),    \
      "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]), "+f"(c[88]), "+f"(c[89]), "+f"(c[90]),    \
      "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95]), "+f"(c[96]), "+f"(c[97]),    \
      "+f"(c[98]), "+f"(c[99])
#define FUSED_REGISTERS_128                                                                                \
  FUSED_REGISTERS_100, "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), "+f"(c[103]), "+f"(c[104]), "+f"(c[105]), \
      "+f"(c[106]), "+f"(c[107]), "+f"(c[108]), "+f"(c[109]), "+f"(c[110]), "+f"(c[111]), "+f"(c[112]),    \
      "+f"(c[113]), "+f"(c[114]), "+f"(c[115]), "+f"(c[116]), "+f"(c[117]), "+f"(c[118]), "+f"(c[119]),    \
      "+f"(c[120]), "+f"(c[121]), "+f"(c[122]), "+f"(c[123]), "+f"(c[124]), "+f"(c[125]), "+f"(c[126]),    \
      "+f"(c[127])

// Operand numbers after the N / 2 sums: A0.. are the first that follow.
#define FUSED_SHARED(columns, count, type, a, b, keep, turn_a, turn_b)                                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " keep ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
               "k16.f32." type "." type " " FUSED_LIST_##count ", " a ", " b ", p, 1, 1, " turn_a         \
                                                               ", " turn_b ";\n}"                         \
               : FUSED_REGISTERS_##count                                                                  \
               : "l"(a_rows.description()), "l"(b_rows.description()), "r"(accumulate),                   \
                 "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)))
#define FUSED_HELD(columns, count, type, a0, a1, a2, a3, b, keep, turn_b)                                 \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " keep ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
               "k16.f32." type "." type " " FUSED_LIST_##count ", {" a0 ", " a1 ", " a2 ", " a3 "}, " b   \
                                                               ", p, 1, 1, " turn_b ";\n}"                \
               : FUSED_REGISTERS_##count                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_rows.description()), "r"(accumulate),  \
                 "n"(static_cast<int>(kB)))

/// Both factors in shared memory.
template <class Format, Factor kA, Factor kB, int kCount, class Left, class Right>
FUSED_DEVICE void multiply_shared(float (&c)[kCount], Left a_rows, Right b_rows, int accumulate) {
  static_assert(kCount == 4 || kCount == 8 || kCount == 16 || kCount == 32 || kCount == 36 || kCount == 64 ||
                kCount == 68 || kCount == 100 || kCount == 128);
  if constexpr (kCount == 4 && Format::kIsBf16)
    FUSED_SHARED("8", 4, "bf16", "%4", "%5", "%6", "%7", "%8");
  else if constexpr (kCount == 4)
    FUSED_SHARED("8", 4, "f16", "%4", "%5", "%6", "%7", "%8");
  else if constexpr (kCount == 8 && Format::kIsBf16)
    FUSED_SHARED("16", 8, "bf16", "%8", "%9", "%10", "%11", "%12");
  else if constexpr (kCount == 8)
    FUSED_SHARED("16", 8, "f16", "%8", "%9", "%10", "%11", "%12");
  else if constexpr (kCount == 16 && Format::kIsBf16)
    FUSED_SHARED("32", 16, "bf16", "%16", "%17", "%18", "%19", "%20");
  else if constexpr (kCount == 16)
    FUSED_SHARED("32", 16, "f16", "%16", "%17", "%18", "%19", "%20");
  else if constexpr (kCount == 32 && Format::kIsBf16)
    FUSED_SHARED("64", 32, "bf16", "%32", "%33", "%34", "%35", "%36");
  else if constexpr (kCount == 32)
    FUSED_SHARED("64", 32, "f16", "%32", "%33", "%34", "%35", "%36");
  else if constexpr (kCount == 36 && Format::kIsBf16)
    FUSED_SHARED("72", 36, "bf16", "%36", "%37", "%38", "%39", "%40");
  else if constexpr (kCount == 36)
    FUSED_SHARED("72", 36, "f16", "%36", "%37", "%38", "%39", "%40");
  else if constexpr (kCount == 100 && Format::kIsBf16)
    FUSED_SHARED("200", 100, "bf16", "%100", "%101", "%102", "%103", "%104");
  else if constexpr (kCount == 100)
    FUSED_SHARED("200", 100, "f16", "%100", "%101", "%102", "%103", "%104");
  else if constexpr (kCount == 64 && Format::kIsBf16)
    FUSED_SHARED("128", 64, "bf16", "%64", "%65", "%66", "%67", "%68");
  else if constexpr (kCount == 64)
    FUSED_SHARED("128", 64, "f16", "%64", "%65", "%66", "%67", "%68");
  else if constexpr (kCount == 68 && Format::kIsBf16)
    FUSED_SHARED("136", 68, "bf16", "%68", "%69", "%70", "%71", "%72");
  else if constexpr (kCount == 68)
    FUSED_SHARED("136", 68, "f16", "%68", "%69", "%70", "%71", "%72");
  else if constexpr (kCount == 128 && Format::kIsBf16)
    FUSED_SHARED("256", 128, "bf16", "%128", "%129", "%130", "%131", "%132");
  else if constexpr (kCount == 128)
    FUSED_SHARED("256", 128, "f16", "%128", "%129", "%130", "%131", "%132");
}

/// a in registers: of lane 4g + t of warp w rows 16w + g and 16w + g + 8, columns 2t, 2t + 1 and 8 more.
template <class Format, Factor kB, int kCount>
FUSED_DEVICE void multiply_held(float (&c)[kCount], const std::uint32_t* a, Panels b_rows, int accumulate) {
  static_assert(kCount == 4 || kCount == 8 || kCount == 16 || kCount == 32 || kCount == 36 || kCount == 64);
  if constexpr (kCount == 4 && Format::kIsBf16)
    FUSED_HELD("8", 4, "bf16", "%4", "%5", "%6", "%7", "%8", "%9", "%10");
  else if constexpr (kCount == 4)
    FUSED_HELD("8", 4, "f16", "%4", "%5", "%6", "%7", "%8", "%9", "%10");
  else if constexpr (kCount == 8 && Format::kIsBf16)
    FUSED_HELD("16", 8, "bf16", "%8", "%9", "%10", "%11", "%12", "%13", "%14");
  else if constexpr (kCount == 8)
    FUSED_HELD("16", 8, "f16", "%8", "%9", "%10", "%11", "%12", "%13", "%14");
  else if constexpr (kCount == 16 && Format::kIsBf16)
    FUSED_HELD("32", 16, "bf16", "%16", "%17", "%18", "%19", "%20", "%21", "%22");
  else if constexpr (kCount == 16)
    FUSED_HELD("32", 16, "f16", "%16", "%17", "%18", "%19", "%20", "%21", "%22");
  else if constexpr (kCount == 32 && Format::kIsBf16)
    FUSED_HELD("64", 32, "bf16", "%32", "%33", "%34", "%35", "%36", "%37", "%38");
  else if constexpr (kCount == 32)
    FUSED_HELD("64", 32, "f16", "%32", "%33", "%34", "%35", "%36", "%37", "%38");
  else if constexpr (kCount == 36 && Format::kIsBf16)
    FUSED_HELD("72", 36, "bf16", "%36", "%37", "%38", "%39", "%40", "%41", "%42");
  else if constexpr (kCount == 36)
    FUSED_HELD("72", 36, "f16", "%36", "%37", "%38", "%39", "%40", "%41", "%42");
  else if constexpr (kCount == 64 && Format::kIsBf16)
    FUSED_HELD("128", 64, "bf16", "%64", "%65", "%66", "%67", "%68", "%69", "%70");
  else if constexpr (kCount == 64)
    FUSED_HELD("128", 64, "f16", "%64", "%65", "%66", "%67", "%68", "%69", "%70");
}

#undef FUSED_SHARED
#undef FUSED_HELD
#undef FUSED_LIST_4
#undef FUSED_REGISTERS_4
#undef FUSED_LIST_8
#undef FUSED_REGISTERS_8
#undef FUSED_LIST_16
#undef FUSED_REGISTERS_16
#undef FUSED_LIST_32
#undef FUSED_REGISTERS_32
#undef FUSED_LIST_36
#undef FUSED_REGISTERS_36
#undef FUSED_LIST_64
#undef FUSED_REGISTERS_64
#undef FUSED_LIST_68
#undef FUSED_REGISTERS_68
#undef FUSED_LIST_100
#undef FUSED_REGISTERS_100
#undef FUSED_LIST_128
#undef FUSED_REGISTERS_128

}  // namespace headroom::fused
