# Removes what set-up made: build/ and the environments under the cache folder, which other clones share.
# shellcheck shell=bash

clean() {
  local agreed='' paths=() path answer
  case "$*" in
    '') ;;
    --yes) agreed=yes ;;
    --help | -h)
      echo "usage: ./headroom clean [--yes]   removes build/ and $cache, after saying how large they are"
      return
      ;;
    *) fail "clean: unknown option '$1'; known: --yes" ;;
  esac
  for path in "$root/build" "$cache"; do [ ! -e "$path" ] || paths+=("$path"); done
  if [ ${#paths[@]} -eq 0 ]; then
    say "nothing to remove: neither $root/build nor $cache exists"
    return
  fi
  say "would remove (results stay; other clones use the same environments):"
  du -sh "${paths[@]}" >&2
  if [ -z "$agreed" ]; then
    [ -t 0 ] || fail "clean: nobody to ask; --yes removes without asking"
    read -r -p "remove? [y/N] " answer
    [ "$answer" = y ] || [ "$answer" = yes ] || fail "clean: nothing was removed"
  fi
  rm -rf "${paths[@]}"
  say "removed"
}
