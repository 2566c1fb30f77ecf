// The networks that the tests of cuda-tiled train, in a header of their own: compile_tiled_kernels.cpp compiles the kernels of all of them.
#pragma once

#include <iterator>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "core/workload.h"
#include "sanitizer.h"
#include "shortened.h"
#include "tiled/schedule.h"
#include "tiled/trainer.h"

namespace headroom {

/// A precision, and whether the kernel for every GPU trains in it: fp32 and tf32 have no other.
struct TiledForm {
  Precision precision;
  bool portable;
};
inline void PrintTo(const TiledForm& form, std::ostream* out) {
  *out << to_string(form.precision) << (form.portable ? " portable" : "");
}
inline constexpr TiledForm kTiledForms[] = {
    {Precision::kFp32, true},  {Precision::kTf32, true},  {Precision::kFp16, true}, {Precision::kBf16, true},
    {Precision::kFp16, false}, {Precision::kBf16, false}, {Precision::kTf32, false}};
inline std::span<const tiled::Tiling> tilings_of(const TiledForm& form) {
  if (form.portable) return tiled::portable_tilings(form.precision);
  return tiled::wgmma_tilings(form.precision);
}

struct TiledCase {
  std::string name;
  TiledOptions options = {};
};
using TiledCases = std::vector<TiledCase>;

inline TiledCases as_chosen(std::initializer_list<const char*> names) {
  TiledCases cases;
  for (const char* name : names) cases.push_back({name});
  return cases;
}
inline const TiledCases kSmallTiled = as_chosen(
    {"mlp-33x7-b31", "mlp-1x2-b1", "mlp-64x64x10-b64", "mlp-20x70x130x10-b130", "mlp-130x65x9x40x64-b70"});
inline const TiledCases kSmallTiledOutputs = as_chosen(
    {"mlp-20x40x65-b40", "mlp-9x131-b70", "mlp-20x33x70-b66-tanh-mse", "mlp-12x40x133-b20-gelu-bce-adam"});
inline const TiledCases kLargeTiled =
    as_chosen({"mlp-784x256x256x256x10-b64", "mlp-784x512x512x512x10-b512", "mlp-784x1024x1024x1024x10-b256",
               "mlp-784x256x256x256x10-b1024-tanh-adam", "mlp-100x300x260x10-b4100",
               "mlp-48x200x130x12-b3000-elu-mse-adam"});
inline const TiledCases kTiledTwice =
    as_chosen({"mlp-784x256x256x256x10-b64", "mlp-784x512x512x512x10-b1024-adam",
               "mlp-90x70x200x100-b300-gelu-mse", "mlp-48x200x100x12-b3000-elu-mse-adam"});
inline const TiledCases kSmallTiledNaNs = as_chosen(
    {"mlp-33x7-b31", "mlp-20x24x70x10-b8", "mlp-40x70x67-b70", "mlp-20x24x33x1-b8-silu-mse-adamw",
     "mlp-33x40x7-b31-gelu-bce-momentum0.9", "mlp-20x24x33x70-b8-elu-mse-adam", "mlp-20x24x5-b8-tanh"});
/// With cross-entropy: an infinite weight makes a squared error infinite.
inline const TiledCases kTiledNaNs =
    as_chosen({"mlp-33x7-b31", "mlp-20x24x70x10-b8", "mlp-40x70x67-b70", "mlp-20x24x5-b8-tanh-adam"});
inline constexpr const char* kTiledSplit = "mlp-20x70x40x10-b70-adam";
inline constexpr const char* kTiledFarApart = "mlp-20x24x10-b8-tanh-adam";
inline constexpr const char* kTiledState = "mlp-33x70x5x3-b4-adam";
inline constexpr const char* kTiledLosses = "mlp-20x24x10-b8";
inline constexpr const char* kTiledMemory = "mlp-20x24x10-b8-adam";
inline constexpr const char* kTiledTraced = "mlp-20x70x10-b70";

/// With every tiling.
inline TiledCases small_tiles(const TiledForm& form) {
  TiledCases cases;
  for (const tiled::Tiling& tiling : tilings_of(form))
    for (const char* name : {"mlp-70x135x66x10-b150", "mlp-20x67x130x3-b70-mse-adam",
                             "mlp-20x67x130x90-b70-bce-momentum0.9", "mlp-20x67x130x3-b70-elu-mse"})
      cases.push_back({name, {.tiling = tiling}});
  return cases;
}
/// Of whole tiles, for which the wgmma kernel has no look at edges.
inline TiledCases whole_tiles(const TiledForm& form) {
  TiledCases cases;
  if (form.portable) return cases;
  for (const tiled::Tiling& tiling : tilings_of(form))
    for (const char* name : {"mlp-70x128x256x10-b256", "mlp-20x128x128x3-b128-silu-mse-adam"})
      cases.push_back({name, {.tiling = tiling}});
  return cases;
}
/// Weight gradients in parts; none in precisions that have no parts.
inline TiledCases small_parts(const TiledForm& form) {
  TiledCases cases;
  if (form.portable && form.precision != Precision::kFp32) return cases;
  for (const tiled::Tiling& tiling : tilings_of(form))
    cases.push_back({"mlp-20x67x130x3-b150-mse-adam", {.tiling = tiling, .slabs_of_part = 1}});
  cases.push_back({"mlp-70x66x9-b200", {.slabs_of_part = 1}});
  cases.push_back({"mlp-20x40x70-b130-tanh-momentum0.9", {.slabs_of_part = 1}});
  return cases;
}
/// What the smallest GPUs of compute capability 8.6 and newer give a thread block. The kernels are those of small_tiles().
inline TiledCases small_rings(const TiledForm& form) {
  TiledCases cases;
  if (!form.portable) return cases;
  for (const tiled::Tiling& tiling : tilings_of(form))
    cases.push_back({"mlp-70x135x66x10-b150", {.tiling = tiling, .shared_bytes = 99 << 10}});
  return cases;
}
/// Every activation with every loss and every optimizer, on networks of one to six layers. Each combination has its turn in one of the
/// forms, as each is a kernel of its own.
inline TiledCases small_rules(const TiledForm& form) {
  const char* shapes[] = {"mlp-33x7",         "mlp-20x70x12",         "mlp-17x66x33x5",
                          "mlp-9x40x71x20x6", "mlp-12x20x65x30x10x4", "mlp-20x31x24x40x35x30x8"};
  const char* batches[] = {"-b31", "-b130", "-b64", "-b3", "-b70"};
  const char* optimizers[] = {"", "-momentum0.9", "-adam", "-adamw"};
  std::size_t place = 0;
  while (kTiledForms[place].precision != form.precision || kTiledForms[place].portable != form.portable)
    ++place;
  TiledCases cases;
  std::size_t index = 0;
  for (const Activation activation : kAllActivations)
    for (const Loss loss : kAllLosses)
      for (const char* optimizer : optimizers) {
        const std::size_t turn = index++;
        constexpr std::size_t kTurns = 6;  // so wgmma's tf32 has those of fp32
        if ((turn + turn / kTurns + place) % kTurns != 0) continue;
        std::string name = shapes[turn % std::size(shapes)];
        name += batches[turn / 2 % std::size(batches)];
        if (activation != Activation::kRelu) name += "-" + std::string(to_string(activation));
        if (loss != Loss::kCrossEntropy) name += "-" + std::string(to_string(loss));
        cases.push_back({name + optimizer});
      }
  return cases;
}
inline std::string sixteen_layers() {
  std::string name = "mlp-64";
  for (int layer = 1; layer < 16; ++layer) name += "x64";
  return name + "x10-b64";
}

/// On several devices: one layer, odd batches, rows of tiles that end inside of a rank's rows, slots, many outputs, three and four
/// devices, large tiles, many tiles a multiprocessor, and weight gradients in parts.
inline constexpr TiledForm kTiledRankForms[] = {
    {Precision::kFp32, true}, {Precision::kTf32, true}, {Precision::kFp16, false}, {Precision::kBf16, false}};
inline TiledCases small_ranks(const TiledForm& form) {
  TiledCases cases = as_chosen({"mlp-33x7-b31-g2", "mlp-20x70x40x10-b70-g2", "mlp-33x40x7-b31-adam-g2",
                                "mlp-20x67x130x3-b37-mse-adam-g2", "mlp-9x40x65-b20-g2",
                                "mlp-20x40x24x10-b33-tanh-momentum0.9-g3", "mlp-20x24x10-b9-g4"});
  cases.push_back({"mlp-20x70x130x10-b70-g2", {.tiling = tilings_of(form)[2]}});
  cases.push_back({"mlp-20x70x40x10-b70-g2", {.tiling = tilings_of(form)[0], .multiprocessors = 3}});
  if (tiled::has_parts(tilings_of(form)[0], form.precision))
    cases.push_back({"mlp-20x67x130x3-b75-mse-adam-g2", {.slabs_of_part = 1}});
  return cases;
}
inline constexpr const char* kTiledRanksSplit = "mlp-20x70x40x10-b37-adam-g2";
inline const TiledCases kTiledRanks =
    as_chosen({"mlp-784x128x128x128x10-b32-g2", "mlp-784x512x512x512x10-b64-g2",
               "mlp-784x256x256x256x10-b1000-adam-g2", "mlp-100x300x260x100-b300-gelu-g2"});

/// All of a form, but for random networks.
inline TiledCases all_tiled_cases(const TiledForm& form) {
  TiledCases all = {{sixteen_layers()},
                    {kTiledSplit},
                    {kTiledFarApart},
                    {kTiledState},
                    {kTiledLosses},
                    {kTiledMemory},
                    {kTiledTraced, {.timed = true}}};
  for (const TiledCases& cases :
       {kSmallTiled, kSmallTiledOutputs, kLargeTiled, kTiledTwice, kSmallTiledNaNs, kTiledNaNs,
        small_tiles(form), whole_tiles(form), small_parts(form), small_rings(form), small_rules(form)})
    all.insert(all.end(), cases.begin(), cases.end());
  for (const TiledForm& of_ranks : kTiledRankForms)
    if (of_ranks.precision == form.precision && of_ranks.portable == form.portable) {
      const TiledCases small = small_ranks(form);
      all.insert(all.end(), small.begin(), small.end());
      all.insert(all.end(), kTiledRanks.begin(), kTiledRanks.end());
      all.push_back({kTiledRanksSplit});
    }
  return all;
}

}  // namespace headroom
