#!/bin/sh
# Print the folder that holds `prometheus`, `promtool` and `amtool`.
#
#   ops/dev/prometheus.sh           the system's own, else Debian's packages unpacked under .cache/
#   ops/dev/prometheus.sh --where   the same, but fetches nothing
#
# The packages are not installed: their archives are downloaded with lists and caches of our own and
# unpacked, so it needs no root and starts no service. The rules are written to the grammar of
# Debian 12's 2.42, which every later version reads.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
unpacked=$root/.cache/prometheus

fail() {
  echo "error: $1" >&2
  echo "hint: $2" >&2
  exit 1
}

install_it="install Debian's prometheus (2.42 or newer) and prometheus-alertmanager on this machine"

works() {
  for program in prometheus promtool amtool; do
    "$1/$program" --version >/dev/null 2>&1 || return 1
  done
}

found() {
  system=$(command -v prometheus 2>/dev/null) || system=
  if [ -n "$system" ] && works "$(dirname "$system")"; then
    dirname "$system"
  elif works "$unpacked/usr/bin"; then
    echo "$unpacked/usr/bin"
  else
    return 1
  fi
}

found && exit 0
if [ "${1:-}" = --where ]; then
  fail "there is no Prometheus with promtool and amtool on PATH, and none was unpacked." "make prometheus"
fi
for tool in apt-get dpkg-deb; do
  command -v "$tool" >/dev/null ||
    fail "there is no Prometheus with promtool and amtool on PATH, and no $tool to unpack one." \
      "$install_it"
done

mkdir -p "$root/.cache"
exec 9>"$root/.cache/prometheus.lock"
flock 9
found && exit 0

echo "prometheus.sh: unpacking Debian's packages" >&2
work=$root/.cache/prometheus.new
rm -rf "$work"
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/tree"
# As root apt would switch to a user who may not enter this folder.
apt() {
  (cd "$work" && apt-get --quiet=2 \
    -o Dir::State="$work/state" -o Dir::State::lists="$work/state/lists" \
    -o Dir::Cache="$work/cache" -o Dir::Log="$work/state" -o APT::Sandbox::User= \
    -o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Update::Error-Mode=any \
    "$@" 9>&-) >&2
}
attempts_max=3
attempt=1
until apt update && apt download prometheus prometheus-alertmanager; do
  if [ "$attempt" -ge "$attempts_max" ]; then
    fail "Debian's package of Prometheus could not be downloaded (apt's words are above)." \
      "connect to a Debian mirror, or $install_it"
  fi
  attempt=$((attempt + 1))
  echo "prometheus.sh: attempt $attempt of $attempts_max" >&2
  sleep 5
done
for package in "$work"/prometheus*.deb; do
  dpkg-deb --extract "$package" "$work/tree"
done
rm -rf "$unpacked"
mv "$work/tree" "$unpacked"
rm -rf "$work"
found || fail "the unpacked Prometheus does not run on this machine." "$install_it"
