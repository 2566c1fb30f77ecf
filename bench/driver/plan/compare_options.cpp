#include "driver/plan/compare_options.h"

#include <fmt/core.h>

#include <map>

#include "analysis/gate.h"
#include "core/error.h"
#include "core/names.h"
#include "driver/plan/named_option.h"
#include "driver/plan/number_range.h"

namespace headroom {
namespace {

const std::map<std::string, CompareFormat> kFormats = {
    {"text", CompareFormat::kText},       {"markdown", CompareFormat::kMarkdown},
    {"json", CompareFormat::kJson},       {"google-benchmark", CompareFormat::kGoogleBenchmark},
    {"bencher", CompareFormat::kBencher}, {"github-action-benchmark", CompareFormat::kGithubActionBenchmark}};

}  // namespace

CompareParser::CompareParser(CLI::App& app)
    : command(app.add_subcommand(
          "compare",
          "Did a training step become slower? Two builds measured against each other, or two files")) {
  options.measured.suite = "ci";
  add_what();
  add_how();
  command->footer(
      "Exit codes: 0 no regression, 1 a regression (or a cell that failed or is missing in head), 2 wrong "
      "usage,\n"
      "bad input or output that cannot be written, 3 inconclusive, 4 not comparable, 130 interrupted.");
}

void CompareParser::add_what() {
  const char* what = "What to compare (one of)";
  command->add_option("--base", options.base, "A git revision or a build folder, measured now")->group(what);
  command->add_option("--head", options.head, "The same for the other side; default: this checkout")
      ->group(what);
  command
      ->add_option("files", options.files,
                   "BASE.json HEAD.json: two results files, or two of Google Benchmark or NVBench")
      ->group(what);
  command->add_option("--within", options.within, "One results file, two of its backends")->group(what);
  command->add_option("--base-backend", options.base_backend, "With --within")->group(what);
  command->add_option("--head-backend", options.head_backend, "With --within")->group(what);
  command
      ->add_flag("--self-check", options.self_check,
                 "One build against itself: how small a slowdown can be seen on this machine")
      ->group(what);
  command->add_option("--baseline", options.baseline, "NAME: a stored results file against HEAD.json")
      ->group(what);
  command->add_option("--save-baseline", options.save_baseline, "NAME: store HEAD.json under that name")
      ->group(what);
  command->add_option("--baselines", options.baselines, "Folder of the stored baselines, a file a machine")
      ->group(what);
  command->add_option("--base-label", options.base_label)->group("");
  command->add_option("--head-label", options.head_label)->group("");
  command->add_flag("--print-targets", options.print_targets)->group("");
}

void CompareParser::add_how() {
  const auto list_of = [](CLI::Option* option) { return option->delimiter(',')->allow_extra_args(false); };
  RunOptions& measured = options.measured;
  const char* cells = "What to measure (builds and self-check)";
  command->add_option("--suite", measured.suite, "Name of a suite, or its file")
      ->capture_default_str()
      ->group(cells);
  list_of(command->add_option("--workload", measured.workload_names, "Instead of a suite"))->group(cells);
  list_of(command->add_option("--workloads", measured.suite_workloads, "Only these of the suite"))
      ->group(cells);
  list_of(command->add_option("--backend", measured.backends, "Only these backends"))->group(cells);
  list_of(command->add_option("--precision", precisions_, "fp32, tf32, fp16, bf16"))->group(cells);
  command
      ->add_option("--data", measured.data_folder,
                   "Folder with IDX files, or the images file itself; default: synthetic")
      ->group(cells);

  const char* how = "How";
  command->add_option("--launches", options.launches, "Pairs of fresh processes in a round")
      ->capture_default_str()
      ->check(CLI::Range(1, 100))
      ->group(how);
  command->add_option("--pairs", options.pairs, "Pairs of blocks in each")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000))
      ->group(how);
  command->add_option("--block-seconds", options.block_seconds, "Least length of a block")
      ->capture_default_str()
      ->check(between(0.001, 60.0))
      ->group(how);
  command->add_option("--tolerance", options.tolerance_percent, "Percent that count as the same")
      ->capture_default_str()
      ->check(between(0.1, 100.0))
      ->group(how);
  command
      ->add_option("--repeat", options.repeat, "Self-check: how many comparisons, each with its own verdict")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000))
      ->group(how);
  command
      ->add_option("--plant", options.plant_percent,
                   "Self-check: head's worker waits on the device in every step, so many percent of it")
      ->check(between(0.1, 1000.0))
      ->group(how);
  command->add_option("--device", measured.device, "CUDA device index; -1 for none")
      ->capture_default_str()
      ->check(CLI::Range(-1, 1023))
      ->group(how);
  auto* wait =
      command->add_flag("--wait", measured.wait, "Wait until no other run uses the device")->group(how);
  command
      ->add_flag("--share-device", measured.share_device,
                 "Go on although another run uses the device, or its lock cannot be had")
      ->excludes(wait)
      ->group(how);
  command->add_option("--time-limit", measured.time_limit_seconds, "Seconds a worker may take for one call")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400))
      ->group(how);

  const char* where = "Output";
  command
      ->add_option("--format", format_,
                   "text, markdown, json, google-benchmark, bencher or github-action-benchmark")
      ->capture_default_str()
      ->group(where);
  command->add_flag_callback(
             "--json", [this] { format_ = "json"; }, "The same as --format json")
      ->group(where);
  command
      ->add_option(
          "--output", options.output,
          "Also write each comparison as JSON, one a line, to this file, which is replaced at the end")
      ->group(where);
}

