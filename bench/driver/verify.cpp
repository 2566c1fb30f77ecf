#include "driver/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "analysis/verification.h"
#include "driver/interruption.h"
#include "worker/mapped_file.h"

namespace headroom {
namespace {

// Operations above which a GPU is asked, if there is one, and above which the oracle's trajectory is cut short.
constexpr double kMostCpuOperations = 1e11;
constexpr double kMostOperationsOnCpu = 1e12, kMostOperationsOnGpu = 2e13;

// Each checked step costs the oracle two: one of the trajectory, in double, and one from its fp32 rounding.
double operations(const Workload& workload, std::int64_t last_step) {
  return workload.flops_per_step() * static_cast<double>(last_step + 1 + std::ssize(kCheckSteps));
}

}  // namespace

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
  Reference reference{folder, check_steps(files.workload, false), 0};
  const Parameters initial = read_parameters(files.parameters, files.workload.widths);
  follow_reference(
      files.workload, precision, true, files.dataset.train(), initial, reference.steps,
      [&](const ReferencePoint& point) {
        interruption::throw_if_requested();
        write_floats(reference.start(point.step), point.start.flat());
        write_floats(reference.update(point.step), point.update.flat());
        reference.largest_loss = std::max(reference.largest_loss, point.loss);
      },
      [&](const Parameters& after) { write_floats(reference.free(), after.flat()); });
  return reference;
}

Reference gpu_reference(WorkerClient& client, const TrainingFiles& files, Precision precision,
                        const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  Reference reference{folder, check_steps(files.workload, true), 0};
  client.prepare("oracle-cuda", files.workload, precision, files.data, files.parameters, "");
  for (const double loss : client.reference(reference.steps, kFreeSteps, folder)) {
    reference.largest_loss = std::max(reference.largest_loss, loss);
  }
  client.release();
  return reference;
}

std::vector<Check> check_trainer(WorkerClient& client, const TrainingFiles& files, const Reference& reference,
                                 Contract contract, Precision precision, const std::filesystem::path& scratch,
                                 const std::function<void()>& between_steps) {
  const std::vector<int>& widths = files.workload.widths;
  const std::filesystem::path trained_file = scratch / "trained.f32";
  // The oracle's points stay where they are. What the worker wrote is copied: were it to cut its file short while that
  // is mapped, this process would end.
  const auto mapped = [&](const std::filesystem::path& file) {
    return MappedFile<float>(file, files.workload.parameter_count());
  };
  Parameters trained = Parameters::unset(widths);
  const auto read_trained = [&] {
    client.parameters(trained_file);
    read_floats(trained_file, trained.flat());
  };
  std::vector<StepErrors> errors;
  for (const std::int64_t step : reference.steps) {
    between_steps();
    client.set_parameters(reference.start(step));
    client.train(step, 1);
    read_trained();
    const MappedFile<float> start = mapped(reference.start(step)), update = mapped(reference.update(step));
    errors.push_back(compare_step(step, {widths, start.values()}, trained, {widths, update.values()}));
  }
  client.set_parameters(files.parameters);
  client.train(0, kFreeSteps);
  read_trained();
  const MappedFile<float> initial = mapped(files.parameters), free = mapped(reference.free());
  const std::vector<double> free_errors =
      update_errors_from_end({widths, initial.values()}, trained, {widths, free.values()});
  client.set_parameters(files.parameters);
  std::error_code ignored;
  std::filesystem::remove(trained_file, ignored);
  std::vector<Check> checks = step_update_checks(files.workload, errors, contract, precision);
  checks.push_back(ten_steps_check(free_errors));
  return checks;
}

}  // namespace headroom
