// Networks of the tests of cuda-resident's kernels that have their plan as constants of their code.
#pragma once

#include <memory>
#include <vector>

#include "resident_test_trainer.h"

namespace headroom {

/// Networks of the tests of the column kernel, in both formats: small ones, those of the size that it is made for, and those that fit
/// in bf16 only.
inline constexpr const char* kSmallColumns[] = {"mlp-33x136x5-b17",
                                                "mlp-33x136x17x5-b17",
                                                "mlp-33x24x17x128x5-b17",
                                                "mlp-33x24x17x120x9x5-b17",
                                                "mlp-20x16x40x9x33x16x24x12x16-b32",
                                                "mlp-231x136x17x9x200x5-b17"};
inline constexpr const char* kColumns[] = {"mlp-784x256x10-b32",
                                           "mlp-784x256x256x10-b32",
                                           "mlp-784x256x256x256x10-b32",
                                           "mlp-784x256x256x256x256x10-b32",
                                           "mlp-784x128x128x128x10-b32",
                                           "mlp-896x256x200x9x16-b31",
                                           "mlp-784x128x128x128x128x128x128x10-b32",
                                           "mlp-16x129x120x256x2-b1"};
inline constexpr const char* kDeepColumns[] = {"mlp-231x136x17x200x9x40x256x16-b32",
                                               "mlp-784x256x256x256x256x256x10-b32",
                                               "mlp-784x256x256x256x256x256x256x10-b32"};
/// The same with an optimizer that has slots, in shared memory and in device memory.
inline constexpr const char* kSmallColumnsWithSlots[] = {
    "mlp-33x136x5-b17-adam",         "mlp-33x136x17x5-b17-momentum0.9", "mlp-33x24x17x128x5-b17-adamw",
    "mlp-33x24x17x120x9x5-b17-adam", "mlp-231x136x17x9x200x5-b17-adam", "mlp-231x24x17x9x5-b17-adam"};
inline constexpr const char* kColumnsWithSlots[] = {
    "mlp-784x128x128x128x10-b32-adam",      "mlp-784x256x256x256x10-b32-adam",
    "mlp-896x256x200x9x16-b31-momentum0.9", "mlp-17x64x64x6-b32-adamw",
    "mlp-784x256x256x256x256x10-b32-adamw", "mlp-784x128x128x128x128x128x128x10-b32-adam"};

/// With other activations and losses.
inline constexpr const char* kSmallColumnsWithRules[] = {
    "mlp-33x24x17x9x5-b17-tanh-mse-adam", "mlp-33x24x17x5-b17-silu-bce-momentum0.9",
    "mlp-33x24x17x9x6x5-b17-gelu",        "mlp-33x136x5-b17-elu-mse",
    "mlp-33x24x5-b17-silu-mse-adamw",     "mlp-33x24x17x9x1-b17-bce"};
inline constexpr const char* kColumnsWithRules[] = {
    "mlp-17x64x64x6-b32-tanh-mse-adam", "mlp-784x256x256x256x10-b32-gelu-adam",
    "mlp-3x50x50x1-b32-silu-mse-adamw", "mlp-784x256x10-b31-elu-bce-momentum0.9"};

/// With batches over 32: one hidden layer, two and three of 16 members, three and five of 8, slots, targets, and sums that are kept.
inline constexpr const char* kSmallHalves[] = {"mlp-33x136x5-b64",
                                               "mlp-33x136x17x5-b33",
                                               "mlp-231x136x17x9x5-b47",
                                               "mlp-33x24x17x128x5-b48",
                                               "mlp-20x16x40x9x33x16x5-b64",
                                               "mlp-33x24x17x128x5-b48-adamw",
                                               "mlp-33x24x17x9x5-b33-tanh-mse-adam",
                                               "mlp-33x24x17x9x6x5-b64-gelu"};
inline constexpr const char* kHalves[] = {"mlp-784x256x256x256x10-b64",
                                          "mlp-784x128x128x128x10-b33",
                                          "mlp-784x256x256x10-b63",
                                          "mlp-784x256x10-b40",
                                          "mlp-17x64x64x6-b64",
                                          "mlp-17x64x64x6-b64-tanh-mse-adam",
                                          "mlp-784x128x128x128x10-b64-adam",
                                          "mlp-784x128x128x128x128x128x128x128x10-b48"};

struct Cell {
  const char* name;
  Precision precision;
};
/// On several devices: one, two and three hidden layers of 16 and 8 members, four clusters, sums that are kept and targets, four devices
/// with slots; and of full size.
inline constexpr const char* kSmallRanks[] = {"mlp-33x136x5-b17-g2",
                                              "mlp-33x136x17x5-b32-g2",
                                              "mlp-33x24x17x128x5-b17-g2",
                                              "mlp-231x24x17x9x5-b17-g2",
                                              "mlp-33x24x17x9x6x5-b17-gelu-mse-g2",
                                              "mlp-33x24x17x5-b17-adam-g4"};
inline constexpr const char* kRanks[] = {"mlp-784x128x128x128x10-b32-g2", "mlp-784x256x256x256x10-b32-g2",
                                         "mlp-17x64x64x6-b32-tanh-mse-adam-g2",
                                         "mlp-784x128x128x128x10-b32-adam-g2", "mlp-784x256x10-b31-g2"};

/// Slices on several devices: one to four hidden layers, one and two pairs a warp, classes in a second tile, four devices.
inline constexpr Cell kSmallSliceRanks[] = {
    {"mlp-33x24x17x128x5-b17-g2", Precision::kFp32}, {"mlp-231x136x17x9x10-b32-g2", Precision::kFp32},
    {"mlp-33x24x5-b17-g2", Precision::kFp16},        {"mlp-33x24x17x128x9x12-b31-g2", Precision::kBf16},
    {"mlp-33x136x17x5-b32-g2", Precision::kBf16},    {"mlp-33x24x17x5-b17-g4", Precision::kBf16}};
inline constexpr Cell kSliceRanks[] = {{"mlp-784x128x128x128x10-b32-g2", Precision::kFp32},
                                       {"mlp-784x256x256x256x10-b32-g2", Precision::kFp32},
                                       {"mlp-784x512x512x512x10-b32-g2", Precision::kFp32},
                                       {"mlp-784x512x512x512x10-b32-g2", Precision::kFp16},
                                       {"mlp-784x512x512x512x10-b32-g2", Precision::kBf16},
                                       {"mlp-784x1024x1024x1024x10-b32-g2", Precision::kBf16},
                                       {"mlp-784x1000x16-b31-g2", Precision::kFp16},
                                       {"mlp-500x400x300x200x100x10-b32-g2", Precision::kBf16}};

/// Networks of slices in both forms, and of other depths with constants.
inline constexpr Cell kFormCells[] = {{"mlp-784x128x128x128x10-b32", Precision::kBf16},
                                      {"mlp-784x1024x1024x1024x10-b32", Precision::kBf16},
                                      {"mlp-784x128x128x128x10-b32", Precision::kTf32},
                                      {"mlp-784x256x256x256x10-b32", Precision::kTf32},
                                      {"mlp-784x128x128x128x10-b32", Precision::kFp32}};
inline constexpr Cell kDepthCells[] = {{"mlp-784x128x128x128x128x10-b32", Precision::kTf32},
                                       {"mlp-33x72x17x7x9x5-b17", Precision::kTf32},
                                       {"mlp-784x512x512x512x512x10-b32", Precision::kFp16}};

/// Networks of slices with slots, in each of these precisions.
struct SlotCase {
  const char* name;
  std::vector<Precision> precisions;
};
inline const std::vector<SlotCase> kSmallSlots = {
    {"mlp-33x24x17x9x10-b17-adam", {kAllPrecisions.begin(), kAllPrecisions.end()}},
    {"mlp-33x24x9-b17-momentum0.9", {Precision::kFp32}},
    {"mlp-20x264x17x5-b9-adamw", {Precision::kFp32}},
    {"mlp-33x24x264x9x5-b17-adamw", {Precision::kBf16}}};
inline const std::vector<SlotCase> kSlots = {
    {"mlp-784x128x128x128x10-b32-adam", {Precision::kFp32, Precision::kTf32}},
    {"mlp-784x512x512x512x10-b32-adam", {kAllPrecisions.begin(), kAllPrecisions.end()}},
    {"mlp-784x256x256x256x10-b32-adamw", {Precision::kFp32, Precision::kTf32}},
    {"mlp-17x64x64x6-b32-adam", {Precision::kFp32, Precision::kTf32}},
    {"mlp-896x300x10-b31-momentum0.9", {kAllPrecisions.begin(), kAllPrecisions.end()}},
    {"mlp-784x128x128x128x128x128x16-b32-adam", {Precision::kFp32, Precision::kTf32}}};

inline std::unique_ptr<Trainer> make_column_trainer(const Workload& workload, Precision precision,
                                                    const DatasetView& data, const Parameters& initial,
                                                    ResidentOptions options) {
  options.kernel = ResidentOptions::Kernel::kColumns;
  return make_resident_test_trainer(workload, precision, data, initial, options);
}

}  // namespace headroom
