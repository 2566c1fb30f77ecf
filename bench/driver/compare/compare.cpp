#include "driver/compare/compare.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <variant>

#include "core/error.h"
#include "driver/compare/baselines.h"
#include "driver/compare/file_comparison.h"
#include "driver/compare/other_tools/other_tools.h"
#include "driver/compare/paired_run.h"
#include "driver/compare/sides.h"
#include "driver/run/capacity.h"
#include "driver/run/device_use.h"
#include "driver/run/offers.h"
#include "driver/run/outlook.h"
#include "driver/system/host.h"
#include "driver/system/left_out.h"
#include "driver/system/scratch.h"
#include "driver/system/shown_path.h"
#include "driver/system/whole_file.h"
#include "worker/descriptor.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

// What cuda_impl/'s trainers read: the percentage of a step that they wait on the device.
constexpr const char* kPlantVariable = "HEADROOM_PLANTED_DELAY_PERCENT";
constexpr const char* kPlantedNote = "planted delay";

GateRule rule_of(const CompareOptions& options) {
  GateRule rule;
  rule.tolerance = options.tolerance_percent / 100;
  return rule;
}

// A results file, or one of another tool.
using MeasuredFile = std::variant<NamedResults, OtherFile>;

MeasuredFile read_measured(const fs::path& file) {
  nlohmann::json root = read_measured_json(file);
  if (const auto tool = tool_of(root)) return read_other_tool(*tool, root, file);
  return NamedResults{file.filename().string(), results_of(root, file.string())};
}

std::string kind_of(const MeasuredFile& file) {
  const auto* other = std::get_if<OtherFile>(&file);
  return other == nullptr ? "a results file" : fmt::format("a file of {}", to_string(other->tool));
}

// Where other tools' files are not taken.
NamedResults named(const fs::path& path) {
  MeasuredFile file = read_measured(path);
  if (auto* results = std::get_if<NamedResults>(&file)) return std::move(*results);
  throw InputError(fmt::format("{}: expected a results file, found {}; two of those are compared as they are",
                               path.string(), kind_of(file)));
}

// In the order in which they are named, so that of two that cannot be read the first is told.
Comparison compare_two_files(const std::vector<fs::path>& files, const GateRule& rule) {
  const MeasuredFile base = read_measured(files.front()), head = read_measured(files.back());
  if (kind_of(base) != kind_of(head))
    throw InputError(fmt::format("{} is {}, and {} is {}; expected two files of one kind",
                                 files.front().string(), kind_of(base), files.back().string(),
                                 kind_of(head)));
  if (const auto* other = std::get_if<OtherFile>(&base))
    return compare_other_tools(*other, std::get<OtherFile>(head), rule);
  return compare_files(std::get<NamedResults>(base), std::get<NamedResults>(head), rule);
}

// The worker programs of a build folder.
std::vector<WorkerProgram> programs_of(const std::string& option, const fs::path& folder) {
  Installation build = find_installation();
  if (!fs::is_directory(folder)) {
    throw InputError(
        fmt::format("{} {}: there is no such build folder; git revisions are built by ./headroom compare",
                    option, folder.string()));
  }
  build.program_folder = fs::absolute(folder) / "bin";
  return worker_programs(build, {});
}

// Those that the plan needs must be there.
void require_programs(const std::string& option, const fs::path& folder,
                      const std::vector<WorkerProgram>& programs, const std::set<std::string>& needed) {
  for (const WorkerProgram& program : programs) {
    if (needed.count(program.name) == 0 || !program.missing) continue;
    throw InputError(fmt::format("{} {}: there is no bin/{} in it; expected a build folder of ./headroom",
                                 option, folder.string(),
                                 fs::path(program.command.front()).filename().string()));
  }
}

// What head's workers offer, and what only base's do.
std::vector<BackendRow> rows_of_both(const SidePools& pools) {
  std::vector<BackendRow> table = pools[1].rows();
  for (const BackendRow& row : pools[0].rows())
    if (find_row(table, row.name) == nullptr) table.push_back(row);
  return table;
}

std::string label(const std::string& given, const std::string& folder) {
  return given.empty() ? fs::path(folder).lexically_normal().string() : given;
}

void hold_device(const CompareOptions& options, const std::set<std::string>& needed, SidePools& pools,
                 const std::vector<int>& peers, std::vector<DeviceLock>& held, Progress& progress) {
  std::optional<DeviceInfo> device;
  for (const std::string& worker : needed) {
    start_on_both(pools, worker);
    for (const WorkerPool& pool : pools) {
      const std::optional<WorkerHello>& hello = pool.greeting(worker).hello;
      if (hello && hello->device) device = hello->device;
    }
  }
  std::vector<DeviceInfo> devices;
  if (device) devices.push_back(*device);
  for (const int peer : peers)
    if (const auto info = pools[0].device(peer)) devices.push_back(*info);
  held = lock_devices(options.measured, devices, progress);
}

