// Loss and gradient of one batch on the device: bench/oracle/gradient.h, with the same roundings and the same perturbations, and other
// random signs.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/workload.h"
#include "device/memory.h"
#include "device/stream.h"
#include "oracle/gradient.h"
#include "oracle/kernels.h"

namespace headroom {

/// Owns the data and the space for activations.
class DeviceGradient {
 public:
  DeviceGradient(const Workload& workload, const DatasetView& data);

  /// The mean loss over batch `step` mod batches; `gradient` is that of the mean loss, unscaled, flat order. With a perturbation sums
  /// move by what the norms say that were measured last.
  double operator()(const double* parameters, std::int64_t step, const Roundings& roundings, double* gradient,
                    Stream& stream, const Perturbation* perturbation = nullptr);
  /// Of the evaluation before, which was of these parameters.
  void measure_norms(const double* parameters, Stream& stream);

 private:
  struct Norms {
    DeviceBuffer<double> input_rows, input_columns, weight_rows, weight_columns, gradient_rows,
        gradient_columns;
  };

  int layers() const { return static_cast<int>(widths_.size()) - 1; }
  const TensorRange& weight_range(int layer) const { return ranges_[2 * static_cast<std::size_t>(layer)]; }
  const TensorRange& bias_range(int layer) const { return ranges_[2 * static_cast<std::size_t>(layer) + 1]; }
  std::uint64_t seed_of(int place, int layer) const;
  oracle::Signs signs(int place, int layer) const;
  bool is_last_of_one(int layer) const { return layer + 1 == layers() && widths_.back() == 1; }
  bool leaves_factors(int layer) const;
  /// What the inputs of a layer are rounded to.
  oracle::Rounding rounding_of_inputs(int layer) const;
  oracle::Rounding drawn(oracle::Rounding rounding, Product product, int layer) const;
  const double* entering(const DeviceBuffer<double>& factor, std::int64_t count, Product product, int layer,
                         Stream& stream);
  const double* product_weights(const double* parameters, int layer, Product product, Stream& stream);
  void forward(const double* parameters, int layer, Stream& stream);
  void backward(const double* parameters, int layer, double* gradient, Stream& stream);

  std::vector<int> widths_;
  Activation activation_;
  Loss loss_;
  std::int64_t batch_, batches_;
  std::vector<TensorRange> ranges_;
  DeviceBuffer<float> features_;
  DeviceBuffer<std::int32_t> labels_;
  DeviceBuffer<float> targets_;
  std::vector<DeviceBuffer<double>> values_;     // inputs, hidden activations, logits: [batch, widths[layer]]
  std::vector<DeviceBuffer<double>> gradients_;  // of each layer's output, scaled, unrounded: [batch, out]
  std::vector<DeviceBuffer<double>> slopes_;     // of hidden activations: [batch, out]
  DeviceBuffer<double> weights_;                 // one layer's, rounded
  DeviceBuffer<double> rounded_gradient_;        // one layer's
  DeviceBuffer<double> entering_;  // a product's other factor, where each product rounds for itself
  DeviceBuffer<double> bias_;      // one layer's, rounded
  DeviceBuffer<double> row_losses_;
  std::vector<Norms> norms_;  // of each layer's factors
  oracle::PartialSums partial_;
  // Of the evaluation at hand.
  Roundings roundings_;
  const Perturbation* perturbation_ = nullptr;
};

}  // namespace headroom
