// Loss and gradient of one batch in double sums, with the roundings of a contract at its points, and on demand perturbed as the
// order of sums and a processor's functions would.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/dataset_view.h"
#include "core/record.h"
#include "core/workload.h"
#include "oracle/products.h"
#include "oracle/wide_state.h"

namespace headroom {

/// What is rounded to what on its way into a product, and what is stored in 16 bits.
struct Roundings {
  ProductRounding input = ProductRounding::kNone, weight = ProductRounding::kNone;
  /// Activations and gradients: slopes and bias sums then see rounded values too.
  bool stores_rounded = false;
  /// What PyTorch's autocast rounds besides: the bias, a layer's sums with it (the outputs too), the input gradient before it meets
  /// the slope, and the gradients of weights and biases. With `sums` the slope of elu comes from the sum. On a GPU its cross-entropy
  /// takes a log-softmax in 16 bits and then a mean in fp32: the log-probabilities are rounded, and what the mean multiplies each by
  /// on the way back. (On a CPU autocast widens the outputs first.) And there a layer of one output is a product of matrix and vector,
  /// which is rounded before the bias is added.
  bool bias = false, sums = false, before_slope = false, weight_gradient = false, bias_gradient = false,
       log_probabilities = false, product_of_one_output = false;
  /// What compilers leave unrounded where they make a product or a sum within the kernel beside it: the weights and inputs of a last
  /// layer of one output (their slopes too), the gradient of such an output, and the terms of bias gradients.
  bool leaves_one_output_factors = false, leaves_one_output_gradient = false, leaves_bias_terms = false;
  double loss_scale = 1;
};
Roundings roundings_of(Precision precision, Contract contract, int batch_size);

/// Random signs, the same for the same seed on every machine and number of threads, and how large what they stand before is.
struct Perturbation {
  std::uint64_t seed = 0;
  bool is_cut_off =
      false;  ///< sums lose what tensor cores cut off, which is more than rounded fp32 sums lose
  /// Each product's factors meet one of a library's tf32 roundings, to nearest or cut off: cuts_off().
  bool draws_tf32 = false;
  int copy = 0;  ///< whose turn it is to cut off
  /// Each sum moves besides by this share of what it is where its terms have random signs.
  double left_rounding = 0;
};

enum class Product { kForward, kInputGradient, kWeightGradient };
/// Whether this copy cuts off the factors of a layer's product. A tensor's gradient depends on all forward products, on the input
/// gradients above it and on one weight gradient. Among sixteen copies any two of these do each of the four combinations four times, up
/// to seven layers; any three do each of the eight twice, up to four layers. So no combination of a few products is left out.
bool cuts_off(const Perturbation& perturbation, Product product, int layer, int layers);

/// How far a perturbed sum of so many products moves, for each unit of its factors' norms.
double sum_error(const Perturbation& perturbation, std::int64_t terms);
/// How far a function's value moves, and half a unit in the last place of fp32.
inline constexpr double kFunctionError = 0x1p-22, kUnit = 0x1p-24;

/// Euclidean norms of the factors of one evaluation's products, from which follows how far another order may move each sum.
struct FactorNorms {
  struct Layer {
    std::vector<double> input_rows, input_columns;        // [batch], [in]
    std::vector<double> weight_rows, weight_columns;      // [out], [in]
    std::vector<double> gradient_rows, gradient_columns;  // [batch], [out]
  };
  std::vector<Layer> layers;
};

/// Owns the space for activations.
class GradientOfBatch {
 public:
  GradientOfBatch(const Workload& workload, const DatasetView& data);

  /// The mean loss over batch `step` mod batches; `gradient` is that of the mean loss, unscaled, flat order.
  double operator()(const Values& parameters, std::int64_t step, const Roundings& roundings,
                    Values& gradient) {
    return evaluate(parameters, step, roundings, nullptr, nullptr, gradient);
  }
  /// Every sum moves by up to what summing in fp32 in another order may move it, and every function's value by some units in its
  /// last place. `norms`: of the unperturbed evaluation.
  double operator()(const Values& parameters, std::int64_t step, const Roundings& roundings,
                    const Perturbation& perturbation, const FactorNorms& norms, Values& gradient) {
    return evaluate(parameters, step, roundings, &perturbation, &norms, gradient);
  }
  /// Of the evaluation before.
  FactorNorms norms() const;

 private:
  double evaluate(const Values& parameters, std::int64_t step, const Roundings& roundings,
                  const Perturbation* perturbation, const FactorNorms* norms, Values& gradient);
  /// What the inputs of a layer are rounded to.
  ProductRounding rounding_of_inputs(int layer) const;
  void load_inputs(std::int64_t first_row);
  void load_weights(const Values& parameters, int layer);
  void forward(const Values& parameters, int layer);
  void activate(int layer);
  double loss_and_its_gradient(std::int64_t first_row);
  double cross_entropy(std::int64_t row, std::int32_t label, double* gradient) const;
  double loss_of_targets(const double* output, const float* target, double* gradient) const;
  void backward(int layer, Values& gradient);
  bool is_last_of_one(int layer) const { return layer + 1 == layers_ && widths_.back() == 1; }
  void round_all(ProductRounding rounding, PaddedMatrix<double>& matrix);
  bool draws_tf32() const { return perturbation_ != nullptr && perturbation_->draws_tf32; }
  const PaddedMatrix<double>& entering(const PaddedMatrix<double>& factor, Product product, int layer,
                                       PaddedMatrix<double>& space) const;
  std::uint64_t seed_of(std::uint64_t place) const;
  const TensorRange& weight_range(int layer) const { return ranges_[2 * layer]; }
  const TensorRange& bias_range(int layer) const { return ranges_[2 * layer + 1]; }

  std::vector<int> widths_;
  Activation activation_;
  Loss loss_;
  int layers_;
  std::int64_t batch_;
  DatasetView data_;
  std::vector<TensorRange> ranges_;
  std::vector<PaddedMatrix<double>> values_;     // inputs, hidden activations, logits: [batch, widths[layer]]
  std::vector<PaddedMatrix<double>> slopes_;     // of hidden activations: [batch, widths[layer + 1]]
  std::vector<PaddedMatrix<double>> weights_;    // as they enter the products: [out, in]
  std::vector<PaddedMatrix<double>> gradients_;  // of each layer's output, scaled: [batch, out]
  PaddedMatrix<double> left_, right_;            // a product's factors, where each product rounds for itself
  std::vector<double> bias_, losses_;
  // Of the evaluation at hand.
  Roundings roundings_;
  const Perturbation* perturbation_ = nullptr;
  const FactorNorms* norms_ = nullptr;
};

}  // namespace headroom
