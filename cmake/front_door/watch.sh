# The watcher of attended.sh, and the end of a group, which both need. Reads the group's number (and a word when it is
# to go on to its end), then a line when the command has ended by itself.
# shellcheck shell=bash

# end_group GROUP: asks its processes to end, and after 5 s ends them.
end_group() {
  local tries
  # Also by its leader's number: a group begins to exist a moment after its leader.
  kill -TERM -- "-$1" 2>/dev/null || kill -TERM "$1" 2>/dev/null || return 0
  for ((tries = 0; tries < 100; tries++)); do
    kill -0 -- "-$1" 2>/dev/null || return 0
    sleep 0.05
  done
  kill -KILL -- "-$1" 2>/dev/null || true
}

# wait_for PROCESS: until it has ended, or waits for a parent that does not ask.
wait_for() {
  while [ -e "/proc/$1" ] && ! grep -qs '^State:.*Z' "/proc/$1/status"; do sleep 0.2; done
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  read -r group let_finish || exit 0
  read -r _ && exit
  if [ -z "$let_finish" ]; then end_group "$group"; else wait_for "$group"; fi
fi
