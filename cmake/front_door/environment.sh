# Chooses the Python, PyTorch and CUDA toolkit to build and run with, installs what is missing from PyPI into an
# environment under the user's cache folder, and remembers the choice in build/set-up.
#
# An environment is named by a digest of everything that went into it, so that another clone finds it; it counts as
# finished when its last file, `complete`, is there.
# shellcheck shell=bash

requirements=$root/cmake/requirements
choice=(level python python_asked jax_python jax_python_asked nvrtc nvrtc_asked inputs toolkit torch_folder torch_version torch_library_path
  cmake ninja clang_format ruff)

# What a choice depends on; a saved choice is used while this stays the same.
set_up_inputs() {
  local asked=${HEADROOM_PYTHON:-} jax_asked=${HEADROOM_JAX_PYTHON:-} library_asked=${HEADROOM_NVRTC:-}
  # Inside a run our own choices are in the variables.
  [ "$asked" != "${python:-}" ] || asked=${python_asked:-}
  [ "$jax_asked" != "${jax_python:-}" ] || jax_asked=${jax_python_asked:-}
  [ "$library_asked" != "${nvrtc:-}" ] || library_asked=${nvrtc_asked:-}
  printf '%s|' "$asked" "$jax_asked" "$library_asked" "$(gpu_devices)" "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}" "${CUDA_HOME:-}" "$cache" \
    "$(command -v python3)" "$(command -v nvcc)" "$(cat "$requirements"/*.txt | sha256sum)"
}

# set_up driver|all: sets python, jax_python, nvrtc, cmake, ninja, clang_format, ruff, torch_version, torch_folder, torch_library_path
# and toolkit, from the saved choice when it still holds. `driver` needs no PyTorch, no JAX and no CUDA.
set_up() {
  local needed=$1 saved=$build/set-up
  if [ -f "$saved" ]; then read_values "${choice[@]}" <"$saved"; else read_values "${choice[@]}" </dev/null; fi
  if [ "$inputs" = "$(set_up_inputs)" ] && [ -x "$python" ] && [ -x "$cmake" ] && [[ -z $jax_python || -x $jax_python ]] &&
    [[ -z $nvrtc || -f $nvrtc ]] &&
    { [ "$level" = all ] || [ "$needed" = driver ]; }; then
    return
  fi
  read_values "${choice[@]}" </dev/null
  need_packages build
  if [ "$needed" = all ]; then choose_everything; else choose_build_tools; fi
  level=$needed
  python_asked=${HEADROOM_PYTHON:-} jax_python_asked=${HEADROOM_JAX_PYTHON:-} nvrtc_asked=${HEADROOM_NVRTC:-}
  inputs=$(set_up_inputs)
  mkdir -p "$build" 2>/dev/null && { write_choice >"$saved.new"; } 2>/dev/null || fail "$build cannot be written"
  mv "$saved.new" "$saved"
}

# As read_values reads it: a value of several lines is several lines with its name.
write_choice() {
  local name
  for name in "${choice[@]}"; do printf '%s\n' "${!name}" | sed "s/^/$name=/"; done
}

# The Python to begin with: base_python, and in base_why where it was found.
choose_base_python() {
  [ -z "$dropped_from_python" ] || say "Python runs isolated, without $dropped_from_python"
  if [ -n "${HEADROOM_PYTHON:-}" ]; then
    base_python=$HEADROOM_PYTHON base_why="HEADROOM_PYTHON"
  elif [ -n "${VIRTUAL_ENV:-}" ]; then
    base_python=$VIRTUAL_ENV/bin/python base_why="the active virtual environment"
  elif [ -n "${CONDA_PREFIX:-}" ] && [ -x "$CONDA_PREFIX/bin/python" ]; then
    base_python=$CONDA_PREFIX/bin/python base_why="the active conda environment"
  else
    base_python=$(command -v python3) || fail "python3 is not there; install it (Debian, Ubuntu: python3 python3-venv)"
    base_why="python3 on PATH"
  fi
  inspect_python "$base_python"
  [ -n "$base_is_new_enough" ] ||
    fail "$base_python ($base_why) is Python $base_version; 3.10 or newer is needed (HEADROOM_PYTHON names another)"
}

