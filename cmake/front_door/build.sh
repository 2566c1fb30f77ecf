# Configures and builds in build/; says nothing when nothing changed.
# shellcheck shell=bash

# build_targets driver|programs|everything
build_targets() {
  case $1 in
    driver) set_up driver ;;
    *) set_up all ;;
  esac
  with_lock "$build/lock" configure_and_build "$1"
}

target_of() {
  case $1 in driver) echo headroom ;; programs) echo programs ;; everything) echo all ;; esac
}

# For messages. What the driver takes alone is a surprise to who asked for a list.
name_of_target() {
  case $1 in
    driver) [ -e "$build/bin/headroom" ] && echo "the driver" || echo "the driver, once (takes minutes)" ;;
    programs) echo "the programs" ;;
    everything) echo "programs and tests" ;;
  esac
}

configuration() {
  local generator=Ninja
  [ -n "$ninja" ] || generator="Unix Makefiles"
  printf '%s\n' -S "$root" -B "$build" -G "$generator" -DCMAKE_BUILD_TYPE=Release
  [ -z "$ninja" ] || printf '%s\n' "-DCMAKE_MAKE_PROGRAM=$ninja"
  if [ "$level" = driver ]; then
    printf '%s\n' -DHEADROOM_CUDA=OFF -DHEADROOM_TORCH=OFF -DHEADROOM_TESTS=OFF
  else
    # TORCH_CUDA_ARCH_LIST only keeps PyTorch's CMake files from looking for a GPU; our kernels name their own targets.
    printf '%s\n' -DHEADROOM_CUDA=ON -DHEADROOM_TORCH=ON -DHEADROOM_TESTS=ON \
      "-DCMAKE_PREFIX_PATH=$torch_folder/share/cmake" "-DPython_EXECUTABLE=$python" \
      "-DCMAKE_CUDA_COMPILER=$toolkit/bin/nvcc" "-DCUDAToolkit_ROOT=$toolkit" "-DCUDA_TOOLKIT_ROOT_DIR=$toolkit" \
      "-DTORCH_CUDA_ARCH_LIST=8.0+PTX"
  fi
}

configured() { [ -e "$build/configuration" ] && [ "$(configuration)" = "$(cat "$build/configuration")" ]; }

# What Ninja and Make print while they look for something to do. A dry run cannot be asked instead: it stops where the
# build's lists of files are checked (CONFIGURE_DEPENDS).
nothing_built='^(\[.*\] (Re-checking globbed directories.*|Built target .*)|Consolidate compiler generated .*|ninja: .*)?$'

configure_and_build() {
  local log=$build/build.log arguments
  : >"$log"
  if ! configured; then
    # A cache of another compiler, generator or toolkit does not take new ones.
    rm -rf "$build/configuration" "$build/CMakeCache.txt" "$build/CMakeFiles"
    readarray -t arguments < <(configuration)
    step "configuring" "$log" "$cmake" "${arguments[@]}" || exit 1
    configuration >"$build/configuration"
  fi
  idle=$nothing_built step "building $(name_of_target "$1")" "$log" \
    "$cmake" --build "$build" --target "$(target_of "$1")" -j "$(jobs_at_once)" || exit 1
  [ "$level" = driver ] || write_build_record "$1"
}

# The compiler takes up to 2 GB for a file that includes PyTorch.
jobs_at_once() {
  awk -v cores="$(nproc)" '/^MemAvailable/ { jobs = int($2 / 2e6); print jobs < 1 ? 1 : jobs < cores ? jobs : cores }' \
    /proc/meminfo
}

# What a moved build folder must tell about itself. In bin/, so that this folder alone can be moved. The digest says of
# which kernels the tests are, so a build without tests has none, unless tests of these very kernels are there.
write_build_record() {
  local sha='' dirty='' digest
  digest=$("$python" "$front_door/verification.py" digest "$root")
  [ "$1" = everything ] || grep -qsx "build_kernel_digest=$digest" "$build/bin/build-record" || digest=''
  if sha=$(git -C "$root" rev-parse HEAD 2>/dev/null); then
    if git -C "$root" diff --quiet HEAD 2>/dev/null; then dirty=no; else dirty=yes; fi
  elif git_refuses; then
    say "the build's record names no commit: $git_problem"
  fi
  printf '%s\n' "build_torch_version=$torch_version" "build_kernel_digest=$digest" "build_git_sha=$sha" \
    "build_git_dirty=$dirty" >"$build/bin/build-record.new"
  mv "$build/bin/build-record.new" "$build/bin/build-record"
}

# git_refuses: there is a checkout, but git does not read it (another user's: safe.directory); why, in git_problem.
git_refuses() {
  [ -e "$root/.git" ] || return 1
  git_problem=$(git -C "$root" rev-parse --git-dir 2>&1 >/dev/null) && return 1
  git_problem="git does not read $root: ${git_problem%%$'\n'*}"
}

# use_build FOLDER: a build made elsewhere, as it is.
use_build() {
  [ -x "$1/bin/headroom" ] || fail "--build $1: there is no bin/headroom in it; expected a build folder of ./headroom"
  build=$(cd -- "$1" && pwd)
  read_build_record
  use_existing_python
  [ "$build_torch_version" = "$torch_version" ] ||
    say "--build $1 was made with PyTorch ${build_torch_version:-(not recorded)}, but $python has $torch_version:" \
      "the libtorch rows may fail"
}

read_build_record() {
  local record=$build/bin/build-record
  [ -f "$record" ] || record=/dev/null
  read_values build_torch_version build_kernel_digest build_git_sha build_git_dirty <"$record"
}

export_for_programs() {
  export HEADROOM_COMMAND=$called
  export HEADROOM_ROOT=$root HEADROOM_BUILD=$build HEADROOM_PYTHON=$python
  export HEADROOM_TORCH_LIBRARY_PATH=$torch_library_path HEADROOM_JAX_PYTHON=${jax_python:-}
  # What find_compiler() (cuda_impl/jit) looks for by itself where nothing was chosen.
  [ -z "${toolkit:-}" ] || export HEADROOM_NVCC=$toolkit/bin/nvcc
  [ -z "${nvrtc:-}" ] || export HEADROOM_NVRTC=$nvrtc
  export HEADROOM_BUILD_GIT_SHA=${build_git_sha:-} HEADROOM_BUILD_GIT_DIRTY=${build_git_dirty:-}
}
