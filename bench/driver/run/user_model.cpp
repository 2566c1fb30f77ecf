#include "driver/run/user_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "driver/system/interruption.h"
#include "driver/system/subprocess.h"
#include "json/reader.h"
#include "worker/children.h"
#include "worker/environment.h"
#include "worker/messages.h"

namespace headroom {
namespace {

constexpr int kLongestSeconds = 120;

// The worker's answer, one line of JSON.
std::string read_by_worker(const WorkerProgram& program, const std::string& model, int limit_seconds) {
  if (program.missing) throw InputError(fmt::format("--model {}: {}", model, *program.missing));
  std::vector<std::string> arguments = program.command;
  arguments.insert(arguments.end(), {"--device", "-1", "--read-model=" + model});
  const ProgramResult result =
      run_program(arguments, limit_seconds, true, worker_environment(program.environment));
  children::end_orphans();  // what the file has started
  interruption::throw_if_requested();
  if (!result.started)
    throw InputError(fmt::format("--model {}: {} cannot be started", model, arguments.front()));
  if (result.late)
    throw InputError(fmt::format(
        "--model {}: took longer than {} s (--time-limit, at most {}); expected a file that only makes the "
        "network",
        model, limit_seconds, kLongestSeconds));
  if (result.output.empty())
    throw InputError(fmt::format("--model {}: the process that executes it ended without an answer", model));
  return result.output;
}

}  // namespace

std::optional<ModelSource> take_user_model(RunOptions& options, const Installation& installation) {
  if (!options.model) return std::nullopt;
  const auto& [file, name] = *options.model;
  const std::string model = file + ":" + name;
  const std::vector<WorkerProgram> programs = worker_programs(installation, options.workers);
  const WorkerProgram& program =
      *std::find_if(programs.begin(), programs.end(), [](const auto& one) { return one.name == "python"; });
  const std::string line =
      read_by_worker(program, model, std::min(kLongestSeconds, options.time_limit_seconds));

  ModelSource source{std::filesystem::path(file).filename().string(), name, {}, {}};
  Workload workload;
  try {
    const nlohmann::json parsed = parse_json(line, true);
    const JsonReader answer(parsed);
    if (const auto error = answer.find("error")) throw InputError(one_line(error->string()));
    for (const JsonReader& width : answer.at("widths").items_not_empty())
      workload.model.widths.push_back(static_cast<int>(width.integer(1)));
    workload.model.activation = answer.at("activation").one_of(kAllActivations);
    source.sha256 = answer.at("sha256").string();
    workload.batch_size = *options.batch_size;
    workload.name = default_name(workload);
    validate(workload);
    if (workload.outputs() == 1 && options.loss.value_or(workload.loss) == Loss::kCrossEntropy)
      throw InputError("it has one output, with which cross-entropy learns nothing; give --loss mse or bce");
  } catch (const InputError& error) {
    throw InputError(fmt::format("--model {}: {}", model, error.what()));
  } catch (const JsonError& error) {
    throw InputError(fmt::format("--model {}: what the worker's program says of it cannot be read: {}", model,
                                 one_line(error.what())));
  }
  options.model.reset();
  options.workload_names = {workload.name};
  options.settings["workload"] = workload.name;
  return source;
}

}  // namespace headroom
