#include "driver/run/training_files.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"

namespace headroom {
namespace {

void write_labels(const std::filesystem::path& file, const std::vector<std::int32_t>& labels) {
  std::ofstream stream(file, std::ios::binary);
  stream.write(reinterpret_cast<const char*>(labels.data()),
               static_cast<std::streamsize>(labels.size() * sizeof labels[0]));
  stream.close();
  if (!stream)
    throw OutputError(
        fmt::format("{}: cannot be written: {}", file.filename().string(), std::strerror(errno)));
}

}  // namespace

TrainingFiles write_training_files(const Workload& workload, std::int64_t least_train_bytes,
                                   const std::filesystem::path& folder, bool keep_training_samples) {
  std::filesystem::create_directories(folder);
  TrainingFiles files{workload,
                      workload.joined(),
                      {},
                      folder / "initial.f32",
                      folder / "initial.f32",
                      make_dataset(workload, least_train_bytes),
                      {}};
  Dataset& dataset = files.dataset;
  const auto samples = dataset.train().samples;
  const bool labelled = workload.loss == Loss::kCrossEntropy;
  files.data = {folder / "features.f32", folder / (labelled ? "labels.i32" : "targets.f32"), samples,
                dataset.feature_count};
  write_floats(files.data.features, dataset.train_features);
  if (labelled)
    write_labels(files.data.targets, dataset.train_labels);
  else
    write_floats(files.data.targets, dataset.train_targets);
  const State initial =
      State::initial(initial_parameters(workload.model.widths, workload.seed), workload.optimizer.slots());
  write_floats(files.parameters, initial.parameters.flat());
  if (!initial.slots.empty()) {
    files.initial_state = folder / "initial-state.f32";
    write_state(files.initial_state, initial);
  }
  files.info = {dataset.description, dataset.digest, samples, dataset.held_out().samples,
                samples / workload.joined_batch_size()};
  if (!keep_training_samples) {
    dataset.train_features = {};
    dataset.train_labels = {};
    dataset.train_targets = {};
  }
  return files;
}

Parameters read_parameters(const std::filesystem::path& file, const std::vector<int>& widths) {
  Parameters parameters = Parameters::unset(widths);
  read_floats(file, parameters.flat());
  return parameters;
}

}  // namespace headroom
