// Makes the samples: draws synthetic ones, or permutes and splits those of IDX files.
//
// Synthetic inputs are not independent noise: nothing could be learned from that within 5000 small steps. A
// sample has a few hidden factors, uniform in [0, 1]; a feature shows one of them (or its mirror image) three
// times in four and noise otherwise, so each feature by itself is uniform, and together they have a few
// strong directions, as images do. A small ReLU network with seeded weights, the teacher, turns the factors
// into the label. Only integer operations, IEEE products, sums, divisions and square roots, each in a written
// order and never fused (see CMakeLists.txt): the bits are the same on every machine. Synthetic samples are
// drawn in training order, as permuting independent draws would change nothing.
#include "data/dataset.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <numeric>

#include "core/error.h"
#include "core/parallel.h"
#include "core/parameters.h"
#include "data/idx.h"

namespace headroom {
namespace {

// Streams of random numbers under one seed: the high half of the Philox counter. Parameters are stream 0.
enum Stream : std::uint64_t {
  kTeacherStream = 1,
  kFactorStream = 2,
  kFeatureStream = 3,
  kPermutationStream = 4
};

constexpr int kFactors = 8, kTeacherHidden = 32;
constexpr std::int64_t kBatchesEnough = 256;

float unit_float(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

/// The teacher: factors -> 32 ReLU -> classes, logits brought to mean 0 and variance 1 over a trial set, so
/// that the classes come out about equally often.
class Teacher {
 public:
  Teacher(int factors, int classes, std::uint64_t seed) : factors_(factors), classes_(classes), seed_(seed) {
    hidden_weight_.resize(static_cast<std::size_t>(factors) * kTeacherHidden);
    hidden_bias_.resize(kTeacherHidden);
    output_weight_.resize(static_cast<std::size_t>(classes) * kTeacherHidden);
    std::uint64_t counter = 0;
    const auto symmetric = [&] {
      return 2 * unit_float(philox(seed, counter++, kTeacherStream).word[0]) - 1;
    };
    for (float& value : hidden_weight_) value = symmetric();
    // The kinks of the hidden units pass through the middle of the factors' range, each by its own offset.
    for (int unit = 0; unit < kTeacherHidden; ++unit) {
      float middle = 0;
      for (int factor = 0; factor < factors; ++factor) {
        middle += hidden_weight_[static_cast<std::size_t>(factor) * kTeacherHidden + unit];
      }
      hidden_bias_[unit] = -0.5f * middle + 0.25f * symmetric();
    }
    for (float& value : output_weight_) value = symmetric();
    standardise();
  }

  /// Factor `index` of sample `sample`, uniform in [0, 1).
  void factors_of(std::int64_t sample, float* factors /* [kFactors] */) const {
    for (int block = 0; block < kFactors / 4; ++block) {
      const auto counter =
          static_cast<std::uint64_t>(sample) * (kFactors / 4) + static_cast<std::uint64_t>(block);
      const PhiloxBlock random = philox(seed_, counter, kFactorStream);
      for (int word = 0; word < 4; ++word) factors[4 * block + word] = unit_float(random.word[word]);
    }
  }

  std::int32_t label(const float* factors /* [kFactors] */) const {
    std::int32_t best = 0;
    float best_logit = 0;
    each_logit(factors, [&](int class_index, float logit) {
      if (class_index == 0 || logit > best_logit) {
        best = class_index;
        best_logit = logit;
      }
    });
    return best;
  }

  void targets(Loss loss, const float* factors /* [kFactors] */, float* targets /* [outputs] */) const {
    each_logit(factors, [&](int output, float logit) {
      targets[output] = loss == Loss::kMeanSquaredError ? logit : logit > 0 ? 1.0f : 0.0f;
    });
  }

  std::string description() const {
    return "synthetic, teacher " + std::to_string(factors_) + "-" + std::to_string(kTeacherHidden) + "-" +
           std::to_string(classes_) + ", seed " + std::to_string(seed_);
  }

 private:
  template <class Use>
  void each_logit(const float* factors, const Use& use) const {
    float hidden[kTeacherHidden];
    hidden_units(factors, hidden);
    for (int output = 0; output < classes_; ++output)
      use(output, (raw_logit(hidden, output) - shift_[output]) * scale_[output]);
  }

  void hidden_units(const float* factors, float* hidden) const {
    for (int unit = 0; unit < kTeacherHidden; ++unit) hidden[unit] = hidden_bias_[unit];
    for (int factor = 0; factor < factors_; ++factor) {
      const float* row = &hidden_weight_[static_cast<std::size_t>(factor) * kTeacherHidden];
      for (int unit = 0; unit < kTeacherHidden; ++unit) hidden[unit] += row[unit] * factors[factor];
    }
    for (int unit = 0; unit < kTeacherHidden; ++unit) hidden[unit] = std::max(hidden[unit], 0.0f);
  }

  float raw_logit(const float* hidden, int class_index) const {
    const float* row = &output_weight_[static_cast<std::size_t>(class_index) * kTeacherHidden];
    float sum = 0;
    for (int unit = 0; unit < kTeacherHidden; ++unit) sum += row[unit] * hidden[unit];
    return sum;
  }

  void standardise() {
    constexpr int kTrialSamples = 1024;
    constexpr std::int64_t kTrialBegin = std::int64_t{1} << 60;  // far from every real sample
    std::vector<float> hidden(static_cast<std::size_t>(kTrialSamples) * kTeacherHidden);
    for (int sample = 0; sample < kTrialSamples; ++sample) {
      float factors[kFactors];
      factors_of(kTrialBegin + sample, factors);
      hidden_units(factors, &hidden[static_cast<std::size_t>(sample) * kTeacherHidden]);
    }
    shift_.resize(classes_);
    scale_.resize(classes_);
    parallel_for(classes_, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t class_index = begin; class_index < end; ++class_index) {
        double sum = 0, squares = 0;
        for (int sample = 0; sample < kTrialSamples; ++sample) {
          const double logit = raw_logit(&hidden[static_cast<std::size_t>(sample) * kTeacherHidden],
                                         static_cast<int>(class_index));
          sum += logit;
          squares += logit * logit;
        }
        const double mean = sum / kTrialSamples;
        const double deviation = std::sqrt(std::max(squares / kTrialSamples - mean * mean, 1e-12));
        shift_[class_index] = static_cast<float>(mean);
        scale_[class_index] = static_cast<float>(1.0 / deviation);
      }
    });
  }