// A delay that was asked for and not made would pass for a slowdown that was not seen.
void check_planted(const Comparison& comparison) {
  for (const ComparedCell& cell : comparison.cells) {
    if (cell.state == CellState::kJudged && cell.message.find(kPlantedNote) == std::string::npos) {
      throw InputError(
          fmt::format("--plant: {} does not know how to wait inside a step; leave it out with --backend",
                      cell.head_backend));
    }
  }
}

Comparison compare_once(const CompareOptions& options, const Plan& plan, const std::vector<BackendRow>& table,
                        SidePools& pools, ComparedFiles& files, Progress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  PairedRun run(options, plan, table, pools, files, progress, std::random_device{}());
  Comparison& comparison = run.comparison();
  comparison.kind = options.self_check ? "self-check" : "builds";
  comparison.started_utc = utc_now();
  comparison.rule = rule_of(options);
  comparison.planted_percent = options.plant_percent;
  comparison.head = label(options.head_label, options.head);
  comparison.base = options.self_check ? comparison.head : label(options.base_label, options.base);
  if (options.plant_percent > 0)
    comparison.head += fmt::format(" with {:g} % planted", options.plant_percent);
  run.measure_round(1);
  judge(comparison);
  if (std::any_of(comparison.cells.begin(), comparison.cells.end(),
                  [](const ComparedCell& cell) { return cell.inconclusive(); })) {
    run.measure_round(2);
    judge(comparison, /*second_look=*/true);
  }
  if (options.plant_percent > 0) check_planted(comparison);
  comparison.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return comparison;
}

// What a symbolic link leads to, as the link stays.
fs::path replaced_by(const fs::path& output) {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(fs::absolute(output, error), error);
  return error ? output : file;
}

// Whatever the comparison reads, and all that belongs to it.
std::vector<fs::path> files_read(const CompareOptions& options) {
  std::vector<fs::path> files = options.files;
  files.push_back(options.within);
  if (measures(options) && options.measured.workload_names.empty())
    files.push_back(find_suite(options.measured.suite, find_installation().root / "bench" / "suites"));
  for (const fs::path& folder : {options.baselines, fs::path(options.measured.data_folder)}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) files.push_back(entry.path());
  }
  return files;
}

// The programs that can be built and that did not say what they offer: not built yet, or from older sources.
std::set<std::string> silent_programs(const std::vector<WorkerProgram>& programs, const WorkerPool& pool) {
  std::set<std::string> names;
  for (const WorkerProgram& program : programs)
    if (!program.starts_slowly && !program.needs_pytorch && !pool.greeting(program.name).hello)
      names.insert(program.name);
  return names;
}

// Of a name that neither build offers the reason, unless it is just unknown.
void refuse_silent_builds(const CompareOptions& options, const std::vector<std::string>& asked,
                          const std::vector<BackendRow>& table, const SidePools& pools) {
  if (std::all_of(asked.begin(), asked.end(), [&](const std::string& word) {
        return word == kAllBackends || !lacks_asked(table, {word});
      }))
    return;
  for (const Side side : kSides) {
    for (const Greeting* greeting : pools[static_cast<std::size_t>(side)].silent())
      if (!greeting->not_built) throw InputError(fmt::format("{}: {}", to_string(side), greeting->problem));
  }
  if (!table.empty()) return;
  throw InputError(fmt::format(
      "--base {}: there is no worker in its bin; expected a build folder of ./headroom", options.base));
}

}  // namespace

bool measures(const CompareOptions& options) { return options.self_check || !options.base.empty(); }

// Which backends there are, the programs of this build say. What they do not say may be in those that were not built.
std::string targets_text(const CompareOptions& options) {
  const Installation installation = find_installation();
  const std::vector<WorkerProgram> programs = worker_programs(installation, {});
  const Scratch logs(0);
  WorkerPool pool(programs, -1, {}, logs.folder());
  std::vector<BackendRow> table;
  const Plan plan =
      make_plan(options.measured, installation, [&](const std::vector<std::string>& asked) -> const auto& {
        return table = find_backends(programs, pool, asked);
      });
  std::set<std::string> needed = serving_workers(plan, table);
  if (std::any_of(table.begin(), table.end(), [](const BackendRow& row) { return row.worker.empty(); }))
    needed.merge(silent_programs(programs, pool));
  const auto is_needed = [&](const WorkerProgram& program) { return needed.contains(program.name); };
  // So that nothing is built only to find that none of it can run.
  if (choose_device(options.measured) < 0 &&
      std::all_of(programs.begin(), programs.end(),
                  [&](const WorkerProgram& program) { return !is_needed(program) || program.needs_device; }))
    throw InputError("compare: no CUDA device, and every backend that was asked for needs one");
  std::string text;
  for (const WorkerProgram& program : programs) {
    if (!is_needed(program)) continue;
    if (program.starts_slowly)
      throw InputError(fmt::format("compare: worker '{}' is not a program of a build; leave out its backends",
                                   program.name));
    text += fs::path(program.command.front()).filename().string() + "\n";
  }
  return text;
}

std::string stored_text(const CompareOptions& options) {
  const fs::path stored = save_baseline(options.files.front(), options.baselines, options.save_baseline);
  return fmt::format("Stored as {}\n", shown(stored));
}

