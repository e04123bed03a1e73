#!/bin/sh
# Make a virtual environment with this checkout installed in it, editable.
#
#   ops/dev/venv.sh DIRECTORY EXTRA[,EXTRA...]
#
# Does nothing if the environment's stamp, written last, equals the hash of what it is made from:
# this script, the interpreter, the extras and the project's own metadata (not its tool settings).
# pip follows the caller's own configuration: PIP_FIND_LINKS, PIP_INDEX_URL, pip.conf.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
target=$root/$1
extras=$2
python=${PYTHON:-python3}

fail() {
  echo "error: $1" >&2
  echo "hint: $2" >&2
  exit 1
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "smgate needs Python 3.11 or newer, and '$python' is not." \
    "install python3 (Debian 12 has 3.11), or name another: make PYTHON=/path/to/python3 ..."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "'$python' cannot make virtual environments." \
    "install them: apt-get install python3-venv"

wanted=$("$python" - "$root/pyproject.toml" "$here/venv.sh" "$extras" <<'PY'
import hashlib, json, pathlib, sys, tomllib

pyproject, script, extras = sys.argv[1:]
tables = tomllib.loads(pathlib.Path(pyproject).read_text(encoding="utf-8"))
metadata = json.dumps([tables["project"], tables["build-system"]], sort_keys=True)
made_from = [sys.version, pathlib.Path(script).read_text(encoding="utf-8"), extras, metadata]
print(hashlib.sha256("\0".join(made_from).encode()).hexdigest())
PY
)
stamp=$target/.smgate-stamp
is_ready() { [ -x "$target/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; }

if is_ready; then
  exit 0
fi

# Two builders of one environment take turns; the second finds the stamp of the first.
mkdir -p "$root/.cache"
exec 9>"$root/.cache/venv$(basename "$target").lock"
flock 9
if is_ready; then
  exit 0
fi

echo "venv.sh: installing smgate[$extras] into $1" >&2
"$target/bin/python" -c '' 2>/dev/null || {
  rm -rf "$target"
  "$python" -m venv "$target"
}
pip() { "$target/bin/python" -m pip --disable-pip-version-check -qq "$@"; }
no_packages="pip could not install what smgate needs (its own words are above)."
where_from="connect to a package index, or name a folder of wheels: PIP_FIND_LINKS=/path make ..."
# Older ones read package metadata slowly, from whole wheels.
"$target/bin/python" -c 'import pip, sys; sys.exit(int(pip.__version__.split(".")[0]) < 24)' ||
  pip install --upgrade 'pip>=24' || fail "$no_packages" "$where_from"
pip install --editable "${root}[$extras]" || fail "$no_packages" "$where_from"
printf '%s\n' "$wanted" >"$stamp.new"
mv "$stamp.new" "$stamp"