  int factors_, classes_;
  std::uint64_t seed_;
  std::vector<float> hidden_weight_;  // [factors, hidden]
  std::vector<float> hidden_bias_;    // [hidden]
  std::vector<float> output_weight_;  // [classes, hidden]
  std::vector<float> shift_, scale_;  // [classes]
};

// A feature shows its factor, the factor's mirror image or noise, by the lowest bits of its random word.
void draw_features(std::uint64_t seed, std::int64_t sample, const float* factors, int factor_count,
                   int feature_count, float* features /* [feature_count] */) {
  const std::int64_t blocks = (feature_count + 3) / 4;
  int factor = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const auto counter = static_cast<std::uint64_t>(sample * blocks + block);
    const PhiloxBlock random = philox(seed, counter, kFeatureStream);
    const int words = static_cast<int>(std::min<std::int64_t>(4, feature_count - 4 * block));
    for (int word = 0; word < words; ++word) {
      const std::int64_t feature = 4 * block + word;
      const bool noise = (random.word[word] & 3) == 0;
      const bool mirrored = (feature / factor_count) % 2 == 1;
      const float shown = mirrored ? 1 - factors[factor] : factors[factor];
      features[feature] = noise ? unit_float(random.word[word]) : shown;
      factor = factor + 1 == factor_count ? 0 : factor + 1;
    }
  }
}

// FNV-1a 64 of every MiB by itself (so that all cores can share the work), then of those digests in order.
class Digest {
 public:
  template <typename T>
  void add(const std::vector<T>& values) {
    constexpr std::size_t kPiece = std::size_t{1} << 20;
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    const std::size_t size = values.size() * sizeof(T);
    std::vector<std::uint64_t> pieces((size + kPiece - 1) / kPiece);
    parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const std::size_t first = static_cast<std::size_t>(piece) * kPiece;
        pieces[piece] = hash(kOffset, bytes + first, std::min(kPiece, size - first));
      }
    });
    add_word(size);
    for (std::uint64_t piece : pieces) add_word(piece);
  }

  std::string hex() const {
    char text[24];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value_));
    return text;
  }

 private:
  static constexpr std::uint64_t kOffset = 0xcbf29ce484222325, kPrime = 0x100000001b3;

  static std::uint64_t hash(std::uint64_t value, const unsigned char* bytes, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) value = (value ^ bytes[i]) * kPrime;
    return value;
  }
  void add_word(std::uint64_t word) {
    unsigned char bytes[8];
    std::memcpy(bytes, &word, 8);
    value_ = hash(value_, bytes, 8);
  }

  std::uint64_t value_ = kOffset;
};

