// What the tests of the LibTorch rows share: the worker, networks to train, and the driver's check against the
// oracle.
//
// The worker finds PyTorch through HEADROOM_TORCH_LIBRARY_PATH, which `./headroom test` sets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "analysis/verification.h"
#include "oracle/oracle.h"
#include "scratch.h"
#include "worker/float_file.h"

namespace headroom {

/// Networks of odd shapes and an ordinary one; the seed is fresh for each run and shown when a test fails.
inline std::vector<Workload> workloads() {
  const std::uint64_t seed = std::random_device()();
  std::vector<Workload> result = {small_workload({33, 7, 10}, 1, seed),
                                  small_workload({20, 10}, 31, seed + 1),
                                  small_workload({784, 128, 128, 10}, 32, seed + 2)};
  for (Workload& workload : result) workload.optimizer.learning_rate = 0.003;
  return result;
}

inline WorkerCommand torch_worker(const Scratch& scratch) {
  WorkerCommand command{
      "libtorch", {(program_folder() / "headroom-torch-worker").string()}, {}, scratch.folder / "log"};
  // PyTorch's threads wait awake, which takes the cores from the oracle's.
  command.environment["OMP_NUM_THREADS"] = "1";
  const char* torch_path = std::getenv("HEADROOM_TORCH_LIBRARY_PATH");
  const char* path = std::getenv("LD_LIBRARY_PATH");
  if (torch_path != nullptr) {
    command.environment["LD_LIBRARY_PATH"] = torch_path + (path != nullptr ? ":" + std::string(path) : "");
  }
  return command;
}

inline OfferedPrecision offered(const WorkerHello& hello, const std::string& name, Precision precision) {
  for (const OfferedBackend& backend : hello.backends) {
    if (backend.name == name) return backend.precisions.at(precision);
  }
  ADD_FAILURE() << name << " is not there";
  return {};
}

/// The check before timing, as the driver makes it at all of its steps.
/// Sets the point's state, trains its step and compares what came of it.
inline StepErrors errors_at(WorkerClient& worker, const Scratch& scratch, Precision precision,
                            Contract contract, const ReferencePoint& point) {
  write_state(scratch.folder / "start", point.start);
  worker.set_state(scratch.folder / "start");
  worker.train(point.step, 1);
  worker.state(scratch.folder / "after");
  State after = State::unset(scratch.workload.model.widths, scratch.workload.optimizer.slots());
  read_state(scratch.folder / "after", after);
  if (contract == Contract::kExact) {
    const float loss = worker.losses(point.step, 1, scratch.folder / "losses").at(0);
    EXPECT_NEAR(loss, point.loss, 1e-5 * (1 + point.loss));
  }
  return compare_step(scratch.workload.optimizer, point, after,
                      gradient_format(precision, contract, scratch.workload.batch_size));
}

inline void expect_steps_like_the_oracle(WorkerClient& worker, const Scratch& scratch, Precision precision,
                                         Contract contract,
                                         const std::vector<std::int64_t>& steps = {std::begin(kCheckSteps),
                                                                                   std::end(kCheckSteps)}) {
  std::vector<StepErrors> errors;
  follow_reference(
      scratch.workload, precision, /*rounding=*/true, scratch.view(), scratch.initial, steps,
      [&](const ReferencePoint& point) {
        errors.push_back(errors_at(worker, scratch, precision, contract, point));
      },
      [](const Parameters&) {}, {{contract}, kCopies});
  const Verification verification = judge(step_update_checks(scratch.workload, errors, precision));
  // In a tiny network too little may be seen; no network may be wrong.
  if (std::ranges::max(scratch.workload.model.widths) < 64 &&
      verification.verdict == Verdict::kCannotBeChecked)
    return;
  EXPECT_EQ(verification.verdict, Verdict::kPass) << failure_message(verification);
}

}  // namespace headroom
