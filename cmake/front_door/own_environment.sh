# What the scripts take from the user's environment. Sourced before any variable is set: everything after it starts
# from known values.
# shellcheck shell=bash

# Names in small letters are the scripts' own variables, so a variable of the user's with such a name must not be one
# of them. The proxies are the exception: pip, git and apt-get read them. Exported functions would replace commands.
take_own_names_back() {
  local name
  while read -r name; do
    case $name in
      *_proxy | *[!a-z0-9_]*) ;;
      *) unset -v "$name" ;;
    esac
  done < <(compgen -e)
  # shellcheck disable=SC2046
  unset -f $(compgen -A function)
}
take_own_names_back

# CDPATH makes cd print, GLOBIGNORE hides files, a git hook names its own repository.
unset CDPATH GLOBIGNORE GREP_OPTIONS
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_OBJECT_DIRECTORY GIT_NAMESPACE

# Python runs isolated: a package on PYTHONPATH or another standard library would be tested and measured in place of
# the chosen one. What is left says only where files are not looked for and how they are written.
dropped_from_python=''
isolate_python() {
  local name
  while read -r name; do
    case $name in
      PYTHONNOUSERSITE | PYTHONDONTWRITEBYTECODE | PYTHONPYCACHEPREFIX | PYTHONUNBUFFERED) ;;
      PYTHON*)
        unset -v "$name"
        dropped_from_python+="${dropped_from_python:+, }$name"
        ;;
    esac
  done < <(compgen -e)
}
isolate_python

# The user's cache folder for Headroom, or nothing where no variable tells it. A relative XDG_CACHE_HOME is to be
# ignored (XDG base directory specification).
case ${XDG_CACHE_HOME:-} in
  /*) cache=$XDG_CACHE_HOME/headroom ;;
  *) case ${HOME:-} in /*) cache=$HOME/.cache/headroom ;; *) cache='' ;; esac ;;
esac

# need_cache: for what is kept there.
need_cache() {
  [ -n "$cache" ] || fail "no place for the cache folder: set HOME or XDG_CACHE_HOME to an absolute path"
}

# read_values NAME...: sets each NAME from the lines NAME=VALUE of standard input, and to nothing where there is none.
# A name that comes again adds a line. Nothing is evaluated, other lines are passed over.
read_values() {
  local names=" $* " line name value
  for name in "$@"; do printf -v "$name" ''; done
  while IFS= read -r line || [ -n "$line" ]; do
    name=${line%%=*} value=${line#*=}
    [[ $line == *=* && $names == *" $name "* ]] || continue
    [ -z "${!name}" ] || value=${!name}$'\n'$value
    printf -v "$name" %s "$value"
  done
}
