#include "driver/run/worker_pool.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "core/error.h"
#include "driver/system/interruption.h"

namespace headroom {

WorkerPool::WorkerPool(std::vector<WorkerProgram> programs, int device, TimeLimits limits,
                       std::filesystem::path log_folder, std::vector<int> peers)
    : programs_(std::move(programs)),
      device_(device),
      peers_(std::move(peers)),
      limits_(limits),
      log_folder_(std::move(log_folder)) {
  for (const WorkerProgram& program : programs_) greetings_.emplace_back().worker = program.name;
}

WorkerPool::~WorkerPool() { end_all(); }

std::shared_ptr<WorkerClient> WorkerPool::start(const WorkerProgram& program, const std::string& purpose) {
  std::filesystem::path log;
  {
    const std::lock_guard lock(mutex_);
    log = log_folder_ / fmt::format("{}.log", logs_.emplace(purpose, logs_.size()).first->second);
  }
  std::map<std::string, std::string> environment = program.environment;
  if (!used_devices_.empty()) environment["HEADROOM_DEVICES"] = used_devices_;
  return std::make_shared<WorkerClient>(WorkerCommand{program.name, program.command, environment, log},
                                        device_, limits_, peers_);
}

void WorkerPool::use_peers(const std::vector<int>& peers) {
  if (peers.empty()) return;
  used_devices_ = fmt::format("{},{}", device_, fmt::join(peers, ","));
  end_greeted("jax");
}

void WorkerPool::greet_all() {
  std::vector<std::string> names;
  for (const WorkerProgram& program : programs_) names.push_back(program.name);
  greet(names);
}

void WorkerPool::greet(const std::vector<std::string>& wanted) {
  std::vector<std::string> launched;
  for (const Greeting& greeting : greetings_) {
    if (greeting.asked || std::find(wanted.begin(), wanted.end(), greeting.worker) == wanted.end()) continue;
    if (launch(greeting.worker)) launched.push_back(greeting.worker);
  }
  std::vector<std::jthread> threads;
  for (const std::string& worker : launched) threads.emplace_back([this, worker] { meet(worker); });
  threads.clear();  // joins them
  interruption::throw_if_requested();
}

// Called by the thread that uses the pool and by no other: a worker is told to end with the thread that started it.
bool WorkerPool::launch(const std::string& worker) {
  Greeting* greeting = find_greeting(worker);
  if (greeting == nullptr || living(greeted_, worker) != nullptr) return false;
  greeting->asked = true;
  greeting->problem.clear();
  const WorkerProgram& program = program_of(worker);
  if (program.missing) {
    greeting->problem = *program.missing;
    greeting->not_built = true;
    return false;
  }
  try {
    std::shared_ptr<WorkerClient> client = start(program, worker);
    const std::lock_guard lock(mutex_);
    greeted_[worker] = std::move(client);  // from here on kill_all() reaches it
    return true;
  } catch (const std::exception& error) {
    greeting->problem = error.what();
    end_greeted(worker);  // the one that has ended
    return false;
  }
}

void WorkerPool::meet(const std::string& worker) {
  Greeting* greeting = find_greeting(worker);
  std::shared_ptr<WorkerClient> client;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = greeted_.find(worker); found != greeted_.end()) client = found->second;
  }
  if (greeting == nullptr || client == nullptr) return;
  greeting->killed = false;
  try {
    if (greeting->hello) {
      client->wait_until_ready();
    } else {
      greeting->hello = client->hello();
    }
    return;
  } catch (const WorkerKilledError& error) {
    greeting->problem = error.what();
    greeting->killed = true;
  } catch (const WorkerProtocolError& error) {
    greeting->problem = error.what();
    greeting->other_protocol = true;
  } catch (const WorkerCallError& error) {
    greeting->problem = error.what();
    // The only thing wrong with a hello can be its version.
    greeting->other_protocol = error.kind() == WorkerCallError::Kind::kInput;
    if (greeting->other_protocol)
      greeting->problem =
          fmt::format("worker {} speaks another version of the worker protocol than {}, this program's: {}",
                      worker, kProtocolVersion, error.what());
  } catch (const std::exception& error) {
    greeting->problem = error.what();
  }
  end_greeted(worker);
}

const Greeting& WorkerPool::greeting(const std::string& worker) const {
  const Greeting* found = find_greeting(worker);
  if (found == nullptr) throw WorkerLostError(fmt::format("worker '{}' is not known", worker));
  return *found;
}

const WorkerProgram& WorkerPool::program_of(const std::string& worker) const {
  const auto found =
      std::find_if(programs_.begin(), programs_.end(), [&](const auto& one) { return one.name == worker; });
  if (found == programs_.end()) throw WorkerLostError(fmt::format("worker '{}' is not known", worker));
  return *found;
}

const Greeting* WorkerPool::find_greeting(const std::string& worker) const {
  for (const Greeting& one : greetings_) {
    if (one.worker == worker) return &one;
  }
  return nullptr;
}

