// Which backends there are: the worker programs are asked, no more of them than need be.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "driver/plan/backends.h"
#include "driver/run/worker_pool.h"

namespace headroom {

/// Whether `asked`, which may hold "all", and "-NAME" for what is left out of it, is said of rows that `table` lacks.
bool lacks_asked(const std::vector<BackendRow>& table, const std::vector<std::string>& asked);

/// What `rows` gives when `greet` has asked those of the programs that may offer what was asked for: those that start
/// quickly, and only where a name is still unknown, or is "all", those that import a framework.
std::vector<BackendRow> ask_for_backends(const std::vector<WorkerProgram>& programs,
                                         const std::vector<std::string>& asked,
                                         const std::function<void(const std::vector<std::string>&)>& greet,
                                         const std::function<std::vector<BackendRow>()>& rows);

/// The same of one pool. Where workers did not say what they offer (not built, broken, of another protocol), a name that
/// nobody else offers is one more row, unless it is nearly a known one; and "all" has a row for each such program, under
/// its name. So nothing that was asked for is left out without a word.
std::vector<BackendRow> find_backends(const std::vector<WorkerProgram>& programs, WorkerPool& pool,
                                      const std::vector<std::string>& asked);

/// Greets those that start quickly: without Python's frameworks.
void greet_quick_workers(const std::vector<WorkerProgram>& programs, WorkerPool& pool);

/// The first reference that runs on the device; null if there is none.
const BackendRow* reference_on_device(const std::vector<BackendRow>& table, const WorkerPool& pool);

}  // namespace headroom
