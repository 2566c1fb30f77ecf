#include "driver/compare/side_workers.h"

#include <fmt/core.h>

#include <algorithm>

#include "driver/compare/comparison.h"
#include "driver/system/interruption.h"

namespace headroom {

const char* to_string(Side side) { return side == Side::kBase ? "base" : "head"; }

SideWorkers::SideWorkers(std::array<std::vector<WorkerProgram>, 2> programs, int device, TimeLimits limits,
                         std::filesystem::path log_folder)
    : programs_(std::move(programs)), device_(device), limits_(limits), log_folder_(std::move(log_folder)) {
  interruption::set_action([this] { kill_all(); });
}

SideWorkers::~SideWorkers() {
  interruption::set_action(nullptr);
  end_all();
}

void SideWorkers::launch(Side side, const std::string& worker) {
  Process& one = process(side, worker);
  one.problem.clear();
  const std::vector<WorkerProgram>& programs = programs_[static_cast<std::size_t>(side)];
  const auto program =
      std::find_if(programs.begin(), programs.end(), [&](const auto& other) { return other.name == worker; });
  if (program == programs.end() || program->missing) {
    one.problem =
        program == programs.end() ? fmt::format("worker '{}' is not known", worker) : *program->missing;
    return;
  }
  try {
    const std::filesystem::path log =
        log_folder_ / fmt::format("{}-{}.log", to_string(side), program - programs.begin());
    auto client = std::make_shared<WorkerClient>(
        WorkerCommand{worker, program->command, program->environment, log}, device_, limits_);
    const std::lock_guard lock(mutex_);
    one.client = std::move(client);
  } catch (const WorkerLostError& error) {
    one.problem = error.what();
  }
  interruption::throw_if_requested();  // the signal may have come before the process could be reached
}

void SideWorkers::greet(Side side, const std::string& worker) {
  Process& one = process(side, worker);
  if (one.client == nullptr) return;
  try {
    one.hello = one.client->hello();
    return;
  } catch (const WorkerCallError& error) {
    // The only thing wrong with a hello can be its version.
    if (error.kind() == WorkerCallError::Kind::kInput)
      throw NotComparableError(fmt::format("{} is not comparable: {}", to_string(side), error.what()));
    one.problem = error.what();
  } catch (const WorkerLostError& error) {
    one.problem = error.what();
  }
  interruption::throw_if_requested();
  end(side, worker);
}

void SideWorkers::start(const std::string& worker) {
  std::vector<Side> started;
  for (const Side side : kSides) {
    const Process& one = process(side, worker);
    if (one.client != nullptr && one.client->alive()) continue;
    launch(side, worker);
    started.push_back(side);
  }
  for (const Side side : started) greet(side, worker);
}

WorkerClient& SideWorkers::client(Side side, const std::string& worker) {
  Process& one = process(side, worker);
  if (one.client == nullptr || !one.client->alive()) start(worker);
  if (one.client == nullptr) throw std::runtime_error(one.problem);
  return *one.client;
}

const std::optional<WorkerHello>& SideWorkers::hello(Side side, const std::string& worker) {
  return process(side, worker).hello;
}

void SideWorkers::end(Side side, const std::string& worker) {
  std::shared_ptr<WorkerClient> client;
  const std::lock_guard lock(mutex_);
  client.swap(process(side, worker).client);
}

void SideWorkers::end_all() {
  // Killed, all at once: they have nothing to save, and a CUDA process takes its time to leave.
  kill_all();
  std::vector<std::shared_ptr<WorkerClient>> clients;
  const std::lock_guard lock(mutex_);
  for (auto& [key, process] : processes_) clients.push_back(std::move(process.client));
}

void SideWorkers::kill_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [key, process] : processes_) {
    if (process.client != nullptr) process.client->kill();
  }
}

}  // namespace headroom
