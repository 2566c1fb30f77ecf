// The checks of a whole trainer: an honest one passes in every precision, and each planted fault is caught.
//
// The trainer is not the oracle with a fault in it but a second, plain implementation that accumulates in
// fp32, in another order, with fp32 masters: what a real backend does. So the tests also show the room
// between honest and faulty.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/verification.h"
#include "data/dataset.h"
#include "oracle/oracle.h"
#include "oracle/precision_rounding.h"

namespace headroom {
namespace {

struct Fault {
  double learning_rate_factor = 1;
  int frozen_layer = -1;        // neither its weight nor its bias is updated
  int layer_without_bias = -1;  // its bias is not updated
  int scaled_layer = -1;        // both of its gradients are 5 % too long
  std::int64_t batch_shift = 0;
  bool nan = false;                 // one weight becomes NaN
  std::int64_t only_from_call = 0;  // the learning rate is wrong from this call of train() on
};

class PlainTrainer {
 public:
  PlainTrainer(const Workload& workload, Precision precision, const DatasetView& data, const Fault& fault)
      : workload_(workload),
        precision_(precision),
        data_(data),
        fault_(fault),
        parameters_(workload.model.widths) {}

  void set_parameters(const Parameters& parameters) { parameters_ = parameters; }
  const Parameters& parameters() const { return parameters_; }
  const std::vector<float>& losses() const { return losses_; }

  void train(std::int64_t first_step, std::int64_t count) {
    for (std::int64_t step = first_step; step < first_step + count; ++step) train_step(step);
    ++calls_;
  }

 private:
  using Matrix = std::vector<float>;  // [batch, width]

  float rounded(float value) const {
    switch (precision_) {
      case Precision::kTf32:
        return static_cast<float>(round_to_tf32(value));
      case Precision::kFp16:
        return static_cast<float>(round_to_fp16(value));
      case Precision::kBf16:
        return static_cast<float>(round_to_bf16(value));
      case Precision::kFp32:
        break;
    }
    return value;
  }
  float rounded_weight(float value) const {
    return precision_ == Precision::kBf16 ? static_cast<float>(round_weight_to_bf16(value)) : rounded(value);
  }

  void train_step(std::int64_t step) {
    const int batch = workload_.batch_size, layers = workload_.layers();
    const std::vector<int>& widths = workload_.model.widths;
    const std::int64_t first_row = (step + fault_.batch_shift) % data_.batches(batch) * batch;
    std::vector<Matrix> values(static_cast<std::size_t>(layers) + 1),
        weights(static_cast<std::size_t>(layers));
    for (int i = 0; i < batch * widths[0]; ++i)
      values[0].push_back(rounded(data_.features[first_row * widths[0] + i]));
    for (int layer = 0; layer < layers; ++layer) {
      for (float weight : parameters_.weight(layer)) weights[layer].push_back(rounded_weight(weight));
      forward(layer, values[layer], weights[layer], values[layer + 1]);
    }
    const float scale = precision_ == Precision::kFp16 ? 16.0f * 32 : 1;
    Matrix gradient = loss_gradient(values[layers], first_row, scale);
    for (int layer = layers - 1; layer >= 0; --layer) {
      Matrix entering = gradient;
      for (float& value : entering) value = rounded(value);
      const Matrix& summed = precision_ == Precision::kTf32 ? gradient : entering;
      Matrix below = layer > 0 ? input_gradient(layer, entering, weights[layer], values[layer]) : Matrix{};
      update(layer, entering, summed, values[layer], scale);
      gradient = std::move(below);
    }
    if (fault_.nan) parameters_.weight(0)[3] = std::numeric_limits<float>::quiet_NaN();
  }

  void forward(int layer, const Matrix& x, const Matrix& weight, Matrix& out) {
    const int in = workload_.model.widths[layer], width = workload_.model.widths[layer + 1];
    const bool hidden = layer + 1 < workload_.layers();
    out.resize(static_cast<std::size_t>(workload_.batch_size) * width);
    for (int row = 0; row < workload_.batch_size; ++row) {
      for (int o = 0; o < width; ++o) {
        float sum = 0;  // from the last input to the first
        for (int i = in - 1; i >= 0; --i) sum += x[row * in + i] * weight[o * in + i];
        sum += parameters_.bias(layer)[o];
        const bool stored_rounded = precision_ != Precision::kFp32;
        out[row * width + o] = !hidden          ? sum
                               : stored_rounded ? rounded(std::max(sum, 0.0f))
                                                : std::max(sum, 0.0f);
      }
    }
  }

