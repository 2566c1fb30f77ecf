// What is trained, and in which arithmetic.
//
// A workload's name says its widths and batch size and can be parsed back, so a name on the command line is as
// good as an entry in a suite file.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headroom {

enum class Precision { kFp32, kTf32, kFp16, kBf16 };
inline constexpr std::array<Precision, 4> kAllPrecisions = {Precision::kFp32, Precision::kTf32,
                                                            Precision::kFp16, Precision::kBf16};

/// "fp32", "tf32", "fp16" or "bf16".
std::string_view to_string(Precision precision);
/// Throws InputError with the nearest valid name.
Precision parse_precision(std::string_view name);
/// What the loss gradient is multiplied by: fp16 16 times the smallest power of two of at least the batch
/// size, which the mean divides by; else 1.
double loss_scale(Precision precision, int batch_size);

/// Plain stochastic gradient descent: w -= learning_rate * dL/dw, where L is the mean loss over the batch.
struct Optimizer {
  double learning_rate = 0.003;
  bool operator==(const Optimizer&) const = default;
};

/// Where the samples come from; see dataset.h.
struct DatasetSpec {
  enum class Kind { kSynthetic, kIdx };
  Kind kind = Kind::kSynthetic;
  std::string folder;  ///< kIdx: the folder of the images and labels files, or the images file itself
  bool operator==(const DatasetSpec&) const = default;
};

inline constexpr int kMaxLayers = 16;
inline constexpr int kMaxWidth = 65536;

/// A multilayer perceptron with ReLU between layers and softmax cross-entropy at the end, and how it is trained.
struct Workload {
  std::string name;         ///< unique in a results file; default_name() unless a suite gives another
  std::vector<int> widths;  ///< inputs, hidden widths, classes: layers() + 1 entries
  int batch_size = 0;
  Optimizer optimizer;
  DatasetSpec dataset;
  std::uint64_t seed = 1;  ///< initial parameters, synthetic data and the order of samples

  int layers() const { return static_cast<int>(widths.size()) - 1; }  ///< weight matrices
  int inputs() const { return widths.front(); }
  int classes() const { return widths.back(); }
  std::int64_t parameter_count() const;  ///< weights and biases
  /// Operations (a multiply-add counts two) of the matrix products of one step:
  /// forward, weight gradient, and input gradient of every layer but the first.
  double flops_per_step() const;
};

/// "mlp-784x128x128x128x10-b32".
std::string default_name(const std::vector<int>& widths, int batch_size);

/// Parses a name as written by default_name(). Throws InputError that shows the name and a right one.
Workload parse_workload_name(std::string_view name);

/// Throws InputError unless 1 to kMaxLayers layers, widths of 1 to kMaxWidth, batch of 1 or more,
/// a learning rate that is finite and positive.
void validate(const Workload& workload);

/// The candidate with the smallest edit distance to `name`, for "did you mean"; empty if there are none.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace headroom
