#!/usr/bin/env bash
# Installs Chromium from the system's packages where it is missing and that is allowed; without it the report's browser
# tests skip themselves, so this never fails. Not part of set-up: nothing but those tests needs a browser.
set -uo pipefail

front_door=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/headroom
# shellcheck source=cmake/front_door/say.sh
. "$front_door/say.sh"
# shellcheck source=cmake/front_door/packages.sh
. "$front_door/packages.sh"

want_packages browser || true
