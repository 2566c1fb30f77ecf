#include "driver/run/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "analysis/verification.h"
#include "core/parallel.h"
#include "driver/system/interruption.h"

namespace headroom {
namespace {

// Operations above which a GPU is asked, if there is one, and above which the oracle's trajectory is cut short.
constexpr double kMostCpuOperations = 1e11;
constexpr double kMostOperationsOnCpu = 1e12, kMostOperationsOnGpu = 2e13;

// Each checked step costs the oracle two: one of the trajectory, in double, and one from its fp32 rounding.
double operations(const Workload& workload, std::int64_t last_step) {
  return oracle_operations(workload) * static_cast<double>(last_step + 1 + std::ssize(kCheckSteps));
}

// Once for all backends: a mapping's pages take as long to find as to compare.
void map_points(Reference& reference, const Workload& workload) {
  const std::int64_t count = workload.parameter_count(),
                     state_count = count * (1 + workload.optimizer.slots());
  for (const std::int64_t step : reference.steps) {
    reference.starts.push_back(std::make_unique<MappedFile<float>>(reference.start(step), state_count));
    reference.updates.push_back(std::make_unique<MappedFile<float>>(reference.update(step), state_count));
  }
  reference.end = std::make_unique<MappedFile<float>>(reference.free(), count);
}

}  // namespace

double oracle_operations(const Workload& workload) {
  // On one core of a CPU: a product does some 1e10 operations a second, an exponential, a root or a division takes
  // nanoseconds.
  constexpr double kActivation = 200, kSlots = 60;
  const std::vector<int>& widths = workload.model.widths;
  double operations = workload.flops_per_step();
  if (workload.model.activation != Activation::kRelu) {
    for (std::size_t i = 1; i + 1 < widths.size(); ++i)
      operations += kActivation * workload.batch_size * widths[i];
  }
  if (workload.optimizer.slots() == 2) operations += kSlots * static_cast<double>(workload.parameter_count());
  return operations;
}

std::vector<std::int64_t> check_steps(const Workload& workload, bool on_gpu) {
  if (operations(workload, std::end(kCheckSteps)[-1]) >
      (on_gpu ? kMostOperationsOnGpu : kMostOperationsOnCpu))
    return {std::begin(kEarlyCheckSteps), std::end(kEarlyCheckSteps)};
  return {std::begin(kCheckSteps), std::end(kCheckSteps)};
}

double reference_operations(const Workload& workload, bool on_gpu) {
  return operations(workload, check_steps(workload, on_gpu).back());
}

std::filesystem::path Reference::start(std::int64_t step) const {
  return folder / fmt::format("start-{}.f32", step);
}
std::filesystem::path Reference::update(std::int64_t step) const {
  return folder / fmt::format("update-{}.f32", step);
}

bool wants_gpu_oracle(const Workload& workload) {
  return operations(workload, std::end(kCheckSteps)[-1]) > kMostCpuOperations;
}

Reference cpu_reference(const TrainingFiles& files, Precision precision,
                        const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  Reference reference{folder, check_steps(files.workload, false)};
  const Parameters initial = read_parameters(files.parameters, files.workload.model.widths);
  follow_reference(
      files.workload, precision, true, files.dataset.train(), initial, reference.steps,
      [&](const ReferencePoint& point) {
        interruption::throw_if_requested();
        write_state(reference.start(point.step), point.start);
        write_state(reference.update(point.step), point.update);
        reference.largest_loss = std::max(reference.largest_loss, point.loss);
      },
      [&](const Parameters& after) { write_floats(reference.free(), after.flat()); });
  map_points(reference, files.workload);
  return reference;
}

Reference gpu_reference(WorkerClient& client, const std::string& backend, const TrainingFiles& files,
                        Precision precision, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  Reference reference{folder, check_steps(files.workload, true)};
  client.prepare(backend, files.workload, precision, files.data, files.parameters, "");
  for (const double loss : client.reference(reference.steps, kFreeSteps, folder)) {
    reference.largest_loss = std::max(reference.largest_loss, loss);
  }
  client.release();
  map_points(reference, files.workload);
  return reference;
}

int checks_side_by_side(const Workload& workload) {
  constexpr std::int64_t kMost = 4, kParameters = 2'000'000'000;
  return static_cast<int>(std::clamp<std::int64_t>(
      std::min<std::int64_t>(kParameters / workload.parameter_count(), parallel_threads() / 2), 1, kMost));
}

std::vector<Check> check_trainer(WorkerClient& client, const TrainingFiles& files, const Reference& reference,
                                 Contract contract, Precision precision,
                                 const std::filesystem::path& trained_file,
                                 const std::function<void()>& between_steps) {
  const std::vector<int>& widths = files.workload.model.widths;
  const Optimizer& optimizer = files.workload.optimizer;
  const int slots = optimizer.slots();
  // The oracle's points stay where they are. What the worker wrote is copied: were it to cut its file short while that
  // is mapped, this process would end.
  State trained = State::unset(widths, slots);
  const auto read_trained = [&] {
    client.state(trained_file);
    read_state(trained_file, trained);
  };
  const auto train = [&](std::int64_t first_step, std::int64_t count) {
    // Kernels that occupy the whole device do not take turns well with those of another process.
    static std::mutex device;
    const std::lock_guard alone(device);
    client.train(first_step, count);
  };
  std::vector<StepErrors> errors;
  for (std::size_t i = 0; i < reference.steps.size(); ++i) {
    const std::int64_t step = reference.steps[i];
    between_steps();
    client.set_state(reference.start(step));
    train(step, 1);
    read_trained();
    errors.push_back(compare_step(step, optimizer, {widths, reference.starts[i]->values(), slots}, trained,
                                  {widths, reference.updates[i]->values(), slots}));
  }
  client.set_state(files.initial_state);
  train(0, kFreeSteps);
  read_trained();
  const MappedFile<float> initial(files.parameters, files.workload.parameter_count());
  const std::vector<double> free_errors = update_errors_from_end(
      {widths, initial.values()}, trained.parameters, {widths, reference.end->values()});
  client.set_state(files.initial_state);
  std::vector<Check> checks = step_update_checks(files.workload, errors, contract, precision);
  checks.push_back(ten_steps_check(free_errors));
  return checks;
}

}  // namespace headroom
