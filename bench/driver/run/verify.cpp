#include "driver/run/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

#include "analysis/verification.h"
#include "core/parallel.h"
#include "driver/system/interruption.h"

namespace headroom {
namespace {

// Operations above which a GPU is asked, if there is one, and above which the oracle's trajectory is cut short.
constexpr double kMostCpuOperations = 1e11;
constexpr double kMostOperationsOnCpu = 1e12, kMostOperationsOnGpu = 2e13;

// The trajectory in double; each checked step from its fp32 rounding, and its copies; the copies' free steps.
double operations(const Workload& workload, std::int64_t last_step, int copies) {
  const std::int64_t steps =
      last_step + 1 + std::ssize(kCheckSteps) * (1 + copies) + kFreeSteps * std::min(copies, kFreeCopies);
  return oracle_operations(workload) * static_cast<double>(steps);
}

// Once for all backends: a mapping's pages take as long to find as to compare.
void map_points(Reference& reference, const Workload& workload, const std::vector<Contract>& contracts,
                const std::vector<double>& free_spreads) {
  const std::int64_t count = workload.parameter_count(),
                     state_count = count * (1 + workload.optimizer.slots());
  const ReferenceFiles& files = reference.files;
  std::vector<std::int64_t> steps = reference.steps;
  if (reference.has_probe) steps.push_back(kProbeStep);
  for (const std::int64_t step : steps)
    reference.starts.push_back(std::make_unique<MappedFile<float>>(files.start(step), state_count));
  for (std::size_t i = 0; i < contracts.size(); ++i) {
    Reference::OfContract& own = reference.contracts[contracts[i]];
    for (const std::int64_t step : steps) {
      own.updates.push_back(
          std::make_unique<MappedFile<float>>(files.update(contracts[i], step), state_count));
      own.copies.push_back(read_copies(files.copies(contracts[i], step), reference.copies, workload));
    }
    own.free_spread = free_spreads.at(i);
  }
  reference.end = std::make_unique<MappedFile<float>>(files.free(), count);
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
      operations += kActivation * workload.joined_batch_size() * widths[i];
  }
  if (workload.optimizer.slots() == 2) operations += kSlots * static_cast<double>(workload.parameter_count());
  return operations;
}

CheckPlan check_plan(const Workload& workload, bool on_gpu) {
  constexpr int kFewCopies = 4;
  const std::vector<std::int64_t> late(std::begin(kCheckSteps), std::end(kCheckSteps)),
      early(std::begin(kEarlyCheckSteps), std::end(kEarlyCheckSteps));
  const double most = on_gpu ? kMostOperationsOnGpu : kMostOperationsOnCpu;
  for (const auto& [steps, copies] :
       {std::pair(late, kCopies), std::pair(late, kFewCopies), std::pair(early, kCopies)})
    if (operations(workload, steps.back(), copies) <= most) return {steps, copies};
  return {early, kFewCopies};
}

double reference_operations(const Workload& workload, bool on_gpu) {
  const CheckPlan plan = check_plan(workload, on_gpu);
  return operations(workload, plan.steps.back(), plan.copies);
}

bool wants_gpu_oracle(const Workload& workload) {
  return operations(workload, std::end(kCheckSteps)[-1], kCopies) > kMostCpuOperations;
}

Reference cpu_reference(const TrainingFiles& files, Precision precision,
                        const std::vector<Contract>& contracts, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const CheckPlan plan = check_plan(files.joined, false);
  Reference reference{{folder}, plan.steps, plan.copies};
  reference.has_probe = wants_probe(files.joined, precision);
  const Parameters initial = read_parameters(files.parameters, files.joined.model.widths);
  const std::vector<double> free_spreads = follow_reference(
      files.joined, precision, true, files.dataset.train(), initial, reference.steps,
      [&](const ReferencePoint& point) {
        interruption::throw_if_requested();
        if (point.contract == contracts.front()) write_state(reference.files.start(point.step), point.start);
        write_state(reference.files.update(point.contract, point.step), point.update);
        write_copies(reference.files.copies(point.contract, point.step), point.copies);
        if (!point.is_probe) reference.largest_loss = std::max(reference.largest_loss, point.loss);
      },
      [&](const Parameters& after) { write_floats(reference.files.free(), after.flat()); },
      {contracts, reference.copies, reference.has_probe});
  map_points(reference, files.joined, contracts, free_spreads);
  return reference;
}

Reference gpu_reference(WorkerClient& client, const std::string& backend, const TrainingFiles& files,
                        Precision precision, const std::vector<Contract>& contracts,
                        const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const CheckPlan plan = check_plan(files.joined, true);
  Reference reference{{folder}, plan.steps, plan.copies};
  reference.has_probe = wants_probe(files.joined, precision);
  client.prepare(backend, files.joined, precision, files.data, files.parameters, "");
  const ReferenceAnswer answer = client.reference(reference.steps, kFreeSteps,
                                                  {contracts, reference.copies, reference.has_probe}, folder);
  for (const double loss : answer.losses) reference.largest_loss = std::max(reference.largest_loss, loss);
  client.release();
  map_points(reference, files.joined, contracts, answer.free_spreads);
  return reference;
}

int checks_side_by_side(const Workload& workload) {
  constexpr std::int64_t kMost = 4, kParameters = 2'000'000'000;
  return static_cast<int>(std::clamp<std::int64_t>(
      std::min<std::int64_t>(kParameters / workload.parameter_count(), parallel_threads() / 2), 1, kMost));
}

Verification check_trainer(WorkerClient& client, const TrainingFiles& files, const Reference& reference,
                           Contract contract, Precision precision, const std::filesystem::path& trained_file,
                           const std::function<void()>& between_steps) {
  const std::vector<int>& widths = files.joined.model.widths;
  const Optimizer& optimizer = files.joined.optimizer;
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
  const Reference::OfContract& own = reference.contracts.at(contract);
  const GradientFormat format = gradient_format(precision, contract, files.joined.batch_size);
  const auto compare = [&](std::int64_t step, std::size_t i) {
    between_steps();
    client.set_state(reference.files.start(step));
    train(step, 1);
    read_trained();
    return compare_step(step, optimizer, {widths, reference.starts[i]->values(), slots}, trained,
                        {widths, own.updates[i]->values(), slots}, own.copies[i], format);
  };
  std::vector<StepErrors> errors;
  for (std::size_t i = 0; i < reference.steps.size(); ++i) errors.push_back(compare(reference.steps[i], i));
  std::optional<Check> probe;
  if (reference.has_probe)
    probe = probe_check(files.joined, compare(kProbeStep, reference.steps.size()), precision);
  client.set_state(files.initial_state);
  train(0, kFreeSteps);
  read_trained();
  const MappedFile<float> initial(files.parameters, files.joined.parameter_count());
  const std::vector<double> free_errors = update_errors_from_end(
      {widths, initial.values()}, trained.parameters, {widths, reference.end->values()});
  client.set_state(files.initial_state);
  std::vector<Check> checks = step_update_checks(files.joined, errors, precision);
  checks.push_back(ten_steps_check(free_errors, own.free_spread));
  if (probe) checks.push_back(*probe);
  Verification verification = judge(std::move(checks));
  verification.copies = reference.copies;
  return verification;
}

}  // namespace headroom
