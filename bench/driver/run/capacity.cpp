#include "driver/run/capacity.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>

#include "core/error.h"
#include "data/dataset.h"
#include "driver/run/verify.h"
#include "driver/system/units.h"
#include "oracle/oracle.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBoundless = std::numeric_limits<std::int64_t>::max();

std::int64_t number_in(const fs::path& file) {
  std::ifstream stream(file);
  double value = 0;  // some kernels write "no limit" as a number that no std::int64_t holds
  return stream >> value && value < 9e18 ? static_cast<std::int64_t>(value) : kBoundless;
}

// Lines of a name and a number, in bytes or in kB.
std::map<std::string, std::int64_t> numbers_in(const fs::path& file) {
  std::ifstream stream(file);
  std::map<std::string, std::int64_t> numbers;
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string name, unit;
    std::int64_t value = 0;
    if (!(words >> name >> value)) continue;
    words >> unit;
    if (name.ends_with(':')) name.pop_back();
    numbers[name] = unit == "kB" ? value * 1024 : value;
  }
  return numbers;
}

// What a control group has left; what files hold in memory is given back when somebody asks for it.
std::int64_t left_in_group(const fs::path& group, const char* limit_name, const char* usage_name,
                           const std::string& prefix) {
  const std::int64_t limit = number_in(group / limit_name), usage = number_in(group / usage_name);
  if (limit == kBoundless || usage == kBoundless) return kBoundless;
  std::map<std::string, std::int64_t> status = numbers_in(group / "memory.stat");
  const std::int64_t files = status[prefix + "active_file"] + status[prefix + "inactive_file"];
  return std::max<std::int64_t>(0, limit - std::max<std::int64_t>(0, usage - files));
}

// The tightest of this process's control groups and those around them, of either version.
std::int64_t left_in_groups(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream stream(root / "proc/self/cgroup");
  std::int64_t left = kBoundless;
  for (std::string line; std::getline(stream, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",memory,") == std::string::npos) continue;
    const fs::path mount = unified ? mounts : mounts / "memory";
    // A container may see its own group as the root of all: the folder of that name is then not there.
    for (fs::path path = fs::path(line.substr(second + 1)).relative_path();; path = path.parent_path()) {
      left = std::min(left, unified ? left_in_group(mount / path, "memory.max", "memory.current", "")
                                    : left_in_group(mount / path, "memory.limit_in_bytes",
                                                    "memory.usage_in_bytes", "total_"));
      if (path.empty()) break;
    }
  }
  return left;
}

std::int64_t free_in(const fs::path& folder, std::int64_t if_not_known) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  return error ? if_not_known
               : static_cast<std::int64_t>(std::min<std::uintmax_t>(space.available, kBoundless));
}

}  // namespace

Need need_of(const Workload& workload, std::int64_t least_train_bytes, bool gpu_oracle, std::int64_t seeds) {
  constexpr std::int64_t kFloat = sizeof(float), kDouble = sizeof(double),
                         kPoints = std::size(kCheckSteps) + 1;  // and the probe
  const std::vector<int>& widths = workload.model.widths;
  const std::int64_t parameters = workload.parameter_count(), slots = workload.optimizer.slots();
  const std::int64_t state = parameters * (1 + slots);
  Need need;
  std::int64_t train_bytes = 0;
  if (workload.dataset.kind != DatasetSpec::Kind::kIdx) {
    const std::int64_t targets = workload.loss == Loss::kCrossEntropy ? 1 : workload.outputs();
    train_bytes =
        synthetic_train_samples(workload, least_train_bytes) * (workload.inputs() + targets) * kFloat;
    need.memory += train_bytes + train_bytes / 9;  // a tenth of all is held out
  }
  need.memory += parameters * kFloat;
  if (!(gpu_oracle && wants_gpu_oracle(workload))) {
    // The state, a point's start and its end; the gradient and the weights as products read them; the point in fp32;
    // activations, their gradients and their slopes.
    const std::int64_t units = std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
    const std::int64_t hidden = units - workload.inputs() - workload.outputs();
    // And at the end of the free steps their start, and a copy's state.
    need.memory +=
        (5 * state + 3 * parameters) * kDouble + 2 * state * kFloat +
        std::int64_t{workload.joined_batch_size()} * (2 * units - workload.inputs() + hidden) * kDouble;
  }
  // Each point's start and update, under two contracts at most, and the states that are read back: of the checks, and behind a loss curve. What a seed
  // starts from: its parameters and, where there are slots, its state. The parameters behind the free steps.
  const std::int64_t begun = parameters + (slots > 0 ? state : 0);
  need.scratch = kFloat * (state * (3 * kPoints + checks_side_by_side(workload) + 1) + begun * (1 + seeds) +
                           parameters) +
                 train_bytes * (1 + seeds);
  return need;
}

Room room_here(const fs::path& root) {
  Room room;
  const std::map<std::string, std::int64_t> memory = numbers_in(root / "proc/meminfo");
  const auto available = memory.find("MemAvailable");
  room.memory = available == memory.end() ? kBoundless : available->second;
  room.memory_source = "MemAvailable";
  if (const std::int64_t left = left_in_groups(root); left < room.memory) {
    room.memory = left;
    room.memory_source = "the control group's limit";
  }
  std::error_code ignored;
  room.shared_memory = free_in("/dev/shm", 0);
  room.temporary = free_in(fs::temp_directory_path(ignored), kBoundless);
  return room;
}

void refuse_too_large(const Workload& workload, const Need& need, const Room& room) {
  const std::string takes = fmt::format("workload '{}': data set, parameters and oracle take {} of memory",
                                        workload.name, gigabytes_text(need.memory));
  const std::string there = fmt::format("{} are free here ({}); choose a smaller one, or leave it out",
                                        gigabytes_text(room.memory), room.memory_source);
  if (need.memory > room.memory) throw InputError(takes + ", " + there);
  // As Scratch chooses.
  if (static_cast<double>(room.shared_memory) > 1.2 * static_cast<double>(need.scratch)) {
    if (need.scratch > room.memory - need.memory) {
      throw InputError(fmt::format("{} and its temporary files {} more in /dev/shm, {}", takes,
                                   gigabytes_text(need.scratch), there));
    }
  } else if (need.scratch > room.temporary) {
    throw InputError(fmt::format(
        "workload '{}': its temporary files take {}, {} are free in /dev/shm and {} in the temporary "
        "folder; choose a smaller one, or set TMPDIR to a folder with more room",
        workload.name, gigabytes_text(need.scratch), gigabytes_text(room.shared_memory),
        gigabytes_text(room.temporary)));
  }
}

}  // namespace headroom
