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
/// What the loss gradient is multiplied by: fp16 16 times the smallest power of two of at least the (joined) batch
/// size, which the mean divides by; else 1.
double loss_scale(Precision precision, int batch_size);

/// What hidden layers apply to each of their sums z: relu max(z, 0), tanh, silu z / (1 + exp(-z)), gelu
/// z (1 + erf(z / sqrt(2))) / 2, elu z or exp(z) - 1 (alpha 1). The last layer applies nothing.
enum class Activation { kRelu, kTanh, kSilu, kGelu, kElu };
inline constexpr std::array<Activation, 5> kAllActivations = {
    Activation::kRelu, Activation::kTanh, Activation::kSilu, Activation::kGelu, Activation::kElu};

/// Of the outputs y against labels or targets t: softmax cross-entropy over int32 labels, a mean over the batch; mean squared
/// error (y - t)^2 and binary cross-entropy with logits log(1 + exp(y)) - t y over fp32 targets, means over batch and outputs.
enum class Loss { kCrossEntropy, kMeanSquaredError, kBinaryCrossEntropy };
inline constexpr std::array<Loss, 3> kAllLosses = {Loss::kCrossEntropy, Loss::kMeanSquaredError,
                                                   Loss::kBinaryCrossEntropy};

/// How parameters w follow the gradient g of the loss, as torch.optim does it, in fp32; t = step + 1:
///   sgd    b = momentum b + g;  w -= learning_rate b  (no b, and g in its place, without momentum)
///   adam   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
///          w -= learning_rate / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
///   adamw  w *= 1 - learning_rate weight_decay, then as adam
/// b, or m and v, are the slots: fp32 values for each parameter, zero at step 0.
struct Optimizer {
  enum class Kind { kSgd, kAdam, kAdamW };
  Kind kind = Kind::kSgd;
  double learning_rate = 0.003;
  double momentum = 0;                                ///< sgd
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< adam, adamw
  double weight_decay = 0.01;                         ///< adamw

  int slots() const { return kind != Kind::kSgd ? 2 : momentum != 0 ? 1 : 0; }
  bool operator==(const Optimizer&) const = default;
};
inline constexpr std::array<Optimizer::Kind, 3> kAllOptimizers = {
    Optimizer::Kind::kSgd, Optimizer::Kind::kAdam, Optimizer::Kind::kAdamW};

std::string_view to_string(Activation activation);  ///< "relu", "tanh", "silu", "gelu", "elu"
std::string_view to_string(Loss loss);              ///< "cross-entropy", "mse", "bce"
std::string_view to_string(Optimizer::Kind kind);   ///< "sgd", "adam", "adamw"
/// What torch.optim calls the slots: "momentum_buffer", or "exp_avg" and "exp_avg_sq".
std::vector<std::string> slot_names(const Optimizer& optimizer);
// These throw InputError with the nearest valid name.
Activation parse_activation(std::string_view name);
Loss parse_loss(std::string_view name);
Optimizer::Kind parse_optimizer(std::string_view name);

/// Fully connected layers with biases.
struct Model {
  std::vector<int> widths;  ///< inputs, hidden widths, outputs
  Activation activation = Activation::kRelu;
  bool operator==(const Model&) const = default;
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
inline constexpr int kMaxDevices = 64;

/// A multilayer perceptron and how it is trained.
///
/// On several devices it is trained data-parallel: each of them is a rank and has its own batch of `batch_size` samples.
/// Step s trains with the joined batch of devices * batch_size samples, of which rank r has samples r * batch_size to
/// (r + 1) * batch_size - 1. Loss and gradient are those of the joined batch, and so is fp16's loss scale: what is
/// trained is what one device trains with joined().
struct Workload {
  std::string name;  ///< unique in a results file; default_name() unless a suite gives another
  Model model;
  Loss loss = Loss::kCrossEntropy;
  int batch_size = 0;  ///< of each device
  Optimizer optimizer;
  DatasetSpec dataset;
  std::uint64_t seed = 1;  ///< initial parameters, synthetic data and the order of samples
  int devices = 1;         ///< GPUs of one host, 1 to kMaxDevices

  int layers() const { return static_cast<int>(model.widths.size()) - 1; }  ///< weight matrices
  int inputs() const { return model.widths.front(); }
  int outputs() const { return model.widths.back(); }
  int classes() const { return outputs(); }                       ///< with cross-entropy
  int joined_batch_size() const { return devices * batch_size; }  ///< samples of a step
  Workload joined() const;     ///< the same training on one device; of the same name
  Workload of_a_rank() const;  ///< what one of the devices computes between exchanges; of the same name
  std::int64_t parameter_count() const;  ///< weights and biases
  /// Operations (a multiply-add counts two) of the matrix products of one step, of all devices together:
  /// forward, weight gradient, and input gradient of every layer but the first.
  double flops_per_step() const;
};

/// "mlp-784x128x10-b32", with what is no default behind it: "mlp-17x64x64x6-b64-tanh-mse-adam", "mlp-8x4-b2-momentum0.9",
/// "mlp-784x128x10-b32-g2" on two devices. Of the optimizer's numbers only the momentum is in it.
std::string default_name(const Workload& workload);

/// Parses a name as written by default_name(). Throws InputError that shows the name and a right one.
Workload parse_workload_name(std::string_view name);

/// Throws InputError unless 1 to kMaxLayers layers, widths of 1 to kMaxWidth, batch of 1 or more, 1 to kMaxDevices devices whose
/// joined batch is a 32-bit number; a learning rate and an epsilon
/// that are finite and positive; momentum, betas from 0 to below 1, a weight decay of 0 or more.
void validate(const Workload& workload);

/// Why a backend that trains on at most `max_devices` devices refuses a workload of more: "trains on one device".
std::string trains_on_fewer(int max_devices);

/// Why a backend that trains nothing but ReLU, cross-entropy and plain sgd refuses `workload`; empty if it need not.
std::string beyond_plain_training(const Workload& workload);

/// The candidate with the smallest edit distance to `name`, for "did you mean"; empty if there are none.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace headroom
