// MNIST-style IDX files: an images file (magic 0x00000803) and a labels file (0x00000801), plain or gzip.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headroom {

struct IdxSamples {
  std::int64_t samples = 0;
  std::vector<std::uint8_t> pixels;      ///< [samples, feature_count]
  std::vector<std::uint8_t> labels;      ///< [samples]
  std::string images_name, labels_name;  ///< file names without folder
};

/// Reads the pair of files in `folder`, the training pair (train-*) if there are several. Throws InputError
/// that names the file: nothing there, truncated, wrong magic number, counts that differ, images that are not
/// `feature_count` pixels, labels that are not below `classes`.
IdxSamples read_idx(const std::string& folder, int feature_count, int classes);

}  // namespace headroom
