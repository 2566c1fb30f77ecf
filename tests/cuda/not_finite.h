// That a NaN comes out of a trainer as losses that are NaN, wherever it went in, as the oracle has it.
//
//   an input:  the loss of the first step whose batch holds it, and all later ones; not the loss of a step before
//   a weight or a bias, of any layer: the loss of the first step, and all later ones
//   an infinite weight of the last layer: the same, unless the oracle's loss is infinite or finite at first
// A ReLU that makes 0 of it, or a rounding that carries a NaN's mantissa into the sign, would hide a broken network.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/parameters.h"
#include "core/trainer.h"
#include "data/dataset.h"
#include "fresh_seed.h"
#include "oracle/oracle.h"
#include "step_check.h"

namespace headroom {

/// What a GPU's arithmetic makes has every bit of the mantissa set, and a rounding by adding bits would carry into the sign; the
/// same of one with a sign; and the compiler's.
inline constexpr std::uint32_t kNaNs[] = {0x7fffffffu, 0xffffaaaau, 0x7fc00000u};

/// Where NaNs are put: in an input, and in every layer's first, last and some other weight and bias, with every kind of NaN; in an
/// input and one weight or bias at random; or in one weight of the first layer, for one step, where a step takes long.
enum class NaNPlaces { kEvery, kFew, kFirstLayer };

/// A network by its name, with three batches of data.
struct NotFiniteProblem : NamedProblem {
  explicit NotFiniteProblem(const std::string& name) : NamedProblem(name, fresh_seed()) {
    dataset = make_dataset(workload, 3 * batch_values() * static_cast<std::int64_t>(sizeof(float)));
  }
  std::int64_t batch_values() const { return std::int64_t{workload.batch_size} * workload.inputs(); }
};

namespace internal {

inline std::string losses_as_text(const std::vector<float>& losses) {
  std::string text;
  for (const float loss : losses) text += ' ' + std::to_string(loss);
  return text;
}

/// A value of batch 1.
struct NaNInput {
  std::size_t place;
  float& feature;
  float good;
  NaNInput(NotFiniteProblem& problem, std::mt19937_64& random, std::uint32_t bits)
      : place(random() % static_cast<std::size_t>(problem.batch_values())),
        feature(problem.dataset.train_features[static_cast<std::size_t>(problem.batch_values()) + place]),
        good(feature) {
    feature = std::bit_cast<float>(bits);
  }
  ~NaNInput() { feature = good; }
  NaNInput(const NaNInput&) = delete;
  NaNInput& operator=(const NaNInput&) = delete;
};

inline void expect_a_nan_input_in_the_losses(Trainer& trainer, const NaNInput& input, std::int64_t steps) {
  trainer.train(0, steps);
  const std::vector<float> losses = trainer.losses(0, steps);
  EXPECT_TRUE(std::isfinite(losses[0])) << "batch 0 has no NaN:" << losses_as_text(losses);
  for (std::size_t step = 1; step < losses.size(); ++step)
    EXPECT_TRUE(std::isnan(losses[step]))
        << "a NaN in value " << input.place << " of batch 1:" << losses_as_text(losses);
}

inline void expect_nan_losses(Trainer& trainer, const Parameters& broken, std::int64_t steps,
                              const std::string& what) {
  trainer.set_parameters(broken);
  trainer.train(0, steps);
  const std::vector<float> losses = trainer.losses(0, steps);
  for (const float loss : losses) EXPECT_TRUE(std::isnan(loss)) << what << ':' << losses_as_text(losses);
}

/// What an infinite weight is multiplied by can have one sign in all samples. Then none has a NaN in the first step: where the
/// logit is minus infinity only those have an infinite loss whose label it is, and all others a finite one.
inline void expect_losses_of_an_infinite_weight(Trainer& trainer, const NotFiniteProblem& problem,
                                                Precision precision, const Parameters& infinite) {
  constexpr int kSteps = 2;
  trainer.set_parameters(infinite);
  trainer.train(0, kSteps);
  const std::vector<float> losses = trainer.losses(0, kSteps);
  if (std::all_of(losses.begin(), losses.end(), [](float loss) { return std::isnan(loss); })) return;
  const auto oracle =
      make_oracle_trainer(problem.workload, precision, true, problem.dataset.train(), infinite);
  oracle->train(0, kSteps);
  const std::vector<float> expected = oracle->losses(0, kSteps);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_TRUE(std::isnan(losses[step]) == std::isnan(expected[step]) &&
                std::isinf(losses[step]) == std::isinf(expected[step]))
        << "an infinite weight of the last layer:" << losses_as_text(losses) << ", and the oracle"
        << losses_as_text(expected);
  }
}

}  // namespace internal

/// make() is a new trainer of `problem`, with its data as they are then.
template <class MakeTrainer>
void expect_nans_in_the_losses(NotFiniteProblem& problem, Precision precision, NaNPlaces places,
                               const MakeTrainer& make) {
  const bool every = places == NaNPlaces::kEvery;
  std::mt19937_64 random(problem.workload.seed);
  const auto all_or_one = [&]<class Value>(std::vector<Value> all) {
    return every ? all : std::vector<Value>{all[random() % all.size()]};
  };
  std::vector<int> layers(static_cast<std::size_t>(problem.workload.layers()));
  std::iota(layers.begin(), layers.end(), 0);
  if (places == NaNPlaces::kFirstLayer) layers = {0};
  const auto tensors = places == NaNPlaces::kFirstLayer ? std::vector{0} : all_or_one(std::vector{0, 1});
  SCOPED_TRACE(problem.described(precision));
  for (const std::uint32_t bits : all_or_one(std::vector(std::begin(kNaNs), std::end(kNaNs)))) {
    std::unique_ptr<Trainer> trainer;
    if (places == NaNPlaces::kFirstLayer) {
      trainer = make();
    } else {
      const internal::NaNInput input(problem, random, bits);
      trainer = make();
      SCOPED_TRACE(trainer->note());
      internal::expect_a_nan_input_in_the_losses(*trainer, input, every ? 3 : 2);
    }
    SCOPED_TRACE(trainer->note());
    for (const int tensor_of_layer : tensors)
      for (const int layer : all_or_one(layers)) {
        const bool is_bias = tensor_of_layer == 1;
        Parameters broken = problem.initial;
        const std::span<float> tensor = is_bias ? broken.bias(layer) : broken.weight(layer);
        for (const std::size_t position :
             all_or_one(std::vector{std::size_t{0}, tensor.size() - 1, random() % tensor.size()})) {
          const float good = tensor[position];
          tensor[position] = std::bit_cast<float>(bits);
          internal::expect_nan_losses(*trainer, broken, every ? 2 : 1,
                                      "a NaN in " + std::string(is_bias ? "bias " : "weight ") +
                                          std::to_string(position) + " of layer " +
                                          std::to_string(layer + 1));
          tensor[position] = good;
        }
      }
    if (!every) continue;
    Parameters infinite = problem.initial;
    infinite.weight(layers.back())[0] = std::numeric_limits<float>::infinity();
    internal::expect_losses_of_an_infinite_weight(*trainer, problem, precision, infinite);
    trainer->set_parameters(problem.initial);
    trainer->train(0, 1);
    EXPECT_TRUE(std::isfinite(trainer->losses(0, 1)[0])) << "good parameters again";
  }
}

}  // namespace headroom
