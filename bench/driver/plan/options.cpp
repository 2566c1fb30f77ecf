#include "driver/plan/options.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/names.h"
#include "core/optimizer_numbers.h"
#include "driver/plan/backends.h"
#include "driver/plan/compare_options.h"
#include "driver/plan/file_options.h"
#include "driver/plan/named_option.h"
#include "driver/plan/number_range.h"
#include "driver/plan/profile_options.h"
#include "driver/system/command_name.h"
#include "driver/system/version.h"

namespace headroom {
namespace {

// Options whose value decides what is measured and how. A resumed run must agree on them.
const std::set<std::string> kSettings = {
    "suite", "workload",  "workloads", "shard",         "backend",       "precision",      "data",
    "seed",  "losses",    "blocks",    "block-seconds", "device",        "energy-seconds", "loss-seeds",
    "beta1", "beta2",     "epsilon",   "momentum",      "learning-rate", "weight-decay",   "batch",
    "loss",  "optimizer", "devices",   "draw"};

// What a number of the optimizer may be.
struct NumberOption {
  const char* number;  // of kOptimizerNumbers
  const char* option;
  const char* help;
  const char* expected;
  bool (*is_right)(double);
};
bool is_positive(double value) { return std::isfinite(value) && value > 0; }
bool is_not_negative(double value) { return std::isfinite(value) && value >= 0; }
bool is_share(double value) { return value >= 0 && value < 1; }
constexpr NumberOption kNumberOptions[] = {
    {"learning_rate", "--learning-rate", "Default: the suite's, else 0.003",
     "a number above 0, such as 0.003", is_positive},
    {"momentum", "--momentum", "Of workloads that are trained by sgd", "from 0 to below 1, such as 0.9",
     is_share},
    {"beta1", "--beta1", "Of adam and adamw", "from 0 to below 1, such as 0.9", is_share},
    {"beta2", "--beta2", "Of adam and adamw", "from 0 to below 1, such as 0.999", is_share},
    {"epsilon", "--epsilon", "Of adam and adamw", "a number above 0, such as 1e-8", is_positive},
    {"weight_decay", "--weight-decay", "Of adamw", "0 or more, such as 0.01", is_not_negative}};

bool is_path(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".json");
}

std::string base_name(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Splits a worker's command at blanks; single or double quotes hold an argument together. No shell reads it.
std::vector<std::string> split_command(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      inside = true;
    } else if (c == ' ' || c == '\t') {
      if (inside) words.push_back(word);
      word.clear();
      inside = false;
    } else {
      word += c;
      inside = true;
    }
  }
  if (quote != 0) throw InputError(fmt::format("--worker {}: a quote is not closed", text));
  if (inside) words.push_back(word);
  return words;
}

WorkerOption parse_worker(const std::string& text) {
  const std::size_t equals = text.find('=');
  WorkerOption option;
  if (equals != std::string::npos) {
    option.name = text.substr(0, equals);
    option.command = split_command(text.substr(equals + 1));
  }
  if (option.name.empty() || option.command.empty()) {
    throw InputError(
        fmt::format("--worker {}: expected NAME=COMMAND, such as mine=build/bin/my-worker", text));
  }
  check_name("--worker", option.name);
  return option;
}

ModelOption parse_model(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  ModelOption option;
  if (colon != std::string::npos) option = {text.substr(0, colon), text.substr(colon + 1)};
  const auto is_word = [](unsigned char c) { return c == '_' || c >= 0x80 || std::isalnum(c) != 0; };
  if (option.file.empty() || option.name.empty() ||
      !std::all_of(option.name.begin(), option.name.end(), is_word))
    throw InputError(fmt::format("--model {}: expected FILE.py:NAME, such as net.py:make", text));
  return option;
}

