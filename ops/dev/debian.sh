#!/bin/sh
# Print the folder of programs that some tests need: the system's own, else Debian's, unpacked.
#
#   ops/dev/debian.sh prometheus           prometheus, promtool and amtool
#   ops/dev/debian.sh pgbouncer            pgbouncer
#   ops/dev/debian.sh prometheus --where   the same, but fetches nothing
#
# Packages are not installed: their archives are downloaded with lists and caches of our own and
# unpacked under .cache/, so it needs no root and starts no service. The alert rules are written to
# the grammar of Debian 12's Prometheus 2.42, which every later version reads.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
what=${1:-}
unpacked=$root/.cache/$what

fail() {
  echo "error: $1" >&2
  echo "hint: $2" >&2
  exit 1
}

case $what in
  prometheus)
    programs="prometheus promtool amtool" packages="prometheus prometheus-alertmanager"
    install_it="install Debian's prometheus (2.42 or newer) and prometheus-alertmanager on this machine" ;;
  pgbouncer)
    programs=pgbouncer packages="pgbouncer libevent-2.1-7 libc-ares2"
    install_it="install Debian's pgbouncer on this machine" ;;
  *) fail "debian.sh knows no '$what'." "ops/dev/debian.sh prometheus|pgbouncer [--where]" ;;
esac
main=${programs%% *}

works() {
  for program in $programs; do
    "$1/$program" --version >/dev/null 2>&1 || return 1
  done
}

found() {
  # Debian keeps servers in /usr/sbin, which is not on everybody's PATH.
  system=$(PATH=$PATH:/usr/sbin command -v "$main" 2>/dev/null) || system=
  if [ -n "$system" ] && works "$(dirname "$system")"; then
    dirname "$system"
  elif works "$unpacked/bin"; then
    echo "$unpacked/bin"
  else
    return 1
  fi
}

found && exit 0
if [ "${2:-}" = --where ]; then
  fail "there is no $main on PATH, and none was unpacked." "make $what"
fi
for tool in apt-get dpkg-deb; do
  command -v "$tool" >/dev/null ||
    fail "there is no $main on PATH, and no $tool to unpack one." "$install_it"
done

mkdir -p "$root/.cache"
exec 9>"$root/.cache/$what.lock"
flock 9
found && exit 0

echo "debian.sh: unpacking Debian's $what" >&2
work=$root/.cache/$what.new
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
# shellcheck disable=SC2086  several words
until apt update && apt download $packages; do
  if [ "$attempt" -ge "$attempts_max" ]; then
    fail "Debian's package of $what could not be downloaded (apt's words are above)." \
      "connect to a Debian mirror, or $install_it"
  fi
  attempt=$((attempt + 1))
  echo "debian.sh: attempt $attempt of $attempts_max" >&2
  sleep 5
done
for package in "$work"/*.deb; do
  dpkg-deb --extract "$package" "$work/tree"
done
# Each by a line that has it find the libraries that were unpacked beside it.
mkdir "$work/tree/bin"
for program in $programs; do
  cat >"$work/tree/bin/$program" <<EOF
#!/bin/sh
for libraries in "$unpacked"/usr/lib/*-linux-gnu*; do
  LD_LIBRARY_PATH=\$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH
for folder in bin sbin; do
  [ ! -x "$unpacked/usr/\$folder/$program" ] || exec "$unpacked/usr/\$folder/$program" "\$@"
done
EOF
  chmod +x "$work/tree/bin/$program"
done
rm -rf "$unpacked"
mv "$work/tree" "$unpacked"
rm -rf "$work"
found || fail "the unpacked $what does not run on this machine." "$install_it"
