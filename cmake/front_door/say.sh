# Messages, and long steps that show progress. Everything here goes to standard error: standard output belongs to results.
# shellcheck shell=bash

say() { printf 'headroom: %s\n' "$*" >&2; }

# fail MESSAGE: a user can put it right, so exit code 2.
fail() {
  say "$@"
  exit 2
}

# Whether a line may be written over.
on_terminal() { [ -t 2 ] && [ "${TERM:-dumb}" != dumb ] && [ -z "${NO_COLOR:-}" ]; }

# show_line TEXT: in place of the line before, as far as the terminal is wide now. A line that filled the last column
# would already be two on some terminals.
show_line() {
  local width
  width=$(stty size <&2 2>/dev/null | cut -d ' ' -f 2) || true
  [ "${width:-0}" -gt 0 ] || width=${COLUMNS:-}
  case $width in 0 | '' | *[!0-9]*) width=80 ;; esac
  printf '\r\033[K%s' "${1:0:width-1}" >&2
}

# step TITLE LOG COMMAND...: runs a program with its output appended to LOG and says how far it is; when it fails, shows
# the log's last lines and returns its status. `idle=REGEX step ...`: nothing is said while every line of LOG matches.
step() {
  local title=$1 log=$2 started=$SECONDS status=0 began='' idle=${idle:-}
  shift 2
  attend "$@" >>"$log" 2>&1 </dev/null
  show_progress
  attended_status || status=$?
  if [ "$status" -ne 0 ]; then
    say "$title: failed; the last lines of $log:"
    tail -n 20 "$log" >&2
    return "$status"
  fi
  if [ -n "$began" ] || has_begun; then say "$title: done in $((SECONDS - started)) s"; fi
}

# The variables of step: on a terminal one line that is written over, else a line every half minute.
show_progress() {
  local announced=0 elapsed pause=0.05 # a command with nothing to do ends soon
  while attended_runs; do
    elapsed=$((SECONDS - started))
    if [ -z "$began" ] && has_begun; then
      began=yes
      on_terminal || say "$title (log: $log)"
    fi
    if [ -n "$began" ] && on_terminal; then
      show_line "$title  $elapsed s  $(tail -n 1 "$log" | tr -d '\000-\037')"
    elif [ -n "$began" ] && [ $((elapsed / 30)) -gt "$announced" ]; then
      announced=$((elapsed / 30))
      say "$title: $elapsed s, $(tail -n 1 "$log" | tr -d '\r' | cut -c 1-80)"
    fi
    sleep "$pause"
    [ "$elapsed" -eq 0 ] || pause=0.5
  done
  [ -z "$began" ] || ! on_terminal || printf '\r\033[K' >&2
}

has_begun() { [ -z "$idle" ] || grep -q -v -E "$idle" "$log"; }

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
  mkdir -p "$(dirname "$file")" 2>/dev/null || fail "$(dirname "$file") cannot be written"
  { exec 9>"$file"; } 2>/dev/null || fail "$file cannot be written"
  flock -n 9 || {
    say "waiting for another ./headroom to finish its set-up or build ($file)"
    flock 9
  }
  "$@" || status=$?
  exec 9>&-
  return "$status"
}