inspect_python() {
  local facts
  facts=$("$1" "$front_door/inspect_python.py" "$requirements/tools.txt" </dev/null) || fail "$1 does not run as a Python"
  read_values base_executable base_version base_is_new_enough base_draws_reports base_sites missing_tools \
    torch_folder torch_version torch_cuda torch_problem torch_library_path base_jax_version base_jax_cuda <<<"$facts"
  # Another program may end well too.
  [[ $base_version =~ ^[0-9]+(\.[0-9]+)+$ && -x $base_executable ]] || fail "$1 does not run as a Python"
}

# A CUDA toolkit of at least 12.8 and of the major version $1, in `toolkit`; empty when there is none.
choose_toolkit() {
  local major=$1 folder version where
  toolkit=''
  while IFS='|' read -r where folder; do
    [ -x "$folder/bin/nvcc" ] || continue
    version=$("$folder/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    if [ "${version%%.*}" != "$major" ] || [ "${version%%.*}" -lt 13 ] && [ "${version#*.}" -lt 8 ]; then
      say "CUDA toolkit $version in $folder ($where): not used, 12.8 or newer of CUDA $major is needed"
    elif [ ! -e "$folder/include/cublas_v2.h" ] || [ ! -d "$folder/lib64" ]; then
      say "CUDA toolkit $version in $folder ($where): not used, it lacks the libraries that PyTorch's headers need"
    else
      toolkit=$folder
      say "CUDA toolkit $version: $folder ($where)"
      return
    fi
  done < <(toolkit_candidates)
}

toolkit_candidates() {
  local nvcc beside
  [ -z "${CUDA_HOME:-}" ] || printf 'CUDA_HOME|%s\n' "$CUDA_HOME"
  nvcc=$(command -v nvcc) && printf 'nvcc on PATH|%s\n' "$(dirname "$(dirname "$(readlink -f "$nvcc")")")"
  # PyPI's, as our own set-up completes it (complete_toolkit).
  beside=$(dirname "$torch_folder")/nvidia/cu${torch_cuda%%.*}
  [ ! -d "$beside/lib64" ] || printf 'beside PyTorch|%s\n' "$beside"
}

# PyTorch, toolkit and tools: those that are there, the rest from PyPI.
choose_everything() {
  choose_base_python
  find_jax
  local why=$torch_problem
  if [ -z "$why" ]; then
    choose_toolkit "${torch_cuda%%.*}"
    [ -n "$toolkit" ] || [ "${torch_cuda%%.*}" = 13 ] || why="no CUDA ${torch_cuda%%.*} toolkit for its PyTorch (CUDA_HOME)"
  fi
  if [ -z "$why" ]; then
    python=$base_python
    say "PyTorch $torch_version: $base_python ($base_why)"
    complete_existing_python
  else
    torch_folder=''
    choose_toolkit 13
    say "PyTorch $(pinned torch): from PyPI, because $base_python ($base_why) cannot be used: $why"
    install_pytorch
  fi
  find_build_tools
  [ -n "$jax_python" ] || install_jax
  find_nvrtc
}

# The files of NVIDIA's driver for its GPUs; nothing where there are none.
gpu_devices() { compgen -G '/dev/nvidia[0-9]*' | tr '\n' ' ' || true; }

# A Python that has JAX, in jax_python: HEADROOM_JAX_PYTHON, else the base Python; nothing where that has none, or none for
# the GPU that is there. `quietly`: chosen without a word, as the rest of a build that is used as it is.
find_jax() {
  local version quietly=${1:-}
  jax_python=''
  if [ -n "${HEADROOM_JAX_PYTHON:-}" ]; then
    version=$(inspect_python "$HEADROOM_JAX_PYTHON" && echo "${base_jax_version:-(none, so its rows are skipped)}") || exit 2
    jax_python=$(command -v "$HEADROOM_JAX_PYTHON")
    [ -n "$quietly" ] || say "JAX $version: $jax_python (HEADROOM_JAX_PYTHON)"
  elif [ -n "$base_jax_version" ] && [[ -z $(gpu_devices) || -n $base_jax_cuda ]]; then
    jax_python=$base_python
    [ -n "$quietly" ] || say "JAX $base_jax_version: $base_python ($base_why)"
  fi
}

# No JAX there: an environment of its own, as its pinned NumPy and CUDA libraries are not PyTorch's. `python` stays.
install_jax() {
  local chosen=$python
  if [ -n "$(gpu_devices)" ]; then
    make_environment "$(cat "$requirements/jax_cuda.txt")" '' 8 "JAX and its CUDA libraries (downloads about 2.5 GB)"
  else
    make_environment "$(cat "$requirements/jax.txt")" '' 1 "JAX (downloads about 0.2 GB)"
  fi
  if [ "$environment_made" = yes ]; then jax_python=$python; else say "goes on without JAX: its rows are skipped"; fi
  python=$chosen
}

# The second compiler for kernels, in nvrtc: HEADROOM_NVRTC, else PyPI's, in an environment of its own, as PyTorch brings
# another version of it. `python` stays.
find_nvrtc() {
  local chosen=$python
  nvrtc=${HEADROOM_NVRTC:-}
  if [ -n "$nvrtc" ]; then
    [ -f "$nvrtc" ] || fail "HEADROOM_NVRTC: there is no $nvrtc; it names the file libnvrtc.so.13"
    say "NVRTC: $nvrtc (HEADROOM_NVRTC)"
    return
  fi
  make_environment "$(cat "$requirements/nvrtc.txt")" '' 1 "NVRTC, a compiler for kernels (downloads about 50 MB)"
  nvrtc=$(compgen -G "$environment/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13" || true)
  if [ "$environment_made" != yes ] || [ -z "$nvrtc" ]; then
    nvrtc=''
    say "goes on without NVRTC: nvcc alone compiles kernels for a network"
  fi
  python=$chosen
}

pinned() { sed -n "s/^$1\(\[.*\]\)\?==//p" "$requirements"/*.txt; }

# No PyTorch there: one environment with everything. While it installs, the downloaded files need room too.
install_pytorch() {
  local files=(torch tools) what="PyTorch, build and test tools (downloads about 2.8 GB)"
  if [ -z "$toolkit" ]; then
    files+=(toolkit)
    what="PyTorch, the CUDA toolkit, build and test tools (downloads about 3 GB)"
  fi
  make_environment "$(cd "$requirements" && cat "${files[@]/%/.txt}")" '' 9 "$what"
  [ "$environment_made" = yes ] || exit 2
  inspect_python "$python"
  [ -n "$toolkit" ] || toolkit=$(dirname "$torch_folder")/nvidia/cu13
}

# PyTorch is there: an environment on top of it with only what is missing.
complete_existing_python() {
  local wanted=$missing_tools
  [ -n "$toolkit" ] || wanted+=$'\n'$(cat "$requirements/toolkit.txt")
  [ -n "$wanted" ] || return 0
  make_environment "$wanted" "$base_sites" 1 "what is missing beside it: $(names_of "$wanted")"
  if [ "$environment_made" = yes ]; then
    [ -n "$toolkit" ] || toolkit=$environment/toolkit
  elif [ -n "$toolkit" ]; then
    say "goes on without: $(names_of "$missing_tools")"
    python=$base_python
  else
    exit 2
  fi
}

# The names in a list of requirements, on one line.
names_of() { printf '%s\n' "$1" | sed '/^$/d; s/[=[].*//' | tr '\n' ' '; }

# For list and report: cmake and ninja that are there, else those of any finished environment, else a small one.
choose_build_tools() {
  choose_base_python
  find_jax
  torch_folder='' torch_version='' torch_library_path=''
  python=$base_python
  if grep -q -E '^(cmake|ninja)=' <<<"$missing_tools"; then
    tools_environment
  fi
  find_build_tools
}

tools_environment() {
  local finished
  need_cache
  for finished in "$cache"/env-*/complete; do
    python=$(dirname "$finished")/bin/python
    ! has_tools "$(dirname "$finished")" || return 0
  done
  make_environment "$(cat "$requirements/tools.txt")" '' 1 "build and test tools (downloads about 0.2 GB)"
  [ "$environment_made" = yes ] || exit 2
}

# An environment of an earlier version may lack what was added to tools.txt since; Jinja2 was the last.
has_tools() { [ -x "$1/bin/cmake" ] && compgen -G "$1/lib/python3*/site-packages/jinja2" >/dev/null; }

# Programs beside the chosen Python, beside the one it was made from, or on PATH; formatters of another version than
# the pinned one would disagree and are not used.
find_build_tools() {
  cmake=$(find_program cmake)
  ninja=$(find_program ninja)
  lacks cmake "$cmake" && fail "cmake 3.28 or newer is not there and could not be installed"
  [ -n "$cmake" ] || fail "cmake is neither on PATH nor beside $python"
  find_formatters
}

find_formatters() {
  clang_format=$(find_program clang-format)
  ruff=$(find_program ruff)
  lacks clang-format "$clang_format" && clang_format=''
  lacks ruff "$ruff" && ruff=''
  return 0
}

# lacks TOOL PATH: the base Python lacks the pinned TOOL, and PATH is not in our environment either.
lacks() { grep -q "^$1=" <<<"$missing_tools" && [[ -z $cache || $2 != "$cache"/* ]]; }

find_program() {
  local folder
  for folder in "$(dirname "$python")" "$(dirname "$base_python")"; do
    [ ! -x "$folder/$1" ] || { echo "$folder/$1"; return; }
  done
  command -v "$1" || true
}

# make_environment REQUIREMENTS SITES GIGABYTES WHAT: sets environment, python and environment_made (yes, or nothing when
# it failed). SITES: package folders of an existing Python that the environment also sees.
make_environment() {
  local wanted=$1 sites=$2
  need_cache
  environment=$cache/env-$(printf '%s\n' "$wanted" "$sites" "$base_executable" "$base_version" | sha256sum | cut -c 1-12)
  python=$environment/bin/python environment_made=yes
  [ ! -e "$environment/complete" ] || return 0
  if ! want_packages environment || ! with_lock "$cache/lock" install_environment "$@"; then environment_made=''; fi
}

install_environment() {
  local wanted=$1 sites=$2 gigabytes=$3 what=$4 log=$environment.log pip=()
  [ ! -e "$environment/complete" ] || return 0
  need_space "$cache" "$gigabytes" "set-up"
  say "installs from PyPI into $environment: $what"
  rm -rf "$environment"
  : >"$log"
  # A private folder for downloads: /tmp may be small. No pip cache: it would keep all a second time.
  mkdir -p "$environment/download"
  printf '%s\n' "$wanted" >"$environment/requirements.txt"
  step "Python environment" "$log" "$base_executable" -m venv "$environment" || return 1
  [ -z "$sites" ] || printf '%s\n' "$sites" >"$("$python" -c 'import site; print(site.getsitepackages()[0])')/existing.pth"
  [ -z "$sites" ] || pip=(--retries 1)
  step "PyPI packages" "$log" env TMPDIR="$environment/download" "$python" -m pip install --no-cache-dir \
    --disable-pip-version-check "${pip[@]}" -r "$environment/requirements.txt" || return 1
  rm -rf "$environment/download"
  complete_toolkit "$sites" || return 1
  date -u +%FT%TZ >"$environment/complete.new"
  mv "$environment/complete.new" "$environment/complete"
}

# The toolkit's wheels lack what CMake looks for: `lib64` and libraries without a version in their name. With an existing
# PyTorch its CUDA wheels lie elsewhere, so both are joined in one folder of links.
complete_toolkit() {
  local packages folder library site
  grep -q '^cuda-toolkit' "$environment/requirements.txt" || return 0
  packages=$("$python" -c 'import site; print(site.getsitepackages()[0])')
  folder=$packages/nvidia/cu13
  mkdir -p "$folder"
  if [ -n "$1" ]; then
    while read -r site; do
      [ ! -d "$site/nvidia/cu13" ] || cp -rsn "$site/nvidia/cu13/." "$folder/" || return 1
    done <<<"$1"
    ln -s "$folder" "$environment/toolkit"
  fi
  ln -sfn lib "$folder/lib64"
  for library in "$folder"/lib/lib*.so.*; do
    [ -e "${library%%.so.*}.so" ] || ln -s "$(basename "$library")" "${library%%.so.*}.so"
  done
  [ -x "$folder/bin/nvcc" ]
}

# For report: a Python with matplotlib, Jinja2 and jsonschema, in `python`.
set_up_plots() {
  need_packages python
  choose_base_python
  python=$base_python
  if [ -z "$base_draws_reports" ]; then tools_environment; fi
}

# For --build: a Python with PyTorch, in `python`; nothing is installed and no compiler is needed.
use_existing_python() {
  choose_base_python
  [ -n "$torch_folder" ] || fail "$base_python ($base_why): $torch_problem; HEADROOM_PYTHON names another Python"
  find_jax quietly
  python=$base_python cmake='' ninja='' toolkit=''
  find_formatters
}
