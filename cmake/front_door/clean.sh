# Removes what set-up made: build/ and the environments under the cache folder, which other clones share; and what
# killed runs left in the folders for temporary files.
# shellcheck shell=bash

clean() {
  local agreed='' paths=() leftovers=() path answer
  case "$*" in
    '') ;;
    --yes) agreed=yes ;;
    --help | -h)
      echo "usage: $called clean [--yes]   removes build/, ${cache:-the cache folder} and what killed runs left in" \
        "/dev/shm and ${TMPDIR:-/tmp}, after saying how large they are"
      return
      ;;
    *) fail "clean: unknown option '$1'; known: --yes" ;;
  esac
  for path in "$root/build" "$cache"; do [ -z "$path" ] || [ ! -e "$path" ] || paths+=("$path"); done
  find_leftovers
  if [ $((${#paths[@]} + ${#leftovers[@]})) -eq 0 ]; then
    say "nothing to remove: neither $root/build nor ${cache:-a cache folder} exists, and no killed run left anything"
    return
  fi
  say "would remove (results stay; other clones use the same environments):"
  du -sh -- "${paths[@]}" "${leftovers[@]}" >&2
  if [ -z "$agreed" ]; then
    [ -t 0 ] || fail "clean: nobody to ask; --yes removes without asking"
    read -r -p "remove? [y/N] " answer
    [ "$answer" = y ] || [ "$answer" = yes ] || fail "clean: nothing was removed"
  fi
  [ ${#paths[@]} -eq 0 ] || rm -rf -- "${paths[@]}"
  for path in "${leftovers[@]}"; do
    ! is_leftover "$path" || flock -n "$path/owner.lock" rm -rf -- "$path"
  done
  say "removed"
}

# Sets leftovers: folders for temporary files whose run is gone.
find_leftovers() {
  local path
  for path in /dev/shm/headroom-* "${TMPDIR:-/tmp}"/headroom-*; do
    if is_leftover "$path" && [[ " ${leftovers[*]} " != *" $path "* ]]; then leftovers+=("$path"); fi
  done
}

# A folder of this user's (no link) whose owner.lock no process holds: a run holds its own while it lasts.
is_leftover() {
  [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || return 1
  [ -f "$1/owner.lock" ] && [ ! -L "$1/owner.lock" ] && flock -n "$1/owner.lock" true
}
