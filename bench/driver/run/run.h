// The stages of `headroom run` around the groups: what is decided before anything is measured, and what
// happens when all is. bench/main.cpp calls them in order.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "driver/plan/plan.h"
#include "driver/results/results.h"
#include "driver/run/progress.h"
#include "driver/run/worker_pool.h"
#include "driver/system/whole_file.h"

namespace headroom {

/// A suite may start the Python worker with arguments of its own; --worker python=... comes first.
void start_workers_as_the_suite_asks(RunOptions& options, const Installation& installation);

/// Greets the workers named on the command line. Throws InputError if one cannot be started or is no worker; one that is
/// killed meanwhile, or speaks another version of the protocol, costs its rows alone.
void greet_named_workers(const RunOptions& options, WorkerPool& pool);
/// Ends those that were greeted and that the plan does not need: they serve none of its backends, follow no oracle for it
/// and do not calibrate the device.
void keep_needed_workers(const Plan& plan, const std::vector<BackendRow>& table, WorkerPool& pool);

/// Starts those that will train, at the same time.
void start_planned_workers(const Plan& plan, const std::vector<BackendRow>& table, WorkerPool& pool);

/// Takes the name of the results file, if no file is gone on with, and puts `results` there, which hold no record yet.
/// Throws InputError if it cannot be written or is there already.
void choose_output(const RunOptions& options, const Plan& plan, const Installation& installation,
                   const Results& results, ReservedFile& output);

/// The folder for compiled code; empty if there is none to be had, and it is then compiled anew in each run. Throws
/// InputError if the one that was asked for cannot be written.
std::string choose_cache_folder(const RunOptions& options);

/// Draws the figures into a folder beside the results. A machine without matplotlib costs one line.
void draw_figures(const Installation& installation, const std::filesystem::path& results_file,
                  Progress& progress);

}  // namespace headroom
