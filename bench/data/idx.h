// IDX files as MNIST comes: a file of images and one of labels (bytes, or QMNIST's integers), plain or gzip.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headroom {

struct IdxSamples {
  std::int64_t samples = 0;
  std::vector<std::uint8_t> pixels;      ///< [samples, feature_count]
  std::vector<std::int32_t> labels;      ///< [samples]
  std::string images_name, labels_name;  ///< below the folder that was named
};

/// Reads the training set of the folder `place`, or of raw and */raw below it, or the pair whose images file `place`
/// is. `expect_to_fit` is told the number of samples before any is read, and may throw.
/// Throws InputError that names the file: nothing there, a test set only, several data sets, no labels of that name,
/// no IDX data, truncated, counts that differ, images that are not `feature_count` pixels, labels that are not below
/// `classes`.
IdxSamples read_idx(const std::string& place, int feature_count, int classes,
                    const std::function<void(std::int64_t samples)>& expect_to_fit);

}  // namespace headroom
