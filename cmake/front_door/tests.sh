# ./headroom test: every check runs, whatever failed before it; the last line counts them all.
# shellcheck shell=bash

test_usage() {
  cat <<'TEXT'
usage: ./headroom test [--gpu [--sanitize]] [--build DIR]
  builds, then runs formatting and lint, GoogleTest and pytest; tests that need a GPU report themselves as skipped
  --gpu        needs a GPU: all tests, the kernels' once more with their PTX compiled on the spot; writes
               results/verification/DEVICE.json
  --sanitize   with --gpu: also compute-sanitizer memcheck, racecheck and synccheck over the tests on small shapes
  --build DIR  the build folder DIR as it is: no compiler, packages or network
TEXT
}

run_tests() {
  local gpu='' sanitize='' argument
  if has_help "$@"; then
    test_usage
    return
  fi
  split_build_option "$@"
  for argument in "${rest[@]}"; do
    case $argument in
      --gpu) gpu=yes ;;
      --sanitize) sanitize=yes ;;
      *) fail "test: unknown option '$argument'; known: --gpu, --sanitize, --build" ;;
    esac
  done
  [ -z "$sanitize" ] || [ -n "$gpu" ] || fail "test: --sanitize goes with --gpu"
  if [ -n "$given_build" ]; then use_build "$given_build"; else build_targets everything; fi
  export_for_programs
  passed=0 failed=0 skipped=0
  reports=$(mktemp -d)
  trap 'rm -rf "$reports"' EXIT
  if [ -n "$gpu" ]; then test_with_gpu "$sanitize"; else test_without_gpu; fi
  "$python" "$front_door/verification.py" status "$root"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ]
}

test_without_gpu() {
  check_style
  if [ -n "$given_build" ]; then run_programs '' ''; else run_ctest; fi
  run_pytest
}

test_with_gpu() {
  local device results=()
  device=$("$python" "$front_door/verification.py" device) || exit 2
  echo "GPU: $device"
  [ -z "$1" ] || command -v "$(sanitizer)" >/dev/null ||
    fail "test --sanitize: compute-sanitizer is neither on PATH nor in the CUDA toolkit (CUDA_HOME)"
  check_style
  run_programs '' ''
  # These only look for mistakes, so they may disturb each other.
  local parts=(pytest ptx_jit) part
  [ -z "$1" ] || parts+=(memcheck racecheck synccheck)
  for part in "${parts[@]}"; do
    mkdir "$reports/$part"
    (
      reports=$reports/$part passed=0 failed=0 skipped=0
      case $part in
        pytest) run_pytest ;;
        ptx_jit) portable_kernels ;;
        *) sanitized "$part" ;;
      esac
      echo "$passed $failed $skipped" >"$reports/counts"
    ) >"$reports/$part/output" 2>&1 &
  done
  wait
  for part in "${parts[@]}"; do
    cat "$reports/$part/output"
    # shellcheck disable=SC2046  # three numbers
    count $(cat "$reports/$part/counts" || echo 0 1 0)
    if [ "$part" = pytest ]; then results+=("tests=$passed,$failed,$skipped"); else results+=("$part=$counted"); fi
  done
  if [ "$(kernel_digest)" != "$build_kernel_digest" ]; then
    note_failure "verification record: the build is not of these kernel sources; nothing was written"
  else
    echo "wrote $("$python" "$front_door/verification.py" write "$root" "$build_kernel_digest" "${results[@]}")"
  fi
}

kernel_digest() { "$python" "$front_door/verification.py" digest "$root"; }

# Not the tests of cuBLASLt: the vendor's library holds no PTX to compile, so nothing in them can run this way.
portable_kernels() { without=cublaslt_test CUDA_FORCE_PTX_JIT=1 run_programs cuda 'portable PTX: '; }

sanitizer() {
  local folder
  for folder in "${CUDA_HOME:-}" "$toolkit" /usr/local/cuda; do
    [ -z "$folder" ] || [ ! -x "$folder/bin/compute-sanitizer" ] || {
      echo "$folder/bin/compute-sanitizer"
      return
    }
  done
  echo compute-sanitizer
}

sanitized() { run_programs cuda "$1: " "$(sanitizer)" --tool "$1" --require-cuda-init no --error-exitcode 86; }

count() {
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
  counted=$1,$2,$3
}

note_failure() {
  echo "FAILED  $*"
  count 0 1 0
}

