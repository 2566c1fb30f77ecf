#include "driver/compare/paired_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "analysis/verification.h"
#include "core/error.h"
#include "driver/system/interruption.h"

namespace headroom {
namespace {

// Both sides get the same data, so it need not outgrow the caches as it must where backends are compared.
constexpr std::int64_t kLeastTrainBytes = std::int64_t{16} << 20;
// Untimed steps before a block, as a share of it: the other side's kernels and data leave the caches.
constexpr double kWarmupShare = 0.2;
constexpr std::int64_t kLeastSteps = 20, kMostSteps = std::int64_t{1} << 32;
constexpr double kMargin =
    1.1;  // a block is planned a little longer than asked, since the estimate has some noise
constexpr double kLossRange = 10;  // as in group_run.cpp

double block_seconds(const Timing& timing) {
  if (!std::isfinite(timing.device_seconds) || timing.device_seconds <= 0)
    throw std::runtime_error(
        fmt::format("the worker measured {} s for some steps: not a time", timing.device_seconds));
  return timing.device_seconds;
}

}  // namespace

const TrainingFiles& ComparedFiles::training(const Workload& workload) {
  const auto found = training_.find(workload.name);
  if (found != training_.end()) return found->second;
  return training_
      .emplace(workload.name, write_training_files(workload, kLeastTrainBytes,
                                                   folder_ / fmt::format("{}", training_.size()), true))
      .first->second;
}

const Reference& ComparedFiles::reference(const Workload& workload, Precision precision,
                                          const OfferedBackend* gpu_oracle, WorkerClient* client) {
  const auto key = std::make_pair(workload.name, precision);
  const auto found = references_.find(key);
  if (found != references_.end()) return found->second;
  const TrainingFiles& own = training(workload);
  const std::filesystem::path folder = own.parameters.parent_path() / std::string(to_string(precision));
  const bool on_gpu = gpu_oracle != nullptr && wants_gpu_oracle(workload);
  // A cell of any contract may follow.
  std::vector<Contract> contracts = {Contract::kExact};
  if (precision == Precision::kTf32) contracts.push_back(Contract::kLibrary);
  if (precision == Precision::kFp16 || precision == Precision::kBf16)
    contracts.push_back(Contract::kAutocast);
  return references_
      .emplace(key, on_gpu ? gpu_reference(*client, gpu_oracle->name, own, precision, contracts, folder)
                           : cpu_reference(own, precision, contracts, folder))
      .first->second;
}

PairedRun::PairedRun(const CompareOptions& options, const Plan& plan, const std::vector<BackendRow>& table,
                     SidePools& pools, ComparedFiles& files, Progress& progress, std::uint64_t seed)
    : options_(options), pools_(pools), files_(files), progress_(progress), random_(seed) {
  for (const PlannedWorkload& planned : plan.workloads) {
    for (const Group& group : planned.groups) {
      for (const std::string& backend : group.backends) {
        Cell& cell = cells_.emplace_back();
        cell.index = comparison_.cells.size();
        cell.workload = planned.workload;
        cell.row = row_of(table, backend);
        ComparedCell& result = comparison_.cells.emplace_back();
        result.workload = planned.workload.name;
        result.base_backend = result.head_backend = backend;
        result.precision = group.precision;
      }
    }
  }
}

void PairedRun::measure_round(int round) {
  for (int launch = 0; launch < options_.launches; ++launch) {
    progress_.status(fmt::format("round {}, processes {} of {}", round, launch + 1, options_.launches),
                     launch == 0);
    measure_launch(round, (round - 1) * options_.launches + launch);
    end_on_both(pools_);
  }
}

void PairedRun::measure_launch(int round, int processes) {
  std::vector<Cell*> order;
  for (Cell& cell : cells_) {
    const ComparedCell& result = compared(cell);
    if (result.state == CellState::kJudged && (round == 1 || result.inconclusive())) order.push_back(&cell);
  }
  std::shuffle(order.begin(), order.end(), random_);
  for (Cell* cell : order) {
    interruption::throw_if_requested();
    measure_cell(*cell, round, processes);
  }
}

void PairedRun::lack(Side side, Cell& cell, const std::string& message) {
  const CellState before = compared(cell).state;
  if (before == CellState::kFailed) return;
  // What neither has is nobody's loss.
  const CellState alone = side == Side::kBase ? CellState::kNew : CellState::kMissing;
  settle(side, cell, before == CellState::kJudged ? alone : CellState::kSkipped, message);
}

void PairedRun::fail(Side side, Cell& cell, const std::string& message) {
  const CellState before = compared(cell).state;
  if (side == Side::kHead) {
    settle(side, cell, CellState::kFailed, message);
  } else if (before == CellState::kJudged) {
    settle(side, cell, CellState::kBaseFailed, message);
  }  // what head does wrong stays the news
}

void PairedRun::settle(Side side, Cell& cell, CellState state, const std::string& message) {
  compared(cell).state = state;
  compared(cell).message = one_line(fmt::format("{}: {}", to_string(side), message));
}

// Whatever goes wrong on one side ends here, in the cell; Ctrl-C, another protocol and files of the driver's own that
// cannot be written go on upwards.
template <typename Work>
bool PairedRun::attempt(Side side, Cell& cell, const std::string& what, Work&& work) {
  interruption::throw_if_requested();
  try {
    work();
    return true;
  } catch (const NotComparableError&) {
    throw;
  } catch (const OutputError&) {
    throw;
  } catch (const WorkerCallError& error) {
    interruption::throw_if_requested();
    if (error.kind() == WorkerCallError::Kind::kUnsupported && compared(cell).pairs.empty()) {
      lack(side, cell, error.what());
      return false;
    }
    fail(side, cell, fmt::format("{}: {}", what, error.what()));
  } catch (const std::bad_alloc&) {
    fail(side, cell, fmt::format("{}: the driver ran out of memory", what));
  } catch (const std::exception& error) {
    interruption::throw_if_requested();
    fail(side, cell, fmt::format("{}: {}", what, error.what()));
  }
  // A worker that failed a call may hold a broken CUDA context: the next cell starts in a fresh one.
  pool(side).end_greeted(cell.row.worker);
  return false;
}

template <typename Work>
bool PairedRun::on_both(bool head_first, Cell& cell, const std::string& what, Work&& work) {
  bool both = true;
  for (const Side side : head_first ? std::array{Side::kHead, Side::kBase} : kSides) {
    const bool done = attempt(side, cell, what, [&] { work(side); });
    both = both && done;
  }
  return both;
}

// Whether both builds have the cell and can run it here; else the cell says who cannot.
bool PairedRun::offered(Cell& cell) {
  ComparedCell& result = compared(cell);
  bool both = true;
  for (const Side side : kSides) {
    std::string missing;
    if (!attempt(side, cell, "starting", [&] { client(side, cell); })) {
      both = false;
      continue;
    }
    const WorkerHello& hello = this->hello(side, cell);
    if (side == Side::kHead || !comparison_.device) comparison_.device = hello.device;
    if (side == Side::kHead) comparison_.software.insert(hello.software.begin(), hello.software.end());
    const auto offer = std::find_if(hello.backends.begin(), hello.backends.end(),
                                    [&](const auto& backend) { return backend.name == cell.row.name; });
    if (offer == hello.backends.end()) {
      missing = "the build does not offer it";
    } else if (const auto entry = offer->precisions.find(result.precision);
               entry == offer->precisions.end()) {
      missing = fmt::format("does not offer {}", to_string(result.precision));
    } else if (hello.broken || entry->second.unavailable) {
      missing = hello.broken ? *hello.broken : *entry->second.unavailable;
    } else if (cell.workload.devices > offer->max_devices) {
      missing = trains_on_fewer(offer->max_devices);
    }
    if (missing.empty()) continue;
    lack(side, cell, missing);
    both = false;
  }
  return both;
}

void PairedRun::prepare(Side side, Cell& cell) {
  const TrainingFiles& own = files_.training(cell.workload);
  const Prepared prepared = client(side, cell)
                                .prepare(cell.row.name, own.workload, compared(cell).precision, own.data,
                                         own.parameters, files_.cache_folder());
  if (prepared.choice) cell.taken[static_cast<std::size_t>(side)].insert(prepared.choice->taken);
  if (side == Side::kHead && compared(cell).state == CellState::kJudged)
    compared(cell).message = one_line(prepared.note);
}

void PairedRun::check(Side side, Cell& cell) {
  const std::pair key(side, compared(cell).name());
  if (files_.verified().count(key) > 0) {
    prepare(side, cell);
    return;
  }
  const Precision precision = compared(cell).precision;
  const WorkerHello& hello = this->hello(side, cell);
  const auto first = [&](auto&& is_wanted) {
    const auto found = std::find_if(hello.backends.begin(), hello.backends.end(), is_wanted);
    return found == hello.backends.end() ? nullptr : &*found;
  };
  const OfferedBackend* oracle =
      hello.device ? first([](const OfferedBackend& backend) { return backend.reference; }) : nullptr;
  WorkerClient& client = this->client(side, cell);
  // The oracle on the device takes the place of the trainer, so it comes first.
  const Reference& reference = files_.reference(cell.workload, precision, oracle, &client);
  prepare(side, cell);
  const OfferedBackend* offered =
      first([&](const OfferedBackend& backend) { return backend.name == cell.row.name; });
  const Contract contract = offered->precisions.at(precision).contract;
  const Verification verification =
      check_trainer(client, files_.training(cell.workload), reference, contract, precision,
                    files_.scratch() / "trained.f32", [] { interruption::throw_if_requested(); });
  if (verification.verdict != Verdict::kPass)
    throw std::runtime_error("verification: " + failure_message(verification));
  files_.verified().insert(key);
}

bool PairedRun::chose_alike(Cell& cell) {
  const auto& [base, head] = cell.taken;
  // A build from before there were choices says nothing of them.
  if (base.empty() || head.empty()) return true;
  if (base == head && base.size() == 1) return true;
  const auto all = [](const std::set<std::string>& taken) {
    return fmt::format("{}", fmt::join(taken, " or "));
  };
  compared(cell).state = CellState::kChoseOtherwise;
  compared(cell).message = other_choice(all(base), all(head));
  compared(cell).pairs.clear();
  return false;
}

// The length of a block, the same on both sides: long enough on the faster one. The first steps of a trainer are slow, so
// runs grow until one is long enough.
void PairedRun::choose_steps(Side side, Cell& cell) {
  std::int64_t steps = std::max(cell.steps, kLeastSteps);
  WorkerClient& client = this->client(side, cell);
  for (std::int64_t step = 0;;) {
    const double seconds = block_seconds(client.train(step, steps));
    step += steps;
    if (seconds >= options_.block_seconds) break;
    if (steps > kMostSteps) throw std::runtime_error("a block of so many steps takes no time");
    steps =
        static_cast<std::int64_t>(static_cast<double>(steps) *
                                  std::clamp(kMargin * options_.block_seconds / seconds, kMargin, 100.0)) +
        1;
  }
  cell.steps = steps;
  cell.warmup_steps = static_cast<std::int64_t>(std::ceil(kWarmupShare * static_cast<double>(steps)));
}

void PairedRun::take_pairs(Cell& cell, int round, int processes) {
  std::vector<BlockPair> pairs;
  std::int64_t step = 0;
  bool head_first = std::bernoulli_distribution(0.5)(random_);
  for (int i = 0; i < options_.pairs; ++i) {
    BlockPair& pair = pairs.emplace_back();
    pair.round = round;
    pair.head_first = head_first;
    pair.base_steps = pair.head_steps = cell.steps;
    pair.seconds.processes = processes;
    const bool measured = on_both(head_first, cell, "timing", [&](Side side) {
      WorkerClient& client = this->client(side, cell);
      client.train(step, cell.warmup_steps);
      const Timing timing = client.train(step + cell.warmup_steps, cell.steps);
      const double steps = static_cast<double>(cell.steps);
      const bool base = side == Side::kBase;
      (base ? pair.seconds.base_seconds : pair.seconds.head_seconds) = block_seconds(timing) / steps;
      (base ? pair.base_cpu_seconds : pair.head_cpu_seconds) = timing.cpu_seconds / steps;
    });
    if (!measured) return;
    step += cell.warmup_steps + cell.steps;
    // Pairs come as ABBA or BAAB; which of the two is drawn anew every second time.
    head_first = i % 2 == 0 ? !head_first : std::bernoulli_distribution(0.5)(random_);
  }
  if (!on_both(false, cell, "timing", [&](Side side) { check_losses(side, cell, step); })) return;
  std::vector<BlockPair>& all = compared(cell).pairs;
  all.insert(all.end(), pairs.begin(), pairs.end());
  compared(cell).rounds = round;
}

// The steps that were timed must have trained: their losses are there, finite and of the run's size.
void PairedRun::check_losses(Side side, Cell& cell, std::int64_t steps) {
  const std::int64_t first = std::max(std::int64_t{0}, steps - Trainer::kKeptLosses);
  const std::vector<float> losses =
      client(side, cell).losses(first, steps - first, files_.scratch() / "losses.f32");
  const double highest =
      kLossRange * files_.reference(cell.workload, compared(cell).precision, nullptr, nullptr).largest_loss;
  const Verification verification = judge({losses_finite_check(losses, highest)});
  if (verification.verdict != Verdict::kPass)
    throw std::runtime_error("verification: " + failure_message(verification));
}

void PairedRun::measure_cell(Cell& cell, int round, int processes) {
  progress_.status(fmt::format("round {}, {}", round, compared(cell).name()));
  start_on_both(pools_, cell.row.worker);
  if (!offered(cell)) {
    // Nothing to compare with; that it works at all is still seen.
    if (compared(cell).state == CellState::kNew)
      attempt(Side::kHead, cell, "setting up and checking", [&] { check(Side::kHead, cell); });
    return;
  }
  const bool head_first = std::bernoulli_distribution(0.5)(random_);
  if (!on_both(head_first, cell, "setting up and checking", [&](Side side) { check(side, cell); })) return;
  if (!chose_alike(cell)) return;
  const auto choose = [&](Side side) { choose_steps(side, cell); };
  if (cell.warmup_steps == 0 && !on_both(false, cell, "choosing the length of a block", choose)) return;
  take_pairs(cell, round, processes);
}

}  // namespace headroom