  Matrix loss_gradient(const Matrix& logits, std::int64_t first_row, float scale) {
    const int classes = workload_.classes(), batch = workload_.batch_size;
    Matrix gradient(logits.size());
    float total = 0;
    for (int row = 0; row < batch; ++row) {
      const float* logit = &logits[static_cast<std::size_t>(row) * classes];
      const float highest = *std::max_element(logit, logit + classes);
      float sum = 0;
      for (int c = 0; c < classes; ++c) sum += std::exp(logit[c] - highest);
      const std::int32_t label = data_.labels[first_row + row];
      total += std::log(sum) - (logit[label] - highest);
      for (int c = 0; c < classes; ++c) {
        const float probability = std::exp(logit[c] - highest) / sum;
        gradient[row * classes + c] =
            (probability - (c == label ? 1.0f : 0.0f)) * (scale / static_cast<float>(batch));
      }
    }
    losses_.push_back(total / static_cast<float>(batch));
    return gradient;
  }

  Matrix input_gradient(int layer, const Matrix& gradient, const Matrix& weight, const Matrix& activation) {
    const int in = workload_.model.widths[layer], width = workload_.model.widths[layer + 1];
    Matrix below(static_cast<std::size_t>(workload_.batch_size) * in);
    for (int row = 0; row < workload_.batch_size; ++row) {
      for (int o = width - 1; o >= 0; --o) {
        for (int i = 0; i < in; ++i) below[row * in + i] += gradient[row * width + o] * weight[o * in + i];
      }
      for (int i = 0; i < in; ++i)
        below[row * in + i] = activation[row * in + i] > 0 ? below[row * in + i] : 0;
    }
    return below;
  }

  void update(int layer, const Matrix& gradient, const Matrix& summed, const Matrix& x, float scale) {
    if (layer == fault_.frozen_layer) return;
    const int in = workload_.model.widths[layer], width = workload_.model.widths[layer + 1];
    const double factor = (calls_ >= fault_.only_from_call ? fault_.learning_rate_factor : 1) *
                          (layer == fault_.scaled_layer ? 1.05 : 1);
    const float rate = static_cast<float>(workload_.optimizer.learning_rate * factor);
    std::vector<float> row_gradient(static_cast<std::size_t>(in));
    for (int o = 0; o < width; ++o) {
      std::fill(row_gradient.begin(), row_gradient.end(), 0.0f);
      float bias_gradient = 0;
      for (int row = workload_.batch_size - 1; row >= 0; --row) {
        const float d = gradient[row * width + o];
        for (int i = 0; i < in; ++i) row_gradient[i] += d * x[row * in + i];
        bias_gradient += summed[row * width + o];
      }
      for (int i = 0; i < in; ++i) parameters_.weight(layer)[o * in + i] -= rate * (row_gradient[i] / scale);
      if (layer != fault_.layer_without_bias) parameters_.bias(layer)[o] -= rate * (bias_gradient / scale);
    }
  }

