# Commands that end with the front door, however it ends.
#
# A command runs in a process group of its own. A watcher beside it reads a pipe whose other end only the front door
# holds: when that is closed and nothing was said before, the front door is gone (kill -9 included) and the watcher
# ends the group. It keeps the lock (file descriptor 9) until then. It leads a session of its own, because whoever
# ends the front door may end its whole group.
# shellcheck shell=bash

# shellcheck source=cmake/front_door/watch.sh
. "$front_door/watch.sh"

attended_group='' # of the command that runs now

# attend COMMAND...: starts a program (no function) in the background, with the output and input that attend has.
# `let_finish=yes attend ...`: it is not ended, but keeps the lock to its end.
attend() {
  # Before the start, so that no signal falls between.
  trap end_attended HUP INT QUIT PIPE TERM
  exec {attended_line}> >(exec setsid bash "$front_door/watch.sh" >/dev/null 2>&1)
  attended_watcher=$!
  set -m # gives the command its group
  {
    echo "$BASHPID ${let_finish:-}" >&"$attended_line"
    exec {attended_line}>&- 9>&-
    exec "$@"
  } &
  attended_group=$!
  set +m
}

# attended_status: waits until the command has ended, and has its exit status.
attended_status() {
  local status=0
  wait "$attended_group" || status=$?
  dismiss_watcher
  trap - HUP INT QUIT PIPE TERM
  return "$status"
}

attended_runs() { kill -0 "$attended_group" 2>/dev/null; }

dismiss_watcher() {
  attended_group=''
  echo done >&"$attended_line"
  exec {attended_line}>&-
  wait "$attended_watcher" 2>/dev/null || true # it lets go of the lock
}

end_attended() {
  trap '' HUP INT QUIT PIPE TERM
  if [ -n "${let_finish:-}" ]; then
    say "interrupted; what was begun goes on to its end" || true
    exit 130
  fi
  if [ -n "$attended_group" ]; then
    end_group "$attended_group"
    wait "$attended_group" 2>/dev/null || true
    dismiss_watcher
  fi
  say "interrupted" || true # nobody may read it
  exit 130
}