// Takes Google Benchmark's flags out of `arguments`: the library ends the program itself where it does not
// understand one.
GoogleBenchmarkOptions take_benchmark_flags(std::vector<std::string>& arguments) {
  GoogleBenchmarkOptions options;
  std::vector<std::string> rest;
  bool names_only = false;  // after "--"
  for (const std::string& argument : arguments) {
    names_only = names_only || argument == "--";
    if (names_only || !argument.starts_with("--benchmark_")) {
      rest.push_back(argument);
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string flag = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    const auto need_value = [&](std::initializer_list<const char*> allowed) {
      for (const char* one : allowed) {
        if (value == one) return;
      }
      if (allowed.size() == 0 && !value.empty()) return;
      throw InputError(fmt::format("{}: expected --{}={}", argument, flag,
                                   allowed.size() == 0 ? "VALUE" : fmt::format("{}", *allowed.begin())));
    };
    if (flag == "benchmark_filter") {
      need_value({});
      options.filter = value;
    } else if (flag == "benchmark_out") {
      need_value({});
      options.out = value;
    } else if (flag == "benchmark_out_format") {
      need_value({"json", "console", "csv"});
      options.out_format = value;
    } else if (flag == "benchmark_format") {
      need_value({"console", "json", "csv"});
      options.format = value;
    } else if (flag == "benchmark_list_tests") {
      need_value({"true", "", "false"});
      options.list_tests = value != "false";
    } else if (flag == "benchmark_color") {
      need_value({"auto", "true", "false", "yes", "no"});
      options.passed_on.push_back(argument);
    } else if (flag == "benchmark_counters_tabular") {
      need_value({"true", "false"});
      options.passed_on.push_back(argument);
    } else if (flag == "benchmark_context") {
      need_value({});
      if (value.find('=') == std::string::npos) {
        throw InputError(fmt::format("{}: expected --benchmark_context=KEY=VALUE", argument));
      }
      options.passed_on.push_back(argument);
    } else if (flag == "benchmark_repetitions") {
      throw InputError(fmt::format("{}: repetitions are blocks here; use --blocks N", argument));
    } else if (flag == "benchmark_min_time" || flag == "benchmark_min_warmup_time") {
      throw InputError(fmt::format("{}: the length of a block is set with --block-seconds S", argument));
    } else if (flag == "benchmark_enable_random_interleaving") {
      throw InputError(
          fmt::format("{}: blocks are always interleaved at random; leave the flag out", argument));
    } else {
      throw InputError(fmt::format(
          "unknown option '{}'; of Google Benchmark's flags these are taken: --benchmark_filter, _out, "
          "_out_format, _format, _list_tests, _color, _counters_tabular, _context",
          argument));
    }
  }
  arguments = rest;
  return options;
}

const std::set<std::string> kCommands = {"run",     "list",   "calibrate", "compare",
                                         "history", "report", "profile"};
// Of these, what follows "--" are names of files.
const std::set<std::string> kTakeFiles = {"compare", "history", "report"};

// " run" if that was called.
std::string subcommand_called(const std::vector<std::string>& argv) {
  return argv.size() > 1 && kCommands.contains(argv[1]) ? " " + argv[1] : "";
}

// "headroom run" if that was called, for `headroom run --help`.
std::string command_called(const std::vector<std::string>& argv) {
  return command_name() + subcommand_called(argv);
}

struct Parser {
  CLI::App app{
      "Headroom trains the same network through hand-written CUDA kernels and through PyTorch, checks that "
      "both\n"
      "trained the same thing, and compares their speed.",
      command_name()};
  CLI::App* run = app.add_subcommand(
      "run", "Measure a suite, or the workloads that are named; write a results file and figures");
  CLI::App* list =
      app.add_subcommand("list", "Show suites, workloads and backends, and what runs on this machine");
  CLI::App* calibrate = app.add_subcommand(
      "calibrate", "Measure what the GPU itself can do: rates, launches, barriers, exchanges");
  bool version = false, no_figures = false;

  RunOptions options;
  ListOptions list_options;
  CompareParser compare{app};
  HistoryParser history{app};
  ReportParser report{app};
  ProfileParser profile{app};
  CalibrateOptions calibrate_options;
  std::vector<std::string> precisions, workers, list_workers, calibrate_workers, loss_seeds;
  std::string seed, shard, output, resume, model, loss, optimizer, format = "text";
  int batch_size = 0;
  std::map<std::string, double> numbers;  // by option
  std::int64_t loss_steps = 0;
  CLI::Option* loss_steps_option = nullptr;
  CLI::Option* device_option = nullptr;

  Parser() {
    app.add_flag("--version", version, "Print version and commit, and exit");
    app.footer(
        "Front door commands (./headroom): test, clean, and report with its figures. `" + command_name() +
        " COMMAND --help` explains a command.\n"
        "Exit codes: 0 done, 1 a failed record or a regression, 2 wrong usage, bad input or output that "
        "cannot be\n"
        "written, 3 inconclusive, 4 not comparable, 130 interrupted.");
    app.require_subcommand(0, 1);
    add_run_options();
    const auto add_common = [](CLI::App* command, auto& common, std::vector<std::string>& programs) {
      command->add_flag("--json", common.json, "Print JSON");
      command->add_option("--device", common.device, "CUDA device index; -1 for none")
          ->check(CLI::Range(-1, 1023));
      command->add_option("--worker", programs, "NAME=COMMAND: one more worker program, or in place of one")
          ->allow_extra_args(false);
    };
    add_common(list, list_options, list_workers);
    add_common(calibrate, calibrate_options, calibrate_workers);
    auto* wait =
        calibrate->add_flag("--wait", calibrate_options.wait, "Wait until no other run uses the device");
    calibrate
        ->add_flag("--share-device", calibrate_options.share_device,
                   "Go on although another run uses the device, or its lock cannot be had")
        ->excludes(wait);
    for (CLI::App* command :
         {run, list, calibrate, compare.command, history.command, report.command, profile.command})
      command->allow_extras();
    app.allow_extras();
  }

  void add_run_options() {
    const auto list_of = [](CLI::Option* option) { option->delimiter(',')->allow_extra_args(false); };
    const char* what = "What to measure";
    run->add_option("--suite", options.suite, "Name of a suite, or its file")
        ->capture_default_str()
        ->group(what);
    list_of(
        run->add_option(
               "--workload", options.workload_names,
               "Instead of a suite: mlp-784x300x10-b64 trains 784-300-10, batch 64; "
               "mlp-17x64x6-b64-tanh-mse-adam with that activation, loss and optimizer; -g2 at its end on "
               "two GPUs with that batch each; repeatable")
            ->group(what));
    list_of(
        run->add_option("--workloads", options.suite_workloads, "Only these workloads of the suite, by name")
            ->group(what));
    run->add_option(
           "--model", model,
           "FILE.py:NAME, instead of a suite: the torch.nn.Sequential that NAME is or returns, of Linear "
           "layers with one activation between them; needs --batch; the file is executed with your rights")
        ->group(what);
    run->add_option("--batch", batch_size,
                    "Of the model, or of each --workload instead of what its name says")
        ->check(CLI::Range(1, 1 << 30))
        ->group(what);
    run->add_option("--loss", loss, "As --batch: cross-entropy, mse or bce")->group(what);
    run->add_option("--optimizer", optimizer, "As --batch: sgd, adam or adamw")->group(what);
    run->add_option(
           "--draw", options.draw,
           "What a suite draws its networks from (the suite 'drawn' does), such as a commit; default: the "
           "commit that is measured")
        ->group(what);
    run->add_option("--shard", shard, "I/N: the I-th of N parts of the workloads")->group(what);
    list_of(run->add_option("--backend", options.backends,
                            "Backends, or 'all' that compete (not 'cuda', which repeats another row); -NAME "
                            "leaves one out")
                ->group(what));
    list_of(run->add_option("--precision", precisions, "fp32, tf32, fp16, bf16")->group(what));
    run->add_option(
           "--data", options.data_folder,
           "Folder with IDX images and labels (MNIST), plain or gzip, or the images file itself; default: "
           "synthetic data")
        ->group(what);
    run->add_option("--seed", seed, "Of initial parameters, synthetic data and the order of samples")
        ->group(what);
    for (const NumberOption& one : kNumberOptions)
      run->add_option(one.option, numbers[one.option], one.help)->group(what);

    const char* how = "How";
    run->add_option("--blocks", options.blocks, "Timed blocks a record")
        ->capture_default_str()
        ->check(CLI::Range(12, 100000))
        ->group(how);
    run->add_option("--block-seconds", options.block_seconds, "Least length of a block")
        ->capture_default_str()
        ->check(between(0.02, 60.0))
        ->group(how);
    run->add_option("--energy-seconds", options.energy_seconds,
                    "Untimed steps after the blocks to measure their energy, for each record; 0 for none")
        ->capture_default_str()
        ->check(between(0.0, 600.0))
        ->group(how);
    loss_steps_option =
        run->add_option("--losses", loss_steps, "Also train N steps per seed and keep the losses; 0 for none")
            ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
            ->group(how);
    list_of(run->add_option("--loss-seeds", loss_seeds,
                            "Seeds of the loss runs; default: the suite's, else 1,2,3,4,5")
                ->group(how));
    device_option = run->add_option("--device", options.device, "CUDA device index; -1 for none")
                        ->capture_default_str()
                        ->check(CLI::Range(-1, 1023))
                        ->group(how);
    list_of(run->add_option(
                   "--devices", options.devices,
                   "CUDA devices of workloads that train on several (mlp-784x128x10-b32-g2), such as 0,1; "
                   "default: --device and the others from 0 on")
                ->check(CLI::Range(0, 1023))
                ->excludes(device_option)
                ->group(how));
    auto* wait = run->add_flag("--wait", options.wait, "Wait until no other run uses the device")->group(how);
    run->add_flag("--share-device", options.share_device,
                  "Go on although another run uses the device (times will suffer), or its lock cannot be had")
        ->excludes(wait)
        ->group(how);
    run->add_option("--time-limit", options.time_limit_seconds,
                    "Seconds a worker may take for one call, other than setting up, before it is ended")
        ->capture_default_str()
        ->check(CLI::Range(1, 86400))
        ->group(how);
    run->add_option("--setup-limit", options.setup_limit_seconds,
                    "Seconds a backend may take to set up (compile, tune, capture) before it is ended")
        ->capture_default_str()
        ->check(CLI::Range(1, 86400))
        ->group(how);
    run->add_option("--cache-dir", options.cache_folder,
                    "Where backends keep compiled code and choices; default: headroom/compiled in the user's "
                    "cache folder")
        ->group(how);
    run->add_flag("--choose-again", options.choose_again,
                  "Backends that take the fastest of several time them anew, instead of taking what an "
                  "earlier run took")
        ->group(how);
    run->add_option("--compile-processes", options.compile_processes,
                    "First set up all compiled rows in N processes side by side, so that measuring finds "
                    "their code in "
                    "--cache-dir; 0: each is set up when it is measured")
        ->capture_default_str()
        ->check(CLI::Range(0, 256))
        ->group(how);
    run->add_flag("--compile-only", options.compile_only,
                  "Compile, and end with nothing measured; without a GPU for an H100 or H200")
        ->group(how);
    run->add_flag("--yes", options.yes, "Start even what is estimated to take longer than a day")->group(how);
    run->add_option("--worker", workers,
                    "NAME=COMMAND: one more worker program, or in place of one; repeatable")
        ->allow_extra_args(false)
        ->group(how);

    const char* where = "Output";
    run->add_option("--output", output, "Results file; default: results/runs/<time>-<suite>.json")
        ->group(where);
    run->add_option("--resume", resume, "Go on with an interrupted run's file, with its settings")
        ->group(where);
    run->add_flag("--retry-failed", options.retry_failed,
                  "With --resume: measure again where a record failed, with all it is compared with")
        ->group(where);
    run->add_option("--format", format,
                    "What to print: text (a table), json (a summary) or csv (a row for each block)")
        ->capture_default_str()
        ->group(where);
    run->add_flag_callback("--json", [this] { format = "json"; }, "The same as --format json")->group(where);
    run->add_flag("--no-figures", no_figures, "Draw no figures")->group(where);
    run->footer(
        "Google Benchmark's --benchmark_filter, --benchmark_out, --benchmark_out_format, --benchmark_format "
        "and\n"
        "--benchmark_list_tests work too; a benchmark's name is WORKLOAD/BACKEND/PRECISION.");
  }

  // An unknown word, with the nearest option or command.
  static void refuse_extras(const CLI::App& command, const std::string& called) {
    std::vector<std::string> extras = command.remaining();
    std::erase(extras, "--");  // which the parser keeps, after it has done what it says
    if (extras.empty()) return;
    const std::string& word = extras.front();
    std::vector<std::string> names;
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(sub->get_name());
    const std::string typed = word.substr(0, word.find('='));
    throw InputError(fmt::format("unknown {} '{}'; did you mean '{}'? See {} --help",
                                 word.starts_with('-') ? "option" : (called.empty() ? "command" : "argument"),
                                 word, nearest_name(typed, names), command_name() + called));
  }

  // An empty value is mostly a shell variable that is not set; to take the default instead would hide that.
  static void refuse_empty_values(const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& value : option->results()) {
        if (value.empty()) throw InputError(fmt::format("{}: its value is empty", option->get_name()));
      }
    }
  }

  // Returns the text to print if help or version was asked for.
  std::optional<std::string> parse(const std::vector<std::string>& argv) {
    std::vector<std::string> arguments(argv.begin() + (argv.empty() ? 0 : 1), argv.end());
    const bool is_run = !arguments.empty() && arguments.front() == "run";
    if (is_run) options.google_benchmark = take_benchmark_flags(arguments);
    // What follows "--" are names, which not every command takes.
    const auto mark = std::find(arguments.begin(), arguments.end(), "--");
    if (mark != arguments.end() && !kTakeFiles.contains(arguments.front())) {
      if (mark + 1 != arguments.end()) {
        const std::string called = command_called(argv);
        throw InputError(fmt::format("unknown argument '{}'; see headroom{} --help", *(mark + 1), called));
      }
      arguments.erase(mark);
    }
    std::reverse(arguments.begin(), arguments.end());  // CLI11 reads a vector from its end
    try {
      app.parse(arguments);
    } catch (const CLI::CallForHelp&) {
      return app.help();
    } catch (const CLI::ParseError& error) {
      throw InputError(fmt::format("{}; see {} --help", first_line(error.what()), command_called(argv)));
    }
    if (version) return fmt::format("headroom {}\n", version_text(find_installation().root));
    for (const CLI::App* command : app.get_subcommands()) refuse_empty_values(*command);
    refuse_extras(app, subcommand_called(argv));
    if (run->parsed()) {
      refuse_extras(*run, " run");
      finish_run(argv);
    } else if (list->parsed()) {
      refuse_extras(*list, " list");
      for (const std::string& text : list_workers) list_options.workers.push_back(parse_worker(text));
    } else if (calibrate->parsed()) {
      refuse_extras(*calibrate, " calibrate");
      for (const std::string& text : calibrate_workers)
        calibrate_options.workers.push_back(parse_worker(text));
    } else if (compare.command->parsed()) {
      refuse_extras(*compare.command, " compare");
      compare.finish();
    } else if (history.command->parsed()) {
      refuse_extras(*history.command, " history");
      history.finish();
    } else if (report.command->parsed()) {
      refuse_extras(*report.command, " report");
      report.finish();
    } else if (profile.command->parsed()) {
      refuse_extras(*profile.command, " profile");
      std::vector<WorkerOption> programs;
      for (const std::string& text : profile.workers) programs.push_back(parse_worker(text));
      profile.finish(argv, std::move(programs));
    } else {
      return app.help();
    }
    return std::nullopt;
  }

  void finish_run(const std::vector<std::string>& argv) {
    options.argv = argv;
    options.output = output;
    options.figures = !no_figures;
    options.resume = resume;
    options.device_given = device_option->count() > 0;
    take_devices();
    for (const std::string& name : precisions) options.precisions.push_back(parse_precision(name));
    for (const std::string& text : workers) options.workers.push_back(parse_worker(text));
    if (!seed.empty()) options.seed = parse_seed("--seed", seed);
    for (const std::string& text : loss_seeds) options.loss_seeds.push_back(parse_seed("--loss-seeds", text));
    for (std::size_t i = 0; i < options.loss_seeds.size(); ++i) {
      if (std::count(options.loss_seeds.begin(), options.loss_seeds.end(), options.loss_seeds[i]) > 1) {
        throw InputError(fmt::format("--loss-seeds: {} is there twice", options.loss_seeds[i]));
      }
    }
    for (const NumberOption& one : kNumberOptions) {
      if (run->get_option(one.option)->count() == 0) continue;
      const double value = numbers[one.option];
      if (!one.is_right(value))
        throw InputError(fmt::format("{} {}: expected {}", one.option, value, one.expected));
      options.optimizer_numbers[one.number] = value;
    }
    if (loss_steps_option->count() > 0) options.loss_steps = loss_steps;
    if (batch_size > 0) options.batch_size = batch_size;
    const auto parse_kind = [](const char* option, auto read, const std::string& text, auto& kind) {
      try {
        if (!text.empty()) kind = read(text);
      } catch (const InputError& error) {
        throw InputError(fmt::format("{}: {}", option, error.what()));
      }
    };
    parse_kind("--loss", parse_loss, loss, options.loss);
    parse_kind("--optimizer", parse_optimizer, optimizer, options.optimizer);
    if (!model.empty()) take_model();
    if (!shard.empty()) parse_shard();
    if (options.compile_only && options.compile_processes == 0) options.compile_processes = 1;
    if (run->get_option("--suite")->count() > 0 && !options.workload_names.empty()) {
      throw InputError("--workload and --suite: give one of them; --workloads takes a part of a suite");
    }
    if (!options.workload_names.empty() && !options.suite_workloads.empty()) {
      throw InputError("--workload and --workloads: give one of them; --workloads takes a part of a suite");
    }
    if (!output.empty() && !resume.empty()) {
      throw InputError(
          "--output and --resume: a resumed run goes on in the file it is given; leave --output out");
    }
    if (options.retry_failed && resume.empty())
      throw InputError("--retry-failed: goes with --resume FILE, whose failed records are measured again");
    options.format = parse_named("--format", format, kSummaryFormats);
    if (options.format != SummaryFormat::kText && !options.google_benchmark.format.empty()) {
      throw InputError(fmt::format(
          "--format {} and --benchmark_format={}: both print on standard output; give one of them, or write "
          "the other into a file with --benchmark_out=FILE",
          format, options.google_benchmark.format));
    }
    for (const std::string& name : kSettings) {
      const CLI::Option* option = run->get_option("--" + name);
      if (option->count() == 0) continue;
      std::string text;
      for (const std::string& value : option->results()) text += (text.empty() ? "" : ",") + value;
      // Paths are stored as base names.
      if (name == "data" || (name == "suite" && is_path(text))) text = base_name(text);
      options.settings[name] = text;
    }
    if (!options.google_benchmark.filter.empty()) {
      options.settings["benchmark_filter"] = options.google_benchmark.filter;
    }
  }

  void take_devices() {
    for (const int device : options.devices)
      if (std::count(options.devices.begin(), options.devices.end(), device) > 1)
        throw InputError(fmt::format("--devices: {} is there twice", device));
    if (options.devices.empty()) return;
    options.device = options.devices.front();
    options.device_given = true;
  }

  void take_model() {
    options.model = parse_model(model);
    for (const char* other : {"--suite", "--workload", "--workloads"}) {
      if (run->get_option(other)->count() > 0)
        throw InputError(fmt::format("--model and {}: give one of them", other));
    }
    if (!resume.empty())
      throw InputError(
          "--model and --resume: a resumed run goes on with the workload that was read then; leave --model "
          "out");
    if (!options.batch_size) throw InputError("--model: needs --batch N, such as --batch 64");
  }

  static std::uint64_t parse_seed(const std::string& option, const std::string& text) {
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    try {
      if (digits) return std::stoull(text);
    } catch (const std::out_of_range&) {  // falls through to the message
    }
    throw InputError(
        fmt::format("{} {}: expected a whole number from 0 to 18446744073709551615", option, text));
  }

  void parse_shard() {
    const std::size_t slash = shard.find('/');
    const auto number = [&](const std::string& text) {
      const bool digits =
          !text.empty() && text.size() < 7 && text.find_first_not_of("0123456789") == std::string::npos;
      return digits ? std::stoi(text) : 0;
    };
    if (slash != std::string::npos) {
      options.shard_index = number(shard.substr(0, slash));
      options.shard_count = number(shard.substr(slash + 1));
    }
    if (slash == std::string::npos || options.shard_index < 1 || options.shard_count < options.shard_index) {
      throw InputError(fmt::format("--shard {}: expected I/N with I from 1 to N, such as 2/4", shard));
    }
  }
};

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& argv) {
  Parser parser;
  CommandLine line;
  if (const auto text = parser.parse(argv)) {
    line.text = *text;
    return line;
  }
  line.command = parser.run->parsed()               ? CommandLine::Command::kRun
                 : parser.compare.command->parsed() ? CommandLine::Command::kCompare
                 : parser.calibrate->parsed()       ? CommandLine::Command::kCalibrate
                 : parser.history.command->parsed() ? CommandLine::Command::kHistory
                 : parser.report.command->parsed()  ? CommandLine::Command::kReport
                 : parser.profile.command->parsed() ? CommandLine::Command::kProfile
                                                    : CommandLine::Command::kList;
  line.run = parser.options;
  line.list = parser.list_options;
  line.compare = parser.compare.options;
  line.calibrate = parser.calibrate_options;
  line.history = parser.history.options;
  line.report = parser.report.options;
  line.profile = parser.profile.options;
  return line;
}

