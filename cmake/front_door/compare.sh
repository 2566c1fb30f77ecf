# ./headroom compare: makes build folders of git revisions, then becomes the driver, which measures.
#
# A revision is checked out into a worktree of its own below the cache folder and built there with nothing but the worker
# programs that the suite needs. The worktree goes whatever happens; the programs stay in the cache, named by the
# revision and what they were built with, so that a base is built once.
# shellcheck shell=bash

compare() {
  local base='' head='' rest=() measured='' label=()
  if has_help "$@"; then
    driver_help compare
    return
  fi
  split_build_option "$@"
  set -- "${rest[@]}"
  rest=()
  while [ $# -gt 0 ]; do
    case $1 in
      --)
        rest+=("$@")
        break
        ;;
      --base | --head)
        [ $# -ge 2 ] || fail "compare: $1 needs a git revision or a build folder"
        if [ "$1" = --base ]; then base=$2; else head=$2; fi
        shift
        ;;
      --base=*) base=${1#--base=} ;;
      --head=*) head=${1#--head=} ;;
      --self-check)
        measured=yes
        rest+=("$1")
        ;;
      --) # what follows is no option
        rest+=("$@")
        break
        ;;
      *) rest+=("$1") ;;
    esac
    shift
  done
  use_driver
  [ -z "$base" ] || measured=yes
  if [ -n "$measured" ]; then
    wanted_targets ${base:+--base "$base"} ${head:+--head "$head"} "${rest[@]}"
    known --base "$base"
    known --head "$head" # before base is built, which takes minutes
    if [ -n "$base" ]; then
      build_of --base "$base"
      label+=(--base "$folder" --base-label "$folder_label")
    fi
    build_of --head "$head"
    label+=(--head "$folder" --head-label "$folder_label")
  elif [ -n "$head" ]; then
    label+=(--head "$head") # the driver says what is wrong with it
  fi
  export_for_programs
  exec "$build/bin/headroom" compare "${label[@]}" "${rest[@]}"
}

# The driver that compares: this checkout's, or with --build that of the folder as it is.
use_driver() {
  if [ -z "$given_build" ]; then
    build_targets driver
    return
  fi
  [ -x "$given_build/bin/headroom" ] ||
    fail "--build $given_build: there is no bin/headroom in it; expected a build folder of ./headroom"
  build=$(cd -- "$given_build" && pwd)
  python=${HEADROOM_PYTHON:-python3} torch_library_path=''
}

# Which programs a build must have, in `targets`. The driver knows the suites; it also checks the options before
# anything is built.
wanted_targets() {
  local names
  names=$(HEADROOM_ROOT=$root "$build/bin/headroom" compare --print-targets "$@") || exit $?
  readarray -t targets <<<"$names"
}

# known --base|--head WHAT: fails unless WHAT is nothing, a build folder or a git revision.
known() {
  [ -n "$2" ] && [ ! -d "$2/bin" ] || return 0
  ! git_refuses || fail "$1 $2: not a build folder, and $git_problem"
  ! git -C "$root" rev-parse --verify --quiet "$2^{commit}" >/dev/null || return 0
  [ "$(git -C "$root" rev-parse --is-shallow-repository 2>/dev/null)" != true ] ||
    fail "$1 $2: not in this clone, which is shallow; get its history with: git fetch --unshallow"
  fail "$1 $2: neither a build folder nor a git revision of $root"
}

# build_of --base|--head WHAT, which is known: sets folder and folder_label. WHAT: a build folder, a git revision, or
# nothing for this checkout as it is.
build_of() {
  local option=$1 what=$2 sha
  if [ -z "$what" ] && [ -n "$given_build" ]; then
    folder=$build folder_label=$given_build
  elif [ -z "$what" ]; then
    folder=$build/compare folder_label="this checkout"
    choose_compiler
    mkdir -p "$folder"
    with_lock "$folder/lock" build_workers "$root" "$folder" "$folder/build.log" ||
      fail "compare: this checkout does not build"
  elif [ -d "$what/bin" ]; then
    folder=$what folder_label=$what
  else
    sha=$(git -C "$root" rev-parse --verify --quiet "$what^{commit}")
    folder_label="$what (${sha:0:9})"
    [ -z "$given_build" ] || fail "$option $what: with --build nothing is built; name a build folder"
    choose_compiler
    need_cache
    folder=$cache/builds/$sha-$(built_with | sha256sum | cut -c 1-12)
    [ -d "$folder/bin" ] || with_lock "$cache/builds/lock" build_revision "$sha" "$folder" ||
      fail "$option $what: commit ${sha:0:9} does not build"
  fi
}

