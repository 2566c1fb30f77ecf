#include "driver/run/worker_pool.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <thread>

#include "core/error.h"
#include "driver/system/interruption.h"

namespace headroom {

WorkerPool::WorkerPool(std::vector<WorkerProgram> programs, int device, TimeLimits limits,
                       std::filesystem::path log_folder)
    : programs_(std::move(programs)), device_(device), limits_(limits), log_folder_(std::move(log_folder)) {
  for (const WorkerProgram& program : programs_)
    greetings_.push_back({program.name, std::nullopt, false, "", false});
  interruption::set_action([this] { kill_all(); });
}

WorkerPool::~WorkerPool() {
  interruption::set_action(nullptr);
  end_all();
}

std::shared_ptr<WorkerClient> WorkerPool::start(const WorkerProgram& program, const std::string& purpose) {
  std::filesystem::path log;
  {
    const std::lock_guard lock(mutex_);
    log = log_folder_ / fmt::format("{}.log", logs_.emplace(purpose, logs_.size()).first->second);
  }
  return std::make_shared<WorkerClient>(
      WorkerCommand{program.name, program.command, program.environment, log}, device_, limits_);
}

void WorkerPool::greet_all() {
  std::vector<std::string> names;
  for (const WorkerProgram& program : programs_) names.push_back(program.name);
  greet(names);
}

void WorkerPool::greet(const std::vector<std::string>& wanted) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < programs_.size(); ++i) {
    const WorkerProgram& program = programs_[i];
    Greeting& greeting = greetings_[i];
    if (greeting.asked || std::find(wanted.begin(), wanted.end(), program.name) == wanted.end()) continue;
    greeting.asked = true;
    if (program.missing) {
      greeting.problem = *program.missing;
      greeting.not_built = true;
      continue;
    }
    try {
      // Started here and not in the thread: a worker is told to end with the thread that started it.
      std::shared_ptr<WorkerClient> client = start(program, program.name);
      {
        const std::lock_guard lock(mutex_);
        spare_[program.name] = client;  // from here on kill_all() reaches it
      }
      threads.emplace_back([this, &greeting, client] {
        try {
          greeting.hello = client->hello();
        } catch (const std::exception& error) {
          greeting.problem = error.what();
          const std::lock_guard lock(mutex_);
          spare_.erase(greeting.worker);
        }
      });
    } catch (const std::exception& error) {
      greeting.problem = error.what();
    }
  }
  for (std::thread& thread : threads) thread.join();
  interruption::throw_if_requested();
}

const WorkerProgram& WorkerPool::program_of(const BackendRow& row) const {
  const auto found = std::find_if(programs_.begin(), programs_.end(),
                                  [&](const auto& one) { return one.name == row.worker; });
  if (found == programs_.end()) throw WorkerLostError(fmt::format("worker '{}' is not known", row.worker));
  return *found;
}

const Greeting* WorkerPool::greeting(const std::string& worker) const {
  for (const Greeting& one : greetings_) {
    if (one.worker == worker) return &one;
  }
  return nullptr;
}

void WorkerPool::add_rows(std::vector<BackendRow>& table) const {
  for (const Greeting& greeting : greetings_) {
    if (!greeting.hello) continue;
    for (const OfferedBackend& offered : greeting.hello->backends) {
      const auto same =
          std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.name == offered.name; });
      if (same == table.end()) {
        table.push_back({offered.name, greeting.worker, Family::kOther,
                         fmt::format("served by worker '{}'", greeting.worker)});
      } else if (same->worker != greeting.worker) {
        throw InputError(fmt::format(
            "--worker {}: offers backend '{}', which worker '{}' has already; replace that worker instead",
            greeting.worker, offered.name, same->worker));
      }
    }
  }
}

Availability WorkerPool::availability(const BackendRow& row, Precision precision) const {
  const Greeting* found = greeting(row.worker);
  if (found == nullptr || found->not_built) {
    return {Availability::State::kSkipped, found == nullptr ? "its worker is not known" : found->problem,
            Contract::kExact};
  }
  if (!found->hello) return {Availability::State::kFailed, found->problem, Contract::kExact};
  for (const OfferedBackend& offered : found->hello->backends) {
    if (offered.name != row.name) continue;
    const auto entry = offered.precisions.find(precision);
    if (entry == offered.precisions.end()) {
      return {Availability::State::kSkipped,
              fmt::format("{} does not offer {}", row.name, to_string(precision)), Contract::kExact};
    }
    if (entry->second.unavailable) {
      return {Availability::State::kSkipped, *entry->second.unavailable, entry->second.contract};
    }
    return {Availability::State::kAvailable, "", entry->second.contract};
  }
  return {Availability::State::kSkipped,
          fmt::format("this build of worker '{}' does not offer it", row.worker), Contract::kExact};
}

std::optional<DeviceInfo> WorkerPool::device() const {
  for (const Greeting& greeting : greetings_) {
    if (greeting.hello && greeting.hello->device) return greeting.hello->device;
  }
  return std::nullopt;
}

