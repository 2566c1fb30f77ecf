# ./headroom test: every check runs, whatever failed before it; the last line counts them all.
# shellcheck shell=bash

test_usage() {
  cat <<TEXT
usage: $called test [--all] [--gpu [--sanitize | --parts NAME,...] [--within SECONDS] [--resume]] [--logs DIR] [--build DIR]
  builds, then runs formatting and lint, GoogleTest and pytest; tests that need a GPU report themselves as skipped
  --all        also the long tests (more networks on the GPU that the CPU plays, kills, thousands of damaged files):
               half an hour on two cores; to be run before a kernel lands
  --gpu        needs a GPU: all tests, the kernels' once more with their PTX compiled on the spot; writes
               results/verification/DEVICE.json after everything that ends
  --sanitize   with --gpu: also compute-sanitizer memcheck, racecheck and synccheck over the tests on small shapes
  --parts      with --gpu: only these of tests, ptx_jit, memcheck, racecheck, synccheck; the record keeps the others
  --within     with --gpu: what has not ended after so many seconds is ended and counted as not finished
  --resume     with --gpu: of a record of the same kernels only what failed or was not finished; its counts go on
  --logs DIR   a log for every program and file of tests goes there (default: test-logs in the build folder)
  --build DIR  the build folder DIR as it is: no compiler, packages or network
TEXT
}

run_tests() {
  local all='' gpu='' sanitize='' parts='' within=3600 logs='' resume=''
  if has_help "$@"; then
    test_usage
    return
  fi
  split_build_option "$@"
  read_test_options "${rest[@]}"
  if [ -n "$given_build" ]; then use_build "$given_build"; else build_targets everything; fi
  export_for_programs
  # What tests and conftest.py read; the user's own says nothing.
  unset HEADROOM_TEST_ALL
  [ -z "$all" ] || export HEADROOM_TEST_ALL=1
  passed=0 failed=0 skipped=0 not_finished=0 failed_reports=()
  reports=$(mktemp -d)
  trap 'rm -rf "$reports"' EXIT
  logs=$(mkdir -p -- "${logs:-$build/test-logs}" && cd -- "${logs:-$build/test-logs}" && pwd) || exit 2
  if [ -n "$gpu" ]; then test_with_gpu; else test_without_gpu; fi
  # Again, and in short: a log's end is what is read first.
  "$python" "$front_door/junit_failures.py" 8 "${failed_reports[@]}"
  [ -n "$all" ] || echo "the long tests were left out; ./headroom test --all runs them too"
  "$python" "$front_door/verification.py" status "$root"
  echo "$passed passed, $failed failed, $skipped skipped$([ "$not_finished" -eq 0 ] || echo ", $not_finished not finished")"
  [ $((failed + not_finished)) -eq 0 ]
}

# Sets all, gpu, sanitize, parts, within, resume and logs.
read_test_options() {
  local known='known: --all, --gpu, --sanitize, --parts, --within, --resume, --logs, --build' part
  while [ $# -gt 0 ]; do
    case $1 in
      --all) all=yes ;;
      --gpu) gpu=yes ;;
      --sanitize) sanitize=yes ;;
      --resume) resume=yes ;;
      --parts | --within | --logs)
        [ $# -ge 2 ] || fail "test: $1 needs a value"
        printf -v "${1#--}" %s "$2"
        shift
        ;;
      *) fail "test: unknown option '$1'; $known" ;;
    esac
    shift
  done
  for part in ${parts//,/ }; do
    [[ " tests ptx_jit memcheck racecheck synccheck " == *" $part "* ]] ||
      fail "test --parts: unknown part '$part'; known: tests, ptx_jit, memcheck, racecheck, synccheck"
  done
  [[ $within =~ ^[1-9][0-9]*$ ]] || fail "test --within $within: expected a number of seconds"
  [ -z "$sanitize" ] || [ -n "$gpu" ] || fail "test: --sanitize goes with --gpu"
  [ -z "$parts" ] || [ -n "$gpu" ] || fail "test: --parts goes with --gpu"
  [ -z "$resume" ] || [ -n "$gpu" ] || fail "test: --resume goes with --gpu"
}

