#include "driver/run/offers.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/names.h"
#include "core/workload.h"
#include "driver/plan/suite.h"

namespace headroom {
namespace {

// So few letters are a slip of the hand; no two backends are as close.
constexpr std::size_t kTypo = 2;

// Without the '-' of what is left out.
std::string name_of(const std::string& word) { return word.starts_with('-') ? word.substr(1) : word; }

std::vector<std::string> names_of(const std::vector<WorkerProgram>& programs, bool slow) {
  std::vector<std::string> names;
  for (const WorkerProgram& program : programs)
    if (program.starts_slowly == slow) names.push_back(program.name);
  return names;
}

bool is_typo(const std::string& name, const std::vector<BackendRow>& table) {
  return std::any_of(table.begin(), table.end(),
                     [&](const BackendRow& row) { return edit_distance(name, row.name) <= kTypo; });
}

// In the place of what the silent ones offer.
void add_rows_of_silent(const std::vector<std::string>& asked, const WorkerPool& pool,
                        std::vector<BackendRow>& table) {
  const std::vector<BackendRow> known = table;
  const std::vector<const Greeting*> silent = pool.silent();
  if (silent.empty()) return;
  for (const std::string& word : asked) {
    const std::string name = name_of(word);
    if (word == kAllBackends || find_row(table, name) != nullptr || is_typo(name, known)) continue;
    table.push_back(
        {.name = name, .worker = "", .description = "of a worker that did not say what it offers"});
  }
  if (std::find(asked.begin(), asked.end(), kAllBackends) == asked.end()) return;
  for (const Greeting* greeting : silent) {
    if (find_row(table, greeting->worker) != nullptr) continue;
    table.push_back({.name = greeting->worker,
                     .worker = greeting->worker,
                     .description = fmt::format("whatever worker '{}' offers", greeting->worker),
                     .in_all = true});
  }
}

}  // namespace

bool lacks_asked(const std::vector<BackendRow>& table, const std::vector<std::string>& asked) {
  return std::any_of(asked.begin(), asked.end(), [&](const std::string& word) {
    return word == kAllBackends || find_row(table, name_of(word)) == nullptr;
  });
}

std::vector<BackendRow> ask_for_backends(const std::vector<WorkerProgram>& programs,
                                         const std::vector<std::string>& asked,
                                         const std::function<void(const std::vector<std::string>&)>& greet,
                                         const std::function<std::vector<BackendRow>()>& rows) {
  std::vector<BackendRow> table = rows();
  for (const bool slow : {false, true}) {
    if (!lacks_asked(table, asked)) break;
    greet(names_of(programs, slow));
    table = rows();
  }
  return table;
}

std::vector<BackendRow> find_backends(const std::vector<WorkerProgram>& programs, WorkerPool& pool,
                                      const std::vector<std::string>& asked) {
  std::vector<BackendRow> table = ask_for_backends(
      programs, asked, [&](const std::vector<std::string>& names) { pool.greet(names); },
      [&] { return pool.rows(); });
  add_rows_of_silent(asked, pool, table);
  return table;
}

void greet_quick_workers(const std::vector<WorkerProgram>& programs, WorkerPool& pool) {
  pool.greet(names_of(programs, false));
}

const BackendRow* reference_on_device(const std::vector<BackendRow>& table, const WorkerPool& pool) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const BackendRow& row) {
    return row.reference && row.on_device &&
           pool.availability(row, Precision::kFp32).state == Availability::State::kAvailable;
  });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace headroom
