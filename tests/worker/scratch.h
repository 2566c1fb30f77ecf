// A workload with its files, as a driver would hold them, for tests that talk to a worker.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/workload.h"
#include "worker/client.h"

namespace headroom {

/// The folder of this test program, where the workers are too.
inline std::filesystem::path program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

/// A folder of its own with random features, labels or targets, and the initial parameters of `workload`; removed at
/// the end.
class Scratch {
 public:
  explicit Scratch(Workload workload_, std::int64_t samples = 0) : workload(std::move(workload_)) {
    static std::atomic<int> made = 0;
    folder = std::filesystem::temp_directory_path() /
             ("headroom-test-" + std::to_string(::getpid()) + "-" + std::to_string(made++));
    std::filesystem::create_directories(folder);
    data.samples = samples > 0 ? samples : workload.batch_size * 12 + 1;  // the odd one out fills no batch
    data.feature_count = workload.inputs();
    data.features = folder / "features.f32";
    const bool labelled = workload.loss == Loss::kCrossEntropy;
    data.targets = folder / (labelled ? "labels.i32" : "targets.f32");
    std::mt19937 random(static_cast<std::mt19937::result_type>(workload.seed));
    features.resize(static_cast<std::size_t>(data.samples * data.feature_count));
    for (float& value : features) value = std::uniform_real_distribution<float>(0, 1)(random);
    write_floats(data.features, features);
    if (labelled) {
      labels.resize(static_cast<std::size_t>(data.samples));
      for (std::int32_t& label : labels)
        label = std::uniform_int_distribution<int>(0, workload.classes() - 1)(random);
      write_labels(labels);
    } else {
      targets.resize(static_cast<std::size_t>(data.samples * workload.outputs()));
      for (float& target : targets) target = std::uniform_real_distribution<float>(0, 1)(random);
      write_floats(data.targets, targets);
    }
    parameters_file = folder / "initial.f32";
    initial = initial_parameters(workload.model.widths, workload.seed);
    write_floats(parameters_file, initial.flat());
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void write_labels(const std::vector<std::int32_t>& values) const {
    std::ofstream(data.targets, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(std::int32_t)));
  }
  DatasetView view() const {
    return {features.data(), labels.empty() ? nullptr : labels.data(),
            targets.empty() ? nullptr : targets.data(), data.samples, data.feature_count};
  }
  Prepared prepare(WorkerClient& worker, const std::string& backend,
                   Precision precision = Precision::kFp32) const {
    return worker.prepare(backend, workload, precision, data, parameters_file, "");
  }

  Workload workload;
  std::filesystem::path folder, parameters_file;
  DataFiles data;
  std::vector<float> features;
  std::vector<std::int32_t> labels;  // with cross-entropy
  std::vector<float> targets;        // else
  Parameters initial;
};

inline Workload small_workload(std::vector<int> widths = {6, 5, 4, 3}, int batch_size = 4,
                               std::uint64_t seed = 1) {
  Workload workload;
  workload.name = "small";
  workload.model.widths = std::move(widths);
  workload.batch_size = batch_size;
  workload.seed = seed;
  return workload;
}

}  // namespace headroom