  const Workload& workload_;
  Precision precision_;
  DatasetView data_;
  Fault fault_;
  Parameters parameters_;
  std::vector<float> losses_;
  int calls_ = 0;
};

struct Problem {
  explicit Problem(const std::string& name, double learning_rate = Optimizer{}.learning_rate)
      : workload(parse_workload_name(name)) {
    workload.optimizer.learning_rate = learning_rate;
    data = make_dataset(workload, std::int64_t{64} << 20);
    initial = initial_parameters(workload.model.widths, workload.seed);
  }
  Workload workload;
  Dataset data;
  Parameters initial;
};

struct Reference {
  std::vector<ReferencePoint> points;
  Parameters free;
};

Reference follow(const Problem& problem, Precision precision, std::span<const std::int64_t> steps) {
  Reference reference;
  follow_reference(
      problem.workload, precision, true, problem.data.train(), problem.initial, {steps.begin(), steps.end()},
      [&](const ReferencePoint& point) { reference.points.push_back(point); },
      [&](const Parameters& free) { reference.free = free; });
  return reference;
}

Verification verify_against(const Reference& reference, const Problem& problem, Precision precision,
                            const Fault& fault) {
  PlainTrainer trainer(problem.workload, precision, problem.data.train(), fault);
  std::vector<StepErrors> steps;
  for (const ReferencePoint& point : reference.points) {
    trainer.set_parameters(point.start.parameters);
    trainer.train(point.step, 1);
    steps.push_back(
        compare_step(point.step, point.start.parameters, trainer.parameters(), point.update.parameters));
  }
  trainer.set_parameters(problem.initial);
  trainer.train(0, kFreeSteps);
  std::vector<Check> checks = step_update_checks(problem.workload, steps, Contract::kExact, precision);
  checks.push_back(
      ten_steps_check(update_errors_from_end(problem.initial, trainer.parameters(), reference.free)));
  checks.push_back(losses_finite_check(trainer.losses(), 10 * reference.points.front().loss));
  return judge(std::move(checks));
}

class StepCheck : public ::testing::TestWithParam<Precision> {
 protected:
  static const Problem& problem() {
    static const Problem kProblem("mlp-784x128x128x128x10-b32");
    return kProblem;
  }
  static const Workload& workload() { return problem().workload; }

  Verification verify(const Fault& fault, std::span<const std::int64_t> check_steps = kCheckSteps) {
    return verify_against(follow(problem(), GetParam(), check_steps), problem(), GetParam(), fault);
  }

  static const Check& check_of(const Verification& verification, std::string_view name) {
    return *std::find_if(verification.checks.begin(), verification.checks.end(),
                         [&](const Check& check) { return check.tensor == name || check.name == name; });
  }

  static double largest_median(const Verification& verification) {
    double largest = 0;
    for (const Check& check : verification.checks) {
      if (check.name == "step_update") largest = std::max(largest, check.error);
    }
    return largest;
  }
};

TEST_P(StepCheck, PassesAnHonestTrainerThatSumsInAnotherOrder) {
  const Verification verification = verify({});
  EXPECT_EQ(verification.verdict, Verdict::kPass) << failure_message(verification);
  EXPECT_LT(largest_median(verification), 3e-4);
}

TEST_P(StepCheck, CatchesALearningRateOnePercentOff) {
  for (double factor : {0.99, 1.01}) {
    const Verification verification = verify({.learning_rate_factor = factor});
    EXPECT_EQ(verification.verdict, Verdict::kFail);
    for (const Check& check : verification.checks) {
      if (check.name != "step_update") continue;
      EXPECT_FALSE(check.passed) << check.tensor << " " << check.error;
    }
  }
}

TEST_P(StepCheck, CatchesALearningRateThreeInAThousandOff) {
  EXPECT_EQ(verify({.learning_rate_factor = 0.997}).verdict, Verdict::kFail);
  EXPECT_EQ(verify({.learning_rate_factor = 1.003}).verdict, Verdict::kFail);
}

TEST_P(StepCheck, CatchesAFrozenLayer) {
  const Verification verification = verify({.frozen_layer = 0});
  EXPECT_EQ(verification.verdict, Verdict::kFail);
  EXPECT_FALSE(check_of(verification, "weight1").passed);
  EXPECT_FALSE(check_of(verification, "bias1").passed);
  EXPECT_TRUE(check_of(verification, "weight2").passed);
}

TEST_P(StepCheck, CatchesAMissingBiasUpdateInEveryLayer) {
  for (int layer = 0; layer < workload().layers(); ++layer) {
    const Verification verification = verify({.layer_without_bias = layer});
    EXPECT_EQ(verification.verdict, Verdict::kFail);
    EXPECT_FALSE(check_of(verification, "bias" + std::to_string(layer + 1)).passed);
  }
}

// What a network gets whose trajectory would take minutes.
TEST_P(StepCheck, EarlyStepsPassAnHonestTrainerAndCatchTheSameFaults) {
  const Verification honest = verify({}, kEarlyCheckSteps);
  EXPECT_EQ(honest.verdict, Verdict::kPass) << failure_message(honest);
  for (const Fault& fault :
       {Fault{.learning_rate_factor = 0.99}, Fault{.learning_rate_factor = 1.01}, Fault{.frozen_layer = 0},
        Fault{.layer_without_bias = 2}, Fault{.batch_shift = 1}, Fault{.nan = true}})
    EXPECT_EQ(verify(fault, kEarlyCheckSteps).verdict, Verdict::kFail);
}

TEST_P(StepCheck, CatchesBatchesShiftedByOne) {
  EXPECT_EQ(verify({.batch_shift = 1}).verdict, Verdict::kFail);
}

TEST_P(StepCheck, CatchesNan) {
  const Verification verification = verify({.nan = true});
  EXPECT_EQ(verification.verdict, Verdict::kFail);
  EXPECT_FALSE(check_of(verification, "weight1").passed);
  EXPECT_FALSE(check_of(verification, "ten_steps").passed);
  EXPECT_FALSE(check_of(verification, "losses_finite").passed);
}

TEST_P(StepCheck, TenFreeStepsCatchWhatIsOnlyWrongLater) {
  const Verification verification =
      verify({.learning_rate_factor = 1.2, .only_from_call = std::ssize(kCheckSteps)});
  EXPECT_TRUE(check_of(verification, "weight1").passed);
  EXPECT_FALSE(check_of(verification, "ten_steps").passed);
  EXPECT_EQ(verification.verdict, Verdict::kFail);
}

// Seven hidden layers and more than kFewActivations activations: the widest median bound of a network of that
// depth. The large learning rate keeps the updates of the first layers above the masters' rounding.
class DeepStepCheck : public StepCheck {
 protected:
  static const Problem& deep_problem() {
    static const Problem kProblem("mlp-784x96x96x96x96x96x96x96x10-b32", 0.5);
    return kProblem;
  }
  Verification verify(const Fault& fault) {
    if (reference_.points.empty()) reference_ = follow(deep_problem(), GetParam(), kEarlyCheckSteps);
    return verify_against(reference_, deep_problem(), GetParam(), fault);
  }
  static const Check& scale_of(const Verification& verification, std::string_view tensor) {
    return *std::find_if(verification.checks.begin(), verification.checks.end(), [&](const Check& check) {
      return check.tensor == tensor && check.name == "step_scale";
    });
  }