// Asked before anything is allocated: Linux gives memory away that it does not have and ends the process later.
void expect_to_fit(const Workload& workload, double bytes) {
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes <= 0.8 * memory) return;
  char text[120];
  std::snprintf(text, sizeof text,
                "': its data set of %.1f GB does not fit into this machine's memory of %.1f GB", bytes / 1e9,
                memory / 1e9);
  throw OutOfMemoryError("workload '" + workload.name + text);
}

/// Of a sample's label or targets.
double target_bytes(const Workload& workload) {
  return 4.0 * (workload.loss == Loss::kCrossEntropy ? 1 : workload.outputs());
}

Dataset make_synthetic(const Workload& workload, std::int64_t least_train_bytes) {
  const std::int64_t feature_count = workload.inputs();
  const std::int64_t row_bytes = feature_count * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t train_samples = synthetic_train_samples(workload, least_train_bytes);
  const std::int64_t held_out_samples = (train_samples + 8) / 9;  // a tenth of all
  expect_to_fit(workload, static_cast<double>(train_samples + held_out_samples) *
                              (static_cast<double>(row_bytes) + target_bytes(workload)));

  Dataset dataset;
  dataset.train_features.resize(static_cast<std::size_t>(train_samples * feature_count));
  const bool labelled = workload.loss == Loss::kCrossEntropy;
  const std::int64_t outputs = workload.outputs();
  dataset.train_labels.resize(static_cast<std::size_t>(labelled ? train_samples : 0));
  dataset.train_targets.resize(static_cast<std::size_t>(labelled ? 0 : train_samples * outputs));
  dataset.held_out_features.resize(static_cast<std::size_t>(held_out_samples * feature_count));
  dataset.held_out_labels.resize(static_cast<std::size_t>(labelled ? held_out_samples : 0));
  dataset.held_out_targets.resize(static_cast<std::size_t>(labelled ? 0 : held_out_samples * outputs));

  const int factor_count = static_cast<int>(std::min<std::int64_t>(kFactors, feature_count));
  const Teacher teacher(factor_count, workload.outputs(), workload.seed);
  const std::int64_t chunk = std::max<std::int64_t>(1, (std::int64_t{1} << 16) / feature_count);
  parallel_for(train_samples + held_out_samples, chunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t sample = begin; sample < end; ++sample) {
      const bool held_out = sample >= train_samples;
      const std::int64_t row = held_out ? sample - train_samples : sample;
      float* features =
          (held_out ? dataset.held_out_features : dataset.train_features).data() + row * feature_count;
      float factors[kFactors];
      teacher.factors_of(sample, factors);
      draw_features(workload.seed, sample, factors, factor_count, static_cast<int>(feature_count), features);
      if (labelled)
        (held_out ? dataset.held_out_labels : dataset.train_labels)[row] = teacher.label(factors);
      else
        teacher.targets(workload.loss, factors,
                        (held_out ? dataset.held_out_targets : dataset.train_targets).data() + row * outputs);
    }
  });
  dataset.description = teacher.description();
  return dataset;
}

/// A uniform random order of `count` items (Fisher-Yates; the tiny bias of the multiply-shift is below
/// 2^-32).
std::vector<std::int64_t> permutation(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::int64_t i = count - 1; i > 0; --i) {
    const std::uint64_t random = philox(seed, static_cast<std::uint64_t>(i), kPermutationStream).word[0];
    std::swap(order[i], order[(random * static_cast<std::uint64_t>(i + 1)) >> 32]);
  }
  return order;
}