test_without_gpu() {
  check_style
  if [ -n "$given_build" ]; then
    run_side_by_side --parts tests
  else
    run_ctest
    run_pytest
  fi
}

test_with_gpu() {
  local device digest=()
  device=$("$python" "$front_door/verification.py" device) || exit 2
  echo "GPU: $device"
  if [ -z "$parts" ]; then parts=tests,ptx_jit${sanitize:+,memcheck,racecheck,synccheck}; fi
  [[ $parts != *check* ]] || command -v "$(sanitizer)" >/dev/null ||
    fail "test --sanitize: compute-sanitizer is neither on PATH nor in the CUDA toolkit (CUDA_HOME)"
  if [[ $parts == *tests* && -z $resume ]]; then check_style; fi
  if [ "$(kernel_digest)" = "$build_kernel_digest" ]; then
    digest=(--kernel-digest "$build_kernel_digest")
  else
    note_failure "verification record: the build is not of these kernel sources; nothing is written"
    [ -z "$resume" ] || return 0 # there is none to go on with
  fi
  run_side_by_side --compile-first --parts "$parts" --within $((within - SECONDS)) --sanitizer "$(sanitizer)" \
    ${resume:+--resume} "${digest[@]}"
}

kernel_digest() { "$python" "$front_door/verification.py" digest "$root"; }

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

# run_side_by_side OPTION...: the programs of the build (not through CTest: its files hold the paths of the machine that
# built them) and pytest. A file of long tests takes minutes.
run_side_by_side() {
  local status=0 totals
  [ -z "$all" ] || set -- "$@" --job-limit 3600
  attend "$python" "$front_door/run_tests.py" --root "$root" --build "$build" --logs "$logs" \
    --totals "$reports/totals" --torch-libraries "$torch_library_path" --style "$passed,$failed,$skipped" "$@" \
    </dev/null
  attended_status || status=$?
  read -ra totals <"$reports/totals" || totals=(0 1 0 0)
  count "${totals[@]}"
  [ "$status" -ne 130 ] || exit 130
}

# count PASSED FAILED SKIPPED [NOT_FINISHED]
count() {
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3)) not_finished=$((not_finished + ${4:-0}))
}

note_failure() {
  echo "FAILED  $*"
  count 0 1 0
}

# report_counts NAME STATUS SECONDS OUTPUT JUNIT: adds the counts; a bad status without a counted failure is one too.
report_counts() {
  local name=$1 status=$2 seconds=$3 output=$4 verdict=ok numbers
  read -ra numbers < <("$python" "$front_door/junit_counts.py" "$5")
  [ "$status" -eq 0 ] || [ "${numbers[1]}" -gt 0 ] || numbers[1]=1
  count "${numbers[@]}"
  if [ "${numbers[1]}" -gt 0 ]; then
    verdict=FAILED
    "$python" "$front_door/junit_failures.py" 40 "$5" | grep . || tail -n 60 "$output"
    failed_reports+=("$5")
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
  check "shellcheck" "$(command -v shellcheck)" shellcheck -x headroom .ci/run cmake/front_door/test_packages.sh
}

run_ctest() {
  local started=$SECONDS status=0 only=()
  [ -n "$all" ] || only=(--label-exclude '^long$')
  say "running GoogleTest"
  attend "$(dirname "$cmake")/ctest" --test-dir "$build" -j "$(nproc)" "${only[@]}" --output-on-failure \
    --no-tests=error --output-junit "$reports/ctest.xml" >"$reports/ctest" 2>&1 </dev/null
  attended_status || status=$?
  report_counts "GoogleTest (ctest)" "$status" $((SECONDS - started)) "$reports/ctest" "$reports/ctest.xml"
}

run_pytest() {
  if ! "$python" -c 'import pytest' 2>/dev/null; then
    echo "skipped pytest: $python has none"
    count 0 0 1
    return
  fi
  say "running pytest"
  rm -f -- "$logs"/tests.*.{xml,log} # an earlier run may have had other files
  run_side_by_side --parts pytest --job-limit 1800 --within 14400
  failed_reports+=("$logs"/tests.*.xml)
}