std::map<std::string, std::string> WorkerPool::software() const {
  std::map<std::string, std::string> all;
  for (const Greeting& greeting : greetings_) {
    if (!greeting.hello) continue;
    for (const auto& [name, version] : greeting.hello->software) {
      const auto [entry, added] = all.emplace(name, version);
      // Two workers may bring their own, such as the CUDA runtime of our kernels and that of PyTorch.
      if (!added && entry->second != version) all[fmt::format("{} ({})", name, greeting.worker)] = version;
    }
  }
  return all;
}

Calibration WorkerPool::calibrate(const std::function<void(const std::string&)>& complain) {
  Calibration all;
  for (const Greeting& greeting : greetings_) {
    if (!greeting.hello || !greeting.hello->calibrates) continue;
    interruption::throw_if_requested();
    std::shared_ptr<WorkerClient> client;
    {
      const std::lock_guard lock(mutex_);
      const auto spare = spare_.find(greeting.worker);
      if (spare == spare_.end()) continue;  // it went away after its hello
      client = spare->second;
    }
    try {
      for (const auto& [name, rate] : client->calibrate()) {
        const auto [entry, added] = all.emplace(name, rate);
        const bool lower_is_better = rate.unit == "seconds";
        if (!added && (rate.value < entry->second.value) == lower_is_better) entry->second = rate;
      }
    } catch (const std::exception& error) {
      interruption::throw_if_requested();
      complain(fmt::format("Calibration: {}", error.what()));
      const std::lock_guard lock(mutex_);
      spare_.erase(greeting.worker);  // its CUDA context may be broken
    }
  }
  return all;
}

void WorkerPool::start_ahead(const std::vector<BackendRow>& rows) {
  std::set<std::string> with_spare;
  std::vector<std::thread> threads;
  for (const BackendRow& row : rows) {
    const Greeting* found = greeting(row.worker);
    if (found == nullptr || !found->hello || with_spare.insert(row.worker).second) continue;
    try {
      // Started here and not in the thread: see greet().
      std::shared_ptr<WorkerClient> client = start(program_of(row), row.name);
      {
        const std::lock_guard lock(mutex_);
        if (!serving_.emplace(row.name, client).second) continue;
      }
      threads.emplace_back([this, name = row.name, client] {
        try {
          client->hello();
        } catch (const std::exception&) {
          end(name);
        }
      });
    } catch (const std::exception&) {
      continue;
    }
  }
  for (std::thread& thread : threads) thread.join();
  interruption::throw_if_requested();
}

WorkerClient& WorkerPool::client(const BackendRow& row) {
  interruption::throw_if_requested();
  {
    const std::lock_guard lock(mutex_);
    const auto found = serving_.find(row.name);
    if (found != serving_.end() && found->second->alive()) return *found->second;
    const auto spare = spare_.find(row.worker);
    if (spare != spare_.end()) {
      std::shared_ptr<WorkerClient> client = spare->second;
      spare_.erase(spare);
      if (client->alive()) return *(serving_[row.name] = client);
    }
  }
  end(row.name);
  std::shared_ptr<WorkerClient> client = start(program_of(row), row.name);
  {
    const std::lock_guard lock(mutex_);
    serving_[row.name] = client;
  }
  interruption::throw_if_requested();  // the signal may have come before the process could be reached
  client->hello();
  return *client;
}

std::shared_ptr<WorkerClient> WorkerPool::start_aside(const BackendRow& row, const std::string& purpose,
                                                      const std::map<std::string, std::string>& environment) {
  WorkerProgram program = program_of(row);
  for (const auto& [name, value] : environment) program.environment[name] = value;
  std::shared_ptr<WorkerClient> client = start(program, purpose);
  {
    const std::lock_guard lock(mutex_);
    aside_.push_back(client);
  }
  interruption::throw_if_requested();
  client->hello();
  return client;
}

void WorkerPool::end(const std::string& backend) {
  std::shared_ptr<WorkerClient> client;
  const std::lock_guard lock(mutex_);
  const auto found = serving_.find(backend);
  if (found == serving_.end()) return;
  client = found->second;
  serving_.erase(found);
}

void WorkerPool::end_all() {
  std::vector<std::shared_ptr<WorkerClient>> clients;
  {
    const std::lock_guard lock(mutex_);
    for (auto* map : {&spare_, &serving_}) {
      for (auto& [name, client] : *map) clients.push_back(std::move(client));
      map->clear();
    }
  }
  std::vector<std::thread> threads;
  for (std::shared_ptr<WorkerClient>& client : clients)
    threads.emplace_back([ending = std::move(client)]() mutable { ending.reset(); });
  for (std::thread& thread : threads) thread.join();
}

void WorkerPool::kill_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [name, client] : spare_) client->kill();
  for (auto& [name, client] : serving_) client->kill();
  for (const std::weak_ptr<WorkerClient>& one : aside_) {
    if (const auto client = one.lock()) client->kill();
  }
}

}  // namespace headroom
