#!/usr/bin/env bash
# Installs what some tests need besides the set-up, from the system's packages, where it is missing and that is allowed:
# Chromium for the tests of the report in a browser, shellcheck, what builds a Python package, and a reader of YAML. Without them those
# tests are skipped, so this never fails.
set -uo pipefail

# shellcheck source=cmake/front_door/own_environment.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/own_environment.sh"
front_door=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=cmake/front_door/say.sh
. "$front_door/say.sh"
# shellcheck source=cmake/front_door/attended.sh
. "$front_door/attended.sh"
# shellcheck source=cmake/front_door/packages.sh
. "$front_door/packages.sh"

want_packages tests || say "goes on without the packages for: tests"