RunOptions parse_resumed(const std::vector<std::string>& argv, const std::string& file,
                         const std::map<std::string, std::string>& file_settings) {
  const RunOptions given = parse_command_line(argv).run;
  const auto option_text = [](const std::string& name, const std::string& value) {
    return fmt::format("--{}{}{}", name, name == "benchmark_filter" ? "=" : " ", value);
  };
  for (const auto& [name, value] : given.settings) {
    const auto found = file_settings.find(name);
    if (found == file_settings.end()) {
      throw InputError(fmt::format(
          "--resume {}: that run was made without --{}; leave it out or start a new run", file, name));
    }
    if (found->second != value) {
      throw InputError(fmt::format("--resume {}: that run was made with {}, not {}", file,
                                   option_text(name, found->second), option_text(name, value)));
    }
  }
  std::vector<std::string> extended;
  for (const auto& [name, value] : file_settings) {
    // Options that name programs or files to execute are the command line's alone.
    if (kSettings.count(name) == 0 && name != "benchmark_filter")
      throw InputError(
          fmt::format("--resume {}: run.settings.{}: not an option that a run goes on with; start a new run",
                      file, name));
    if (given.settings.count(name) > 0) continue;
    if (name == "data" || (name == "suite" && is_path(value))) {
      throw InputError(
          fmt::format("--resume {}: that run was made with --{} {}; give its path again", file, name, value));
    }
    // One word, so that a value can never be read as an option of its own.
    extended.push_back(fmt::format("--{}={}", name, value));
  }
  // Before what was typed, which may end in "--".
  extended.insert(extended.begin(), argv.begin(), argv.begin() + 2);
  extended.insert(extended.end(), argv.begin() + 2, argv.end());
  RunOptions options = parse_command_line(extended).run;
  options.argv = argv;
  return options;
}

}  // namespace headroom