Dataset make_from_idx(const Workload& workload) {
  if (workload.loss != Loss::kCrossEntropy)
    throw InputError(workload.dataset.folder + ": IDX files hold labels, and workload '" + workload.name +
                     "' has loss " + std::string(to_string(workload.loss)) +
                     ", which needs fp32 targets; only synthetic data has them");
  const IdxSamples idx =
      read_idx(workload.dataset.folder, workload.inputs(), workload.classes(), [&](std::int64_t samples) {
        constexpr double kBytesOfPixel = 1 + sizeof(float);  // as it is read and as it is trained on
        expect_to_fit(workload, static_cast<double>(samples) * workload.inputs() * kBytesOfPixel);
      });
  // Every tenth sample is held out whatever the seed, so that accuracies of different seeds can be compared.
  std::vector<std::int64_t> train, held_out;
  for (std::int64_t i = 0; i < idx.samples; ++i) (i % 10 == 9 ? held_out : train).push_back(i);
  if (held_out.empty() && train.size() > 1) {
    held_out.push_back(train.back());
    train.pop_back();
  }
  const auto train_samples = static_cast<std::int64_t>(train.size());
  if (workload.joined_batch_size() > train_samples) {
    throw InputError(workload.dataset.folder + ": batch size " +
                     std::to_string(workload.joined_batch_size()) + " of workload '" + workload.name +
                     "' is larger than the data set, which has " + std::to_string(train_samples) +
                     " training samples (a tenth is held out); expected at most " +
                     std::to_string(train_samples));
  }
  std::vector<std::int64_t> order = permutation(train_samples, workload.seed);
  for (std::int64_t& index : order) index = train[index];

  const std::int64_t feature_count = workload.inputs();
  const auto gather = [&](const std::vector<std::int64_t>& rows, std::vector<float>& features,
                          std::vector<std::int32_t>& labels) {
    features.resize(rows.size() * static_cast<std::size_t>(feature_count));
    labels.resize(rows.size());
    parallel_for(static_cast<std::int64_t>(rows.size()), 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::uint8_t* pixels = idx.pixels.data() + rows[row] * feature_count;
        float* out = features.data() + row * feature_count;
        for (std::int64_t i = 0; i < feature_count; ++i) out[i] = static_cast<float>(pixels[i]) / 255.0f;
        labels[row] = idx.labels[rows[row]];
      }
    });
  };
  Dataset dataset;
  gather(order, dataset.train_features, dataset.train_labels);
  gather(held_out, dataset.held_out_features, dataset.held_out_labels);
  dataset.description = "idx: " + idx.images_name + ", " + idx.labels_name;
  return dataset;
}

}  // namespace

DatasetView Dataset::view(const std::vector<float>& features, const std::vector<std::int32_t>& labels,
                          const std::vector<float>& targets) const {
  const auto data_of = [](const auto& values) { return values.empty() ? nullptr : values.data(); };
  return {features.data(), data_of(labels), data_of(targets),
          static_cast<std::int64_t>(features.size()) / feature_count, feature_count};
}

DatasetView Dataset::train() const { return view(train_features, train_labels, train_targets); }

DatasetView Dataset::held_out() const { return view(held_out_features, held_out_labels, held_out_targets); }

std::int64_t synthetic_train_samples(const Workload& workload, std::int64_t least_train_bytes) {
  const std::int64_t batch_bytes =
      workload.joined_batch_size() * (workload.inputs() * static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t least_batches = (least_train_bytes + batch_bytes - 1) / batch_bytes;
  return std::clamp<std::int64_t>(least_batches, 1, kBatchesEnough) * workload.joined_batch_size();
}

Dataset make_dataset(const Workload& workload, std::int64_t least_train_bytes) try {
  validate(workload);
  Dataset dataset = workload.dataset.kind == DatasetSpec::Kind::kIdx
                        ? make_from_idx(workload)
                        : make_synthetic(workload, least_train_bytes);
  dataset.feature_count = workload.inputs();
  dataset.outputs = workload.outputs();
  Digest digest;
  digest.add(dataset.train_features);
  digest.add(dataset.train_labels);
  digest.add(dataset.held_out_features);
  digest.add(dataset.held_out_labels);
  if (workload.loss != Loss::kCrossEntropy) {  // else the digests of version 1 hold
    digest.add(dataset.train_targets);
    digest.add(dataset.held_out_targets);
  }
  dataset.digest = digest.hex();
  return dataset;
} catch (const std::bad_alloc&) {
  throw OutOfMemoryError("workload '" + workload.name +
                         "': its data set does not fit into this machine's memory");
}

}  // namespace headroom
