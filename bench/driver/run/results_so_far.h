// The results of a run while they grow: what is known of it, group by group.
#pragma once

#include <string>
#include <vector>

#include "driver/plan/plan.h"
#include "driver/results/results.h"
#include "driver/run/progress.h"
#include "driver/run/worker_pool.h"

namespace headroom {

/// What is known of the run before any worker is asked.
Results begin_results(const RunOptions& options, const Plan& plan, const Installation& installation);

/// What the workers say of the machine.
void note_machine(Results& results, const WorkerPool& pool, const std::vector<int>& peers);

/// The workload's entry in the results, made or brought up to date.
void note_workload(Results& results, const PlannedWorkload& planned, const DatasetInfo& dataset);

/// The floor of the workload in this precision, and the records' fractions of it. A floor that cannot be computed costs
/// one line.
void note_floor(Results& results, const Workload& workload, std::vector<Record>& records, Precision precision,
                Progress& progress);

/// Where the time of the workload's step goes in this precision, from the records that are in the results; likewise.
void note_ladder(Results& results, const Workload& workload, Precision precision, Progress& progress);

/// What the workload's backends took that choose, by their names.
void note_choices(Results& results, const Workload& workload, Precision precision,
                  const std::map<std::string, Choice>& choices);

/// Adds a group's records, in place of those that are there.
void put_records(Results& results, const std::vector<Record>& records);

/// Loss curves of pytorch-eager in fp32 for a workload; empty if there are none.
std::vector<LossCurve> eager_curves(const Results& results, const std::string& workload);

/// Marks the run as finished and complete.
void finish_results(Results& results);

}  // namespace headroom
