// What the command line asked for. Parsing checks spelling and ranges; plan.h checks names against suites and
// backends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/optimizer_numbers.h"
#include "core/workload.h"

namespace headroom {

/// A worker program named on the command line: one more, or in place of the one with that name.
struct WorkerOption {
  std::string name;
  std::vector<std::string> command;
};

/// Google Benchmark's own flags. Its reports are ours to write (results/benchmark_out.h): left to itself the library
/// would start the file anew for every (workload, precision).
struct GoogleBenchmarkOptions {
  std::string filter;                  ///< --benchmark_filter
  std::string out;                     ///< --benchmark_out
  std::string out_format;              ///< --benchmark_out_format: json, console or csv
  std::string format;                  ///< --benchmark_format; empty: our table instead
  bool list_tests = false;             ///< --benchmark_list_tests
  std::vector<std::string> passed_on;  ///< what else the library may read itself
};

/// --model FILE:NAME: a network in a Python file of the user's.
struct ModelOption {
  std::string file, name;
};

/// What a run prints when it is over: a table, a summary as JSON, a row of CSV for each block.
enum class SummaryFormat { kText, kJson, kCsv };
inline const std::map<std::string, SummaryFormat> kSummaryFormats = {
    {"text", SummaryFormat::kText}, {"json", SummaryFormat::kJson}, {"csv", SummaryFormat::kCsv}};

struct RunOptions {
  std::string suite = "quick";       ///< name or file
  std::optional<ModelOption> model;  ///< instead of a suite, until run/user_model.h makes it a workload
  std::vector<std::string> workload_names;   ///< --workload: instead of a suite
  std::vector<std::string> suite_workloads;  ///< --workloads: subset of the suite; empty for all
  std::string draw;  ///< --draw: what the suite draws its networks from; empty: the commit
  int shard_index = 1, shard_count = 1;  ///< --shard I/N, I from 1
  std::vector<std::string> backends;     ///< empty: what the suite says
  std::vector<Precision> precisions;     ///< empty: what the suite says
  std::string data_folder;               ///< IDX files; empty: synthetic
  std::optional<std::uint64_t> seed;
  // Of the workloads named, instead of what their names say.
  std::optional<int> batch_size;
  std::optional<Loss> loss;
  std::optional<Optimizer::Kind> optimizer;
  std::map<std::string, double> optimizer_numbers;  ///< as --learning-rate and the like, by kOptimizerNumbers
  std::optional<std::int64_t> loss_steps;
  std::vector<std::uint64_t> loss_seeds;  ///< empty: what the suite says
  int blocks = 12;
  double block_seconds = 0.03;
  double energy_seconds = 2;  ///< of the stretch that energy is measured over; 0: none
  int device = 0;
  bool device_given = false;
  std::vector<int>
      devices;  ///< --devices: those of the ranks, `device` first; empty: `device` and what else there is
  std::filesystem::path output;  ///< empty: results/runs/<utc>-<suite>.json
  std::filesystem::path resume;  ///< empty: a new run
  bool retry_failed = false;     ///< with `resume`: what failed is measured again
  bool yes = false;              ///< start even what takes longer than a day
  SummaryFormat format = SummaryFormat::kText;
  bool figures = true, wait = false, share_device = false;
  std::vector<WorkerOption> workers;
  std::string cache_folder;   ///< empty: one in the user's cache
  bool choose_again = false;  ///< backends that take one of several do not go by what earlier runs found
  int time_limit_seconds = 600;
  int setup_limit_seconds = 300;
  int compile_processes = 0;  ///< that set up compiled rows before anything is measured; 0: none
  bool compile_only = false;
  GoogleBenchmarkOptions google_benchmark;
  std::vector<std::string> argv;  ///< as typed, program first
  /// The options that decide what is measured and how, as given; stored in the file and compared by --resume.
  std::map<std::string, std::string> settings;
};

struct ListOptions {
  bool json = false;
  int device = 0;
  std::vector<WorkerOption> workers;
};

enum class CompareFormat { kText, kMarkdown, kJson, kGoogleBenchmark, kBencher, kGithubActionBenchmark };

/// `headroom compare`: exactly one of two builds, two files, one file's backends, a baseline, or a self-check.
struct CompareOptions {
  std::string base, head;              ///< build folders; the front door makes them of git revisions
  std::string base_label, head_label;  ///< how reports call them; empty: the folder
  std::vector<std::filesystem::path> files;
  std::filesystem::path within;  ///< one file, two of its backends
  std::string base_backend, head_backend;
  bool self_check = false;          ///< one build (--head, or this one) against itself
  int repeat = 1;                   ///< of the self-check
  double plant_percent = 0;         ///< self-check: head's worker makes its steps that much slower
  std::filesystem::path baselines;  ///< folder of baselines
  std::string save_baseline, baseline;

  RunOptions measured;  ///< suite, workloads, backends, precisions, data, device and its lock, time limit
  int launches = 3;     ///< pairs of fresh processes in a round
  int pairs = 4;        ///< pairs of blocks in each
  double block_seconds = 0.004;
  double tolerance_percent = 2;
  CompareFormat format = CompareFormat::kText;
  std::filesystem::path output;  ///< the comparison as JSON; empty for none
  bool print_targets = false;    ///< for the front door: which programs the builds must have
};

struct CalibrateOptions {
  bool json = false, wait = false, share_device = false;
  int device = 0;
  std::vector<WorkerOption> workers;
};

/// `headroom history`: step times over commits.
struct HistoryOptions {
  std::vector<std::filesystem::path> files;
  SummaryFormat format = SummaryFormat::kText;
  std::filesystem::path output;  ///< folder for figures; empty: none are drawn
  double tolerance_percent = 2;
};

/// `headroom report --format csv`: a row for each block of the files.
struct ReportOptions {
  std::vector<std::filesystem::path> files;
};

/// `headroom profile`: one backend in one process, for a profiler to watch.
struct ProfileOptions {
  RunOptions trained;       ///< one workload, one backend, one precision; device and limits
  std::int64_t steps = 50;  ///< of the block after the check
};

struct CommandLine {
  enum class Command { kRun, kList, kCompare, kCalibrate, kHistory, kReport, kProfile, kPrintAndExit };
  Command command = Command::kPrintAndExit;
  RunOptions run;
  ListOptions list;
  CompareOptions compare;
  CalibrateOptions calibrate;
  HistoryOptions history;
  ReportOptions report;
  ProfileOptions profile;
  std::string text;  ///< kPrintAndExit: help or version, for standard output
};

/// Throws InputError, one line, for whatever the user could have got wrong in spelling or range.
CommandLine parse_command_line(const std::vector<std::string>& argv);

/// The same, with the settings of the interrupted run in `file_settings` standing for options that were not
/// given. Throws InputError that names the option if one was given and differs.
RunOptions parse_resumed(const std::vector<std::string>& argv, const std::string& file,
                         const std::map<std::string, std::string>& file_settings);

}  // namespace headroom
