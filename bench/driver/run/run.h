// The stages of `headroom run` around the groups: what is decided before anything is measured, and what
// happens when all is. bench/main.cpp calls them in order.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "driver/plan/plan.h"
#include "driver/results/results.h"
#include "driver/run/group_run.h"
#include "driver/run/worker_pool.h"
#include "driver/system/device_lock.h"
#include "driver/system/whole_file.h"

namespace headroom {

/// The options of a run that goes on with its file, or those given; with --resume `earlier` is what the file
/// holds, and `output` holds the file.
RunOptions resolve_options(const RunOptions& asked, ReservedFile& output, std::optional<Results>& earlier);

/// The device to use: -1 where there is none. Throws InputError if one was asked for that is not there.
/// A suite may start the Python worker with arguments of its own; --worker python=... comes first.
void start_workers_as_the_suite_asks(RunOptions& options, const Installation& installation);
int choose_device(const RunOptions& options);

/// Greets the workers named on the command line and adds their backends to `table`. Throws InputError if one cannot be
/// started or is no worker; one that is killed meanwhile costs its rows alone.
void greet_named_workers(const RunOptions& options, WorkerPool& pool, std::vector<BackendRow>& table);
/// Greets those that serve the planned backends, and with a device those that calibrate it.
void greet_planned_workers(const Plan& plan, const std::vector<BackendRow>& table, int device,
                           WorkerPool& pool);

/// Starts those that will train, at the same time.
void start_planned_workers(const Plan& plan, const std::vector<BackendRow>& table, WorkerPool& pool);

/// Takes the name of the results file, if no file is gone on with, and puts `results` there, which hold no record yet.
/// Throws InputError if it cannot be written or is there already.
void choose_output(const RunOptions& options, const Plan& plan, const Installation& installation,
                   const Results& results, ReservedFile& output);

/// Throws InputError if an `earlier` run, which is to go on, was of another suite, other sources or other workloads: what
/// can be known before any worker is started.
void refuse_other_plan(const RunOptions& options, const std::optional<Results>& earlier, const Plan& plan,
                       const Installation& installation);

/// What is known of the run before any worker is asked.
Results begin_results(const RunOptions& options, const Plan& plan, const Installation& installation);

/// What the workers say of the machine; of an `earlier` run its records, as far as they are complete groups of the plan.
/// Throws InputError if the earlier run had another device or other software.
void note_machine(Results& results, const RunOptions& options, const Plan& plan, const WorkerPool& pool,
                  const std::optional<Results>& earlier);

/// Takes the lock of the device, or throws InputError; with --wait it waits, with --share-device it goes on.
void lock_device(const RunOptions& options, const std::optional<DeviceInfo>& device, DeviceLock& lock,
                 Progress& progress);

/// Opens NVML for the device and notes whether its memory has ECC. Null where there is no device or NVML does not show
/// it; what cannot be read costs one line.
std::unique_ptr<GpuMonitor> watch_device(std::optional<DeviceInfo>& device, Progress& progress);

/// Measures what the device can do, if it was not measured before in this run's file. Empty where there is no device; a
/// rate that is missing costs one line and the floors that need it.
void calibrate(Results& results, WorkerPool& pool, Progress& progress);

/// The floor of the workload in this precision, and the records' fractions of it. A floor that cannot be computed costs
/// one line.
void note_floor(Results& results, const Workload& workload, std::vector<Record>& records, Precision precision,
                Progress& progress);
/// Where the time of the workload's step goes in this precision, from the records that are in the results; likewise.
void note_ladder(Results& results, const Workload& workload, Precision precision, Progress& progress);

/// Bytes of synthetic training data that the device needs for its caches to be no help.
std::int64_t least_train_bytes(const std::optional<DeviceInfo>& device);

/// Whether a worker that was greeted has the oracle on the GPU.
bool has_gpu_oracle(const std::vector<BackendRow>& table, const WorkerPool& pool);

/// Bytes of temporary files that the largest workload needs.
std::int64_t temporary_bytes(const Plan& plan);

/// Throws InputError if a workload of which anything will run does not fit into this machine's memory.
void refuse_too_large(const RunContext& context, const Results& results);

/// The folder for compiled code; empty if there is none to be had, and it is then compiled anew in each run. Throws
/// InputError if the one that was asked for cannot be written.
std::string choose_cache_folder(const RunOptions& options);

/// Whether the file lacks a record of the group, or holds a failed one that --retry-failed asks for.
bool is_due(const RunOptions& options, const Results& results, const PlannedWorkload& planned,
            const Group& group);

/// Adds a group's records, in place of those that are there.
void put_records(Results& results, const std::vector<Record>& records);

/// Whether this machine can run the backend in the group's precision; else its record will be skipped.
bool runs_here(const RunContext& context, const Group& group, const std::string& backend);

/// Guess at how long what is due takes, and how many records are to be made.
struct Outlook {
  double seconds = 0;
  std::int64_t running = 0, skipped = 0;
};
Outlook look_ahead(const RunContext& context, const Results& results);
/// Throws InputError if that is more than a day and --yes was not given.
void refuse_too_long(const RunOptions& options, const Outlook& outlook);

/// Guess at how long a group takes, for the estimate before the start and the time left.
double estimated_seconds(const RunContext& context, const PlannedWorkload& planned, const Group& group);

/// The workload's entry in the results, made or brought up to date.
void note_workload(Results& results, const PlannedWorkload& planned, const DatasetInfo& dataset);

/// Loss curves of pytorch-eager in fp32 for a workload; empty if there are none.
std::vector<LossCurve> eager_curves(const Results& results, const std::string& workload);

/// Marks the run as finished and complete.
void finish_results(Results& results);

/// Draws the figures into a folder beside the results. A machine without matplotlib costs one line.
void draw_figures(const Installation& installation, const std::filesystem::path& results_file,
                  Progress& progress);

/// A path as the user would type it here: relative if it lies below the current folder.
std::string shown(const std::filesystem::path& path);

}  // namespace headroom