 private:
  Reference reference_;
};

TEST_P(DeepStepCheck, PassesAnHonestTrainer) {
  const Verification verification = verify({});
  EXPECT_EQ(verification.verdict, Verdict::kPass) << failure_message(verification);
}

TEST_P(DeepStepCheck, CatchesAGradientFivePercentTooLongInEachLayer) {
  const int layers = deep_problem().workload.layers();
  for (int layer = 0; layer < layers; ++layer) {
    const Verification verification = verify({.scaled_layer = layer});
    EXPECT_EQ(verification.verdict, Verdict::kFail);
    for (int other = 0; other < layers; ++other) {
      for (const char* kind : {"weight", "bias"}) {
        const Check& check = scale_of(verification, kind + std::to_string(other + 1));
        EXPECT_EQ(check.passed, other != layer) << check.tensor << " " << check.error;
      }
    }
  }
}

TEST_P(DeepStepCheck, CatchesTheOtherFaultsToo) {
  for (const double factor : {0.99, 1.01})
    EXPECT_EQ(verify({.learning_rate_factor = factor}).verdict, Verdict::kFail);
  for (int layer = 0; layer < deep_problem().workload.layers(); ++layer) {
    const std::string number = std::to_string(layer + 1);
    EXPECT_FALSE(check_of(verify({.layer_without_bias = layer}), "bias" + number).passed);
    EXPECT_FALSE(check_of(verify({.frozen_layer = layer}), "weight" + number).passed);
  }
  EXPECT_EQ(verify({.batch_shift = 1}).verdict, Verdict::kFail);
  EXPECT_EQ(verify({.nan = true}).verdict, Verdict::kFail);
}

INSTANTIATE_TEST_SUITE_P(EveryPrecision, DeepStepCheck, ::testing::ValuesIn(kAllPrecisions),
                         [](const auto& instance) { return std::string(to_string(instance.param)); });

INSTANTIATE_TEST_SUITE_P(EveryPrecision, StepCheck, ::testing::ValuesIn(kAllPrecisions),
                         [](const auto& instance) { return std::string(to_string(instance.param)); });

}  // namespace
}  // namespace headroom