needs_cuda() { [[ " ${targets[*]} " == *" headroom-cu"* ]]; }

# What programs depend on besides their sources.
built_with() {
  printf '%s|' "${targets[@]}" "$(c++ --version | head -n 1)" "$cmake"
  ! needs_cuda || "$toolkit/bin/nvcc" --version
}

# The CUDA toolkit in `toolkit`: the one of an earlier set-up, one that is there, or PyPI's. PyTorch is not needed.
choose_compiler() {
  needs_cuda || return 0
  [ -z "$toolkit" ] || [ ! -x "$toolkit/bin/nvcc" ] || return 0
  torch_folder='' torch_cuda=13
  choose_toolkit 13
  [ -z "$toolkit" ] || return 0
  local kept=$python
  make_environment "$(cat "$requirements/toolkit.txt")" '' 4 "the CUDA toolkit"
  [ "$environment_made" = yes ] || exit 2
  toolkit=$("$python" -c 'import site; print(site.getsitepackages()[0])')/nvidia/cu13
  python=$kept
}

# build_workers SOURCE FOLDER LOG: the targets of a source tree, without PyTorch and tests.
build_workers() {
  local source=$1 folder=$2 log=$3 arguments=() cuda=OFF
  ! needs_cuda || cuda=ON
  arguments=(-S "$source" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DHEADROOM_TORCH=OFF -DHEADROOM_TESTS=OFF
    "-DHEADROOM_CUDA=$cuda")
  [ -z "$ninja" ] || arguments+=(-G Ninja "-DCMAKE_MAKE_PROGRAM=$ninja")
  [ "$cuda" = OFF ] || arguments+=("-DCMAKE_CUDA_COMPILER=$toolkit/bin/nvcc" "-DCUDAToolkit_ROOT=$toolkit")
  : >"$log"
  step "configuring ${targets[*]}" "$log" "$cmake" "${arguments[@]}" || return 1
  step "building ${targets[*]}" "$log" "$cmake" --build "$folder" -j "$(jobs_at_once)" --target "${targets[@]}"
}

# build_revision SHA FOLDER: FOLDER/bin gets the programs. The worktree goes whatever happens, interruption included.
build_revision() {
  local status=0
  [ ! -d "$2/bin" ] || return 0 # another one built it while this one waited
  work=$cache/builds/work-$$
  rm -rf "$cache"/builds/work-* # of one that was killed: this one has the lock
  trap remove_worktree EXIT
  build_in_worktree "$1" "$2" "$2.log" || status=1
  remove_worktree
  trap - EXIT
  return "$status"
}

remove_worktree() {
  git -C "$root" worktree remove --force "$work/source" 2>/dev/null || true
  rm -rf "$work"
  git -C "$root" worktree prune
}

# build_in_worktree SHA FOLDER LOG
build_in_worktree() {
  local sha=$1 wanted=$2 log=$3
  mkdir -p "$work" || return 1
  git -C "$root" worktree add --quiet --detach "$work/source" "$sha" >"$log" 2>&1 || {
    say "commit ${sha:0:9} cannot be checked out: $(tail -n 1 "$log")"
    return 1
  }
  say "builds commit ${sha:0:9} into $wanted"
  build_workers "$work/source" "$work/build" "$log" || return 1
  mkdir -p "$work/finished" && mv "$work/build/bin" "$work/finished/bin" && mv "$work/finished" "$wanted"
}
