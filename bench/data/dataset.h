// The samples a network is trained on: synthetic (a seeded teacher network labels them) or IDX files.
//
// Samples are permuted once with the workload's seed (synthetic ones are drawn in that order); batch b holds samples
// b*B to (b+1)*B - 1 and what does not fill a batch is left out. A tenth of the samples is held out before that and never
// trained on; of IDX files it is the same tenth for every seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dataset_view.h"
#include "core/workload.h"

namespace headroom {

struct Dataset {
  int feature_count = 0;
  int outputs = 0;
  std::vector<float> train_features;          ///< [train_samples, feature_count]
  std::vector<std::int32_t> train_labels;     ///< [train_samples]; cross-entropy only
  std::vector<float> train_targets;           ///< [train_samples, outputs]; the other losses only
  std::vector<float> held_out_features;       ///< [held_out_samples, feature_count]
  std::vector<std::int32_t> held_out_labels;  ///< [held_out_samples]
  std::vector<float> held_out_targets;        ///< [held_out_samples, outputs]
  std::string
      description;     ///< "synthetic, teacher 784-64-10, seed 1" or "idx: t10k-images-idx3-ubyte.gz, ..."
  std::string digest;  ///< of features, labels and split: FNV-1a 64 over that of each MiB, in hex

  DatasetView train() const;
  DatasetView held_out() const;

 private:
  DatasetView view(const std::vector<float>& features, const std::vector<std::int32_t>& labels,
                   const std::vector<float>& targets) const;
};

/// Training samples of a synthetic set of at least `least_train_bytes`, unless 256 batches are less; a batch at least.
std::int64_t synthetic_train_samples(const Workload& workload, std::int64_t least_train_bytes);

/// Builds the data a workload asks for: labels for cross-entropy; for squared error what the teacher says, at mean 0 and variance 1;
/// for binary cross-entropy 1 where that is over 0, else 0. `least_train_bytes` is how much training data synthetic sets are made to
/// hold at least (four times the device's L2), unless 256 batches are less; at least one batch always.
/// Throws OutOfMemoryError if a synthetic set would not fit into this machine's memory.
/// Throws InputError: batch larger than the data set, unreadable, truncated or foreign IDX files, another count
/// of labels than images, image size that is not the workload's input width, a label outside the classes, labels for another loss
/// than cross-entropy.
Dataset make_dataset(const Workload& workload, std::int64_t least_train_bytes);

}  // namespace headroom
