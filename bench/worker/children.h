// The processes that this program has started, and those that they have left behind.
//
// A worker can start a process that leaves its group and outlives it: it would hold the device while others are measured,
// and go on after the run. So this program becomes the parent of what its descendants leave, and ends it.
#pragma once

#include <sys/types.h>

#include <functional>

namespace headroom::children {

/// From now on a process whose parent has ended becomes a child of this program, and end_orphans() ends it. Children that
/// the program has already, as after `exec` in a shell, are left alone.
void adopt_orphans();

/// Calls `fork_or_spawn`, which returns a new process's id (0: this is the child; negative: none was started), so that
/// end_orphans() knows it from its first moment. Every process that the program starts comes from here.
pid_t start(const std::function<pid_t()>& fork_or_spawn);

/// The process was waited for; another may get its id.
void forget(pid_t pid);

/// Kills and reaps what was left behind, and what that leaves behind in turn, for two seconds at most.
void end_orphans();

}  // namespace headroom::children