std::vector<std::string> CompareParser::given() const {
  std::vector<std::string> uses;
  if (!options.base.empty()) uses.push_back("--base");
  if (!options.within.empty()) uses.push_back("--within");
  if (options.self_check) uses.push_back("--self-check");
  if (!options.baseline.empty()) uses.push_back("--baseline");
  if (!options.save_baseline.empty()) uses.push_back("--save-baseline");
  return uses;
}

void CompareParser::check_use() const {
  const std::vector<std::string> uses = given();
  if (uses.size() > 1)
    throw InputError(
        fmt::format("{} and {} are two different comparisons; give one of them", uses[0], uses[1]));
  const std::string use = uses.empty() ? "" : uses.front();
  const bool stored = use == "--baseline" || use == "--save-baseline";
  const std::size_t files = use.empty() ? 2 : stored ? 1 : 0;
  if (options.files.size() != files) {
    if (use.empty() && options.files.empty()) {
      throw InputError(
          "compare: nothing to compare; expected --base REF_OR_BUILD [--head REF_OR_BUILD], or BASE.json "
          "HEAD.json");
    }
    throw InputError(fmt::format("compare{}{}: expected {} results {}, found {}", use.empty() ? "" : " ", use,
                                 files, files == 1 ? "file" : "files", options.files.size()));
  }
  if (!options.head.empty() && use != "--base" && use != "--self-check")
    throw InputError("--head goes with --base or --self-check");
  const bool backends = !options.base_backend.empty() || !options.head_backend.empty();
  if (use == "--within" && (options.base_backend.empty() || options.head_backend.empty()))
    throw InputError(
        "--within: needs --base-backend and --head-backend, such as pytorch-eager and cuda-layered");
  if (use == "--within" && options.base_backend == options.head_backend)
    throw InputError(
        "--within: --base-backend and --head-backend are the same; name two backends of the file");
  if (use != "--within" && backends) throw InputError("--base-backend and --head-backend go with --within");
  if (stored) check_name(use, use == "--baseline" ? options.baseline : options.save_baseline);
  if (stored == options.baselines.empty())
    throw InputError(stored ? use + ": needs --baselines FOLDER, where the baselines are"
                            : std::string("--baselines goes with --baseline or --save-baseline"));
  if (use != "--self-check" && (options.repeat != 1 || options.plant_percent > 0))
    throw InputError("--repeat and --plant go with --self-check");
  if ((use == "--base" || use == "--self-check") && options.launches * options.pairs < kLeastPairs) {
    throw InputError(
        fmt::format("--launches {} --pairs {}: that makes {} pairs a round, expected at least {}",
                    options.launches, options.pairs, options.launches * options.pairs, kLeastPairs));
  }
}

void CompareParser::finish() {
  options.format = parse_named("--format", format_, kFormats);
  for (const std::string& name : precisions_) options.measured.precisions.push_back(parse_precision(name));
  options.measured.device_given = command->get_option("--device")->count() > 0;
  if (command->get_option("--suite")->count() > 0 && !options.measured.workload_names.empty())
    throw InputError("--workload and --suite: give one of them");
  check_use();
}

}  // namespace headroom