Greeting* WorkerPool::find_greeting(const std::string& worker) {
  return const_cast<Greeting*>(std::as_const(*this).find_greeting(worker));
}

std::shared_ptr<WorkerClient> WorkerPool::living(const Processes& processes, const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = processes.find(name);
  return found != processes.end() && found->second->alive() ? found->second : nullptr;
}

std::vector<BackendRow> WorkerPool::rows() const {
  std::vector<BackendRow> table;
  for (const Greeting& greeting : greetings_) {
    if (!greeting.hello) continue;
    for (const OfferedBackend& offered : greeting.hello->backends) {
      const BackendRow* same = find_row(table, offered.name);
      if (same == nullptr) {
        const bool competes = offered.family != Family::kReference && offered.family != Family::kOther;
        table.push_back({.name = offered.name,
                         .worker = greeting.worker,
                         .family = offered.family,
                         .description = offered.description,
                         .compiles = offered.compiles,
                         .in_all = competes && !offered.repeats,
                         .reference = offered.reference,
                         .on_device = greeting.hello->device.has_value(),
                         .min_devices = offered.min_devices});
      } else if (same->worker != greeting.worker) {
        throw InputError(fmt::format(
            "--worker {}: offers backend '{}', which worker '{}' has already; replace that worker instead",
            greeting.worker, offered.name, same->worker));
      }
    }
  }
  std::stable_sort(table.begin(), table.end(),
                   [](const BackendRow& one, const BackendRow& other) { return one.family < other.family; });
  return table;
}

std::vector<const Greeting*> WorkerPool::silent() const {
  std::vector<const Greeting*> silent;
  for (const Greeting& greeting : greetings_)
    if (greeting.asked && !greeting.hello) silent.push_back(&greeting);
  return silent;
}

void WorkerPool::keep_only(const std::set<std::string>& workers) {
  for (Greeting& greeting : greetings_) {
    greeting.kept = workers.contains(greeting.worker);
    if (!greeting.kept) end_greeted(greeting.worker);
  }
}

Availability WorkerPool::availability(const BackendRow& row, Precision precision, int devices) const {
  const auto skipped = [](const std::string& reason, Contract contract = Contract::kExact) {
    return Availability{Availability::State::kSkipped, reason, contract};
  };
  if (row.worker.empty()) return availability_of_silent();
  const Greeting* found = find_greeting(row.worker);
  if (found == nullptr) return skipped("its worker is not known");
  if (!found->hello) return availability_of(*found);
  for (const OfferedBackend& offered : found->hello->backends) {
    if (offered.name != row.name) continue;
    const auto entry = offered.precisions.find(precision);
    if (entry == offered.precisions.end())
      return skipped(fmt::format("{} does not offer {}", row.name, to_string(precision)));
    const Contract contract = entry->second.contract;
    if (found->hello->broken) return {Availability::State::kFailed, *found->hello->broken, contract};
    if (entry->second.unavailable) return skipped(*entry->second.unavailable, contract);
    if (devices > offered.max_devices) return skipped(trains_on_fewer(offered.max_devices), contract);
    if (const int here = 1 + static_cast<int>(peers_.size()); row.on_device && devices > here)
      return skipped(
          fmt::format("needs {} CUDA devices, {} {} here", devices, here, here == 1 ? "is" : "are"),
          contract);
    return {Availability::State::kAvailable, "", contract};
  }
  return skipped(fmt::format("this build of worker '{}' does not offer it", row.worker));
}

Availability WorkerPool::availability_of(const Greeting& silent) const {
  const bool skipped = silent.not_built || silent.other_protocol;
  return {skipped ? Availability::State::kSkipped : Availability::State::kFailed, silent.problem,
          Contract::kExact};
}

Availability WorkerPool::availability_of_silent() const {
  Availability all{Availability::State::kSkipped, "no worker that answered offers it", Contract::kExact};
  for (const Greeting* greeting : silent()) {
    const Availability one = availability_of(*greeting);
    if (one.state == Availability::State::kFailed) all.state = one.state;
    all.reason += "; " + one.reason;
  }
  return all;
}

std::optional<DeviceInfo> WorkerPool::device() const {
  for (const Greeting& greeting : greetings_) {
    if (greeting.hello && greeting.hello->device) return greeting.hello->device;
  }
  return std::nullopt;
}

std::optional<DeviceInfo> WorkerPool::device(int index) const {
  for (const Greeting& greeting : greetings_) {
    if (!greeting.hello) continue;
    for (const DeviceInfo& device : greeting.hello->devices)
      if (device.index == index) return device;
  }
  return std::nullopt;
}

std::map<std::string, std::string> WorkerPool::software() const {
  std::map<std::string, std::string> all;
  for (const Greeting& greeting : greetings_) {
    if (!greeting.hello || !greeting.kept) continue;
    for (const auto& [name, version] : greeting.hello->software) {
      const auto [entry, added] = all.emplace(name, version);
      // Two workers may bring their own, such as the CUDA runtime of our kernels and that of PyTorch.
      if (!added && entry->second != version) all[fmt::format("{} ({})", name, greeting.worker)] = version;
    }
  }
  return all;
}

