# System packages: what is missing is found by looking for the thing itself, not for a package's name, so that a
# compiler or library that was installed otherwise counts too.
# shellcheck shell=bash

# packages_for build|python|environment|tests: package | what must be there: a command, a header, a module or a file.
packages_for() {
  [ "$1" != build ] || cat <<'LIST'
g++|command c++
git|command git
libbenchmark-dev|header benchmark/benchmark.h
nlohmann-json3-dev|header nlohmann/json.hpp
libvalijson-dev|header valijson/validator.hpp
libcli11-dev|header CLI/CLI.hpp
libfmt-dev|header fmt/core.h
libgtest-dev|header gtest/gtest.h
libgmock-dev|header gmock/gmock.h
zlib1g-dev|header zlib.h
libssl-dev|header openssl/evp.h
libboost-context-dev|header boost/context/fiber.hpp
LIST
  if [ "$1" = tests ]; then
    printf '%s\n' "chromium|command chromium" "chromium-driver|command chromedriver" "shellcheck|command shellcheck" \
      "python3-setuptools|file /usr/lib/python3/dist-packages/setuptools/__init__.py" \
      "python3-wheel|file /usr/lib/python3/dist-packages/wheel/__init__.py" \
      "python3-yaml|file /usr/lib/python3/dist-packages/yaml/__init__.py"
    return
  fi
  # Where no Python is, one will be needed for an environment.
  [ "$1" = environment ] || printf '%s\n' "python3|command python3" "python3-venv|command python3"
  [ "$1" != environment ] ||
    printf '%s\n' "python3-venv|module ensurepip" "ca-certificates|file /etc/ssl/certs/ca-certificates.crt"
}

is_there() {
  local kind=$1 name=$2
  case $kind in
    command) command -v "$name" >/dev/null ;;
    header) [ -e "/usr/include/$name" ] || [ -e "/usr/local/include/$name" ] ;;
    module) "$base_executable" -c "import $name" 2>/dev/null ;;
    file) [ -e "$name" ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] ;;
  esac
}

missing_packages() {
  local package probe kind name
  while IFS='|' read -r package probe; do
    read -r kind name <<<"$probe"
    is_there "$kind" "$name" || printf '%s ' "$package"
  done
}

# need_packages build|python|environment|tests: installs what is missing, or prints the command that would and exits with code 2.
need_packages() { want_packages "$1" || exit 2; }

# want_packages: the same, but where it cannot install it says why and returns 1.
want_packages() {
  local missing
  missing=$(packages_for "$1" | missing_packages)
  missing=${missing% }
  [ -n "$missing" ] || return 0
  local as_root=() command="apt-get install -y --no-install-recommends $missing"
  if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo -n)
    command="sudo $command"
  fi
  command -v apt-get >/dev/null || {
    say "these are missing (names as in Debian), please install them: $missing"
    return 1
  }
  [ ${#as_root[@]} -eq 0 ] || sudo -n true 2>/dev/null || {
    say "system packages are missing and this user may not install them; run: $command"
    return 1
  }
  need_cache
  with_lock "$cache/lock" install_packages "$missing" "${as_root[@]}"
}

# install_packages "NAME ..." [SUDO...]
install_packages() {
  local log=$cache/packages.log names size
  read -ra names <<<"$1"
  shift
  : >"$log"
  step "package lists" "$log" "$@" apt-get update || return 1
  size=$(apt-get install --print-uris -qq -y --no-install-recommends "${names[@]}" 2>/dev/null |
    awk '{ bytes += $3 } END { printf "%.0f", bytes / 1e6 }')
  say "installs system packages (downloads $size MB): ${names[*]}"
  # Half an installation would have to be mended by hand.
  let_finish=yes step "system packages" "$log" "$@" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${names[@]}" || return 1
}