# report_counts NAME STATUS SECONDS OUTPUT JUNIT...: adds the counts; a bad status without a counted failure is one too.
report_counts() {
  local name=$1 status=$2 seconds=$3 output=$4 verdict=ok numbers
  read -ra numbers < <("$python" "$front_door/junit_counts.py" "${@:5}")
  [ "$status" -eq 0 ] || [ "${numbers[1]}" -gt 0 ] || numbers[1]=1
  count "${numbers[@]}"
  if [ "${numbers[1]}" -gt 0 ]; then
    tail -n 60 "$output"
    verdict=FAILED
  fi
  printf '%-7s %s: %d passed, %d failed, %d skipped (%d s)\n' "$verdict" "$name" "${numbers[@]}" "$seconds"
}

# check NAME PROGRAM COMMAND...: one check that counts as one test; skipped when PROGRAM is empty.
check() {
  local name=$1 program=$2 output=$reports/check
  shift 2
  if [ -z "$program" ]; then
    echo "skipped $name: not installed (formatters: not the pinned version)"
    count 0 0 1
  elif "$@" >"$output" 2>&1; then
    echo "ok      $name"
    count 1 0 0
  else
    tail -n 40 "$output"
    note_failure "$name"
  fi
}

check_style() {
  local sources
  readarray -t sources < <(cd "$root" && find bench cuda_impl torch_impl tests -name '*.cpp' -o -name '*.h' \
    -o -name '*.cu' -o -name '*.cuh' | sort)
  cd "$root" || exit 1
  check "clang-format" "$clang_format" "$clang_format" --dry-run -Werror "${sources[@]}"
  check "ruff format" "$ruff" "$ruff" format --check .
  check "ruff check" "$ruff" "$ruff" check .
  check "shellcheck" "$(command -v shellcheck)" shellcheck -x headroom .ci/run cmake/front_door/browser.sh
}

run_ctest() {
  local started=$SECONDS status=0
  say "running GoogleTest"
  "$(dirname "$cmake")/ctest" --test-dir "$build" -j 2 --output-on-failure --no-tests=error \
    --output-junit "$reports/ctest.xml" >"$reports/ctest" 2>&1 || status=$?
  report_counts "GoogleTest (ctest)" "$status" $((SECONDS - started)) "$reports/ctest" "$reports/ctest.xml"
}

# run_programs FOLDER PREFIX [WRAPPER...]: the test programs of one folder below tests/ (or all), one after the other.
# Not through CTest: its files hold the paths of the machine that built them. Under a WRAPPER (a sanitizer) the small
# tests only. Sets counted to the sum.
run_programs() {
  local folder=$1 prefix=$2 program in_folder started status before=("$passed" "$failed" "$skipped")
  shift 2
  while read -r program in_folder; do
    [ -z "$folder" ] || [ "$in_folder" = "$folder" ] || continue
    [ "$program" != "${without:-}" ] || continue
    started=$SECONDS status=0
    run_program "$program" "$@" || status=$?
    report_counts "$prefix$program" "$status" $((SECONDS - started)) "$reports/program" "$reports"/program.*.xml
  done <"$build/bin/test-programs"
  counted=$((passed - before[0])),$((failed - before[1])),$((skipped - before[2]))
}

# run_program PROGRAM [WRAPPER...]: its output in $reports/program, its counts in $reports/program.*.xml.
# Under a WRAPPER in shards side by side: a sanitizer leaves both the GPU and a core of the host idle most of the time.
run_program() {
  local program=$1 filter='*' shards=1 shard processes=() status=0
  shift
  rm -f "$reports"/program.*
  if [ $# -gt 0 ]; then
    filter='*Small*'
    shards=$(($(nproc) / 2))
    shards=$((shards < 1 ? 1 : shards > 6 ? 6 : shards))
  fi
  for ((shard = 0; shard < shards; ++shard)); do
    LD_LIBRARY_PATH=$torch_library_path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} GTEST_TOTAL_SHARDS=$shards \
      GTEST_SHARD_INDEX=$shard timeout 1800 "$@" "$build/bin/$program" "--gtest_filter=$filter" \
      "--gtest_output=xml:$reports/program.$shard.xml" >"$reports/program.$shard.log" 2>&1 </dev/null &
    processes+=($!)
  done
  for shard in "${!processes[@]}"; do wait "${processes[$shard]}" || status=$?; done
  cat "$reports"/program.*.log >"$reports/program"
  return "$status"
}

run_pytest() {
  local started=$SECONDS status=0
  if ! "$python" -c 'import pytest' 2>/dev/null; then
    echo "skipped pytest: $python has none"
    count 0 0 1
    return
  fi
  say "running pytest"
  (cd "$root" && "$python" -m pytest -q -p no:cacheprovider tests "--junitxml=$reports/pytest.xml") \
    >"$reports/pytest" 2>&1 || status=$?
  report_counts "pytest" "$status" $((SECONDS - started)) "$reports/pytest" "$reports/pytest.xml"
}
