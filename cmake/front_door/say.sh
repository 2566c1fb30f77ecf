# Messages, and long steps that show progress. Everything here goes to standard error: standard output belongs to results.
# shellcheck shell=bash

say() { printf 'headroom: %s\n' "$*" >&2; }

# fail MESSAGE: a user can put it right, so exit code 2.
fail() {
  say "$@"
  exit 2
}

on_terminal() { [ -t 2 ] && [ "${TERM:-dumb}" != dumb ]; }

# step TITLE LOG COMMAND...: runs COMMAND with its output appended to LOG and says how far it is; when it fails, shows
# the log's last lines and returns its status.
step() {
  local title=$1 log=$2 started=$SECONDS status=0
  shift 2
  "$@" >>"$log" 2>&1 </dev/null 9>&- &
  local child=$!
  # A background child of a script ignores Ctrl-C, so it is passed on by hand.
  trap 'kill -TERM '"$child"' 2>/dev/null; wait '"$child"' 2>/dev/null || true; say "interrupted"; exit 130' INT TERM
  show_progress "$title" "$log" "$child" "$started"
  wait "$child" || status=$?
  trap - INT TERM
  if [ "$status" -ne 0 ]; then
    say "$title: failed; the last lines of $log:"
    tail -n 20 "$log" >&2
    return "$status"
  fi
  say "$title: done in $((SECONDS - started)) s"
}

# show_progress TITLE LOG CHILD STARTED: on a terminal one line that is written over, else a line every half minute.
show_progress() {
  local title=$1 log=$2 child=$3 started=$4 announced=0 elapsed
  on_terminal || say "$title (log: $log)"
  while kill -0 "$child" 2>/dev/null; do
    elapsed=$((SECONDS - started))
    if on_terminal; then
      printf '\r\033[K%s  %d s  %s' "$title" "$elapsed" "$(tail -n 1 "$log" | tr -d '\r' | cut -c 1-60)" >&2
    elif [ $((elapsed / 30)) -gt "$announced" ]; then
      announced=$((elapsed / 30))
      say "$title: $elapsed s, $(tail -n 1 "$log" | tr -d '\r' | cut -c 1-80)"
    fi
    sleep 0.5
  done
  ! on_terminal || printf '\r\033[K' >&2
}

# need_space FOLDER GIGABYTES WHAT: there must be that much free where FOLDER is or will be.
need_space() {
  local folder=$1 available
  while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
  available=$(($(df -Pk "$folder" | awk 'NR == 2 { print $4 }') / 1000000))
  [ "$available" -ge "$2" ] ||
    fail "$3 needs $2 GB of free disk in $1, which has $available GB (XDG_CACHE_HOME names another place)"
}

# with_lock FILE COMMAND...: one at a time; says so when it has to wait. File descriptor 9 is the lock.
with_lock() {
  local file=$1 status=0
  shift
  mkdir -p "$(dirname "$file")" || fail "$(dirname "$file") cannot be written"
  exec 9>"$file" || fail "$file cannot be written"
  flock -n 9 || {
    say "waiting for another ./headroom to finish its set-up or build ($file)"
    flock 9
  }
  "$@" || status=$?
  exec 9>&-
  return "$status"
}