Comparison read_comparison(const CompareOptions& options) {
  Comparison comparison;
  if (!options.within.empty()) {
    comparison =
        compare_within(named(options.within), options.base_backend, options.head_backend, rule_of(options));
  } else if (!options.baseline.empty()) {
    const NamedResults head = named(options.files.back());
    const NamedResults base = named(find_baseline(head.results, options.baselines, options.baseline));
    comparison = compare_files(base, head, rule_of(options));
  } else {
    comparison = compare_two_files(options.files, rule_of(options));
  }
  judge(comparison);
  return comparison;
}

void compare_builds(const CompareOptions& asked, const std::function<void(const Comparison&)>& report) {
  CompareOptions options = asked;
  if (options.head.empty()) options.head = find_installation().program_folder.parent_path().string();
  if (options.self_check) options.base = options.head;
  std::array<std::vector<WorkerProgram>, 2> programs = {programs_of("--base", options.base),
                                                        programs_of("--head", options.head)};
  if (options.plant_percent > 0) {
    for (WorkerProgram& program : programs[1])
      program.environment[kPlantVariable] = fmt::format("{}", options.plant_percent);
  }
  Progress progress;
  const Scratch logs(0);
  TimeLimits limits;
  limits.prepare = limits.train = limits.reference = limits.other =
      std::chrono::seconds(options.measured.time_limit_seconds);
  limits.hello = std::min(limits.hello, limits.other);
  if (const std::string text = left_out_text(); !text.empty()) progress.line(text);
  const int device = choose_device(options.measured);
  const std::vector<int> peers = peer_devices(options.measured, device);
  const auto log_folder = [&](Side side) {
    const fs::path folder = logs.folder() / to_string(side);
    fs::create_directory(folder);
    return folder;
  };
  SidePools pools{WorkerPool(programs[0], device, limits, log_folder(Side::kBase), peers),
                  WorkerPool(programs[1], device, limits, log_folder(Side::kHead), peers)};
  std::vector<BackendRow> table;
  // Cells that the suite limits to GPUs are measured anyway.
  const Plan plan = make_plan(
      options.measured, find_installation(), [&](const std::vector<std::string>& names) -> const auto& {
        const auto greet = [&](const std::vector<std::string>& workers) {
          for (const std::string& worker : workers) start_on_both(pools, worker);
        };
        table = ask_for_backends(programs[0], names, greet, [&] { return rows_of_both(pools); });
        refuse_silent_builds(options, names, table, pools);
        return table;
      });
  const std::set<std::string> needed = serving_workers(plan, table);
  require_programs("--base", options.base, programs[0], needed);
  require_programs("--head", options.head, programs[1], needed);
  std::vector<DeviceLock> held;
  const std::vector<int> used = planned_peers(options.measured, plan, peers, progress);
  for (WorkerPool& pool : pools) pool.use_peers(used);
  hold_device(options, needed, pools, used, held, progress);
  const Room room = room_here();
  for (const PlannedWorkload& planned : plan.workloads)
    refuse_too_large(planned.workload, need_of(planned.workload, 0, device >= 0, 0), room);
  const Scratch scratch(temporary_bytes(plan));
  ComparedFiles files(scratch.folder());
  for (int i = 0; i < options.repeat; ++i) {
    const Comparison comparison = compare_once(options, plan, table, pools, files, progress);
    progress.clear();
    report(comparison);
  }
}

void check_output(const CompareOptions& options) {
  if (options.output.empty()) return;
  const auto refuse = [&](const std::string& reason) {
    throw InputError(fmt::format("--output {}: {}; name another file", options.output.string(), reason));
  };
  std::error_code error;
  for (const fs::path& input : files_read(options)) {
    if (fs::equivalent(options.output, input, error))
      refuse(fmt::format("is what is read as {}", input.string()));
  }
  if (fs::is_directory(options.output, error)) refuse("is a folder");
  if (is_stream(options.output)) {
    if (access(options.output.c_str(), W_OK) != 0)
      refuse(std::string("cannot be written: ") + std::strerror(errno));
    return;
  }
  if (fs::equivalent(options.output, "/proc/self/fd/1", error)) refuse("is where standard output goes");
  // Asking the mode bits would be wrong for root and for mounts.
  const fs::path folder = replaced_by(options.output).parent_path();
  std::string probe = (folder / ".headroom-XXXXXX").string();
  const Descriptor descriptor(mkostemp(probe.data(), O_CLOEXEC));
  if (!descriptor) refuse(std::string("cannot be written: ") + std::strerror(errno));
  unlink(probe.c_str());
}

void write_output(const std::string& comparisons, const CompareOptions& options) {
  if (options.output.empty()) return;
  if (!is_stream(options.output)) return write_whole(comparisons, replaced_by(options.output));
  std::ofstream stream(options.output, std::ios::app);
  stream << comparisons << std::flush;
  if (!stream)
    throw OutputError(
        fmt::format("{}: cannot be written: {}", options.output.string(), std::strerror(errno)));
}

int worse(int one, int other) { return one == 1 || other == 1 ? 1 : std::max(one, other); }

}  // namespace headroom