Calibration WorkerPool::calibrate(const std::vector<int>& peers,
                                  const std::function<void(const std::string&)>& complain) {
  Calibration all;
  for (const Greeting& greeting : greetings_) {
    if (!greeting.hello || !greeting.hello->calibrates) continue;
    interruption::throw_if_requested();
    std::shared_ptr<WorkerClient> client;
    {
      const std::lock_guard lock(mutex_);
      const auto process = greeted_.find(greeting.worker);
      if (process == greeted_.end()) continue;  // it went away after its hello
      client = process->second;
    }
    try {
      for (const auto& [name, rate] : client->calibrate(peers)) {
        const auto [entry, added] = all.emplace(name, rate);
        const bool lower_is_better = rate.unit == "seconds";
        if (!added && (rate.value < entry->second.value) == lower_is_better) entry->second = rate;
      }
    } catch (const std::exception& error) {
      interruption::throw_if_requested();
      complain(fmt::format("Calibration: {}", error.what()));
      end_greeted(greeting.worker);  // its CUDA context may be broken
    }
  }
  return all;
}

void WorkerPool::start_ahead(const std::vector<BackendRow>& rows) {
  std::set<std::string> with_greeted;
  std::vector<std::jthread> threads;
  const auto get_ready = [&](const std::shared_ptr<WorkerClient>& client, std::function<void()> give_up) {
    threads.emplace_back([client, give_up = std::move(give_up)] {
      try {
        client->wait_until_ready();
        client->release();  // without a trainer: it loads what its backends need
      } catch (const std::exception&) {
        give_up();
      }
    });
  };
  for (const BackendRow& row : rows) {
    const Greeting* found = find_greeting(row.worker);
    if (found == nullptr || !found->hello) continue;
    if (with_greeted.insert(row.worker).second) {
      if (const auto greeted = living(greeted_, row.worker))
        get_ready(greeted, [this, worker = row.worker] { end_greeted(worker); });
      continue;
    }
    try {
      std::shared_ptr<WorkerClient> client = start(program_of(row.worker), row.name);  // as launch() does
      {
        const std::lock_guard lock(mutex_);
        if (!serving_.emplace(row.name, client).second) continue;
      }
      get_ready(client, [this, name = row.name] { end(name); });
    } catch (const std::exception&) {
      continue;
    }
  }
  threads.clear();  // joins them
  interruption::throw_if_requested();
}

WorkerClient& WorkerPool::client(const BackendRow& row) {
  interruption::throw_if_requested();
  if (const auto serving = living(serving_, row.name)) return *serving;
  end(row.name);
  std::shared_ptr<WorkerClient> client = living(greeted_, row.worker);
  const bool is_greeted = client != nullptr;
  if (!is_greeted) client = start(program_of(row.worker), row.name);
  {
    const std::lock_guard lock(mutex_);
    greeted_.erase(row.worker);
    serving_[row.name] = client;
  }
  interruption::throw_if_requested();  // the signal may have come before the process could be reached
  if (!is_greeted) client->wait_until_ready();
  return *client;
}

WorkerClient& WorkerPool::greeted(const std::string& worker) {
  interruption::throw_if_requested();
  if (living(greeted_, worker) == nullptr) {
    if (launch(worker)) meet(worker);
    interruption::throw_if_requested();
  }
  const std::shared_ptr<WorkerClient> client = living(greeted_, worker);
  if (client == nullptr) throw WorkerLostError(greeting(worker).problem);
  return *client;
}

std::shared_ptr<WorkerClient> WorkerPool::start_aside(const BackendRow& row, const std::string& purpose,
                                                      const std::map<std::string, std::string>& environment) {
  WorkerProgram program = program_of(row.worker);
  for (const auto& [name, value] : environment) program.environment[name] = value;
  std::shared_ptr<WorkerClient> client = start(program, purpose);
  {
    const std::lock_guard lock(mutex_);
    aside_.push_back(client);
  }
  interruption::throw_if_requested();
  client->wait_until_ready();
  return client;
}

void WorkerPool::end(const std::string& backend) { end(serving_, backend); }

void WorkerPool::end_greeted(const std::string& worker) { end(greeted_, worker); }

void WorkerPool::end(Processes& processes, const std::string& name) {
  std::shared_ptr<WorkerClient> client;  // ends after the lock, as it may take a second
  const std::lock_guard lock(mutex_);
  const auto found = processes.find(name);
  if (found == processes.end()) return;
  client = std::move(found->second);
  processes.erase(found);
}

void WorkerPool::end_all() {
  std::vector<std::shared_ptr<WorkerClient>> clients;
  {
    const std::lock_guard lock(mutex_);
    for (auto* map : {&greeted_, &serving_}) {
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
  for (auto& [name, client] : greeted_) client->kill();
  for (auto& [name, client] : serving_) client->kill();
  for (const std::weak_ptr<WorkerClient>& one : aside_) {
    if (const auto client = one.lock()) client->kill();
  }
}

}  // namespace headroom
