#!/bin/sh
# Build the environment that runs SGLang's own code on the CPU, for the tests marked `sglang`.
#
#   ops/dev/sglang_env.sh            .venv-sglang: torch 2.13.0, flashinfer 0.7.2.post1, SGLang 0.5.23
#   ops/dev/sglang_env.sh 0.5.18     .venv-sglang-0.5.18: that SGLang alone, over the first one
#
# Needs python3 >= 3.11 with venv and pip's network or PIP_FIND_LINKS; no root. From PyPI torch is
# the CUDA build (several GB); a CPU wheel in a folder named by PIP_FIND_LINKS is preferred by pip.
# The environment is used only when its stamp, written last, equals this script, its
# requirements and the version; a second call then does nothing.
set -eu

base_version=0.5.23
torch_version=2.13.0
flashinfer_version=0.7.2.post1
triton_version=3.9.0

version=${1:-$base_version}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
base=$root/.venv-sglang
case $version in
  "$base_version") target=$base requirements=$here/sglang_requirements.txt ;;
  0.5.17 | 0.5.18 | 0.5.19 | 0.5.20 | 0.5.21 | 0.5.22)
    target=$root/.venv-sglang-$version requirements=$here/sglang_older_requirements.txt
    ;;
  *)
    echo "sglang_env.sh: no environment is defined for SGLang $version" >&2
    exit 2
    ;;
esac

recipe=$(cat "$here/sglang_env.sh" "$requirements" | sha256sum | cut -d ' ' -f 1)
wanted="$version $recipe"
stamp=$target/.smgate-stamp

is_ready() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; }

if is_ready; then
  exit 0
fi

# An overlay needs the base; the base is brought up to date before the lock of the overlay is taken.
if [ "$target" != "$base" ]; then
  sh "$here/sglang_env.sh" "$base_version"
fi

# Two builders of one environment take turns; the second finds the stamp of the first.
mkdir -p "$root/.cache"
exec 9>"$root/.cache/sglang-env-$version.lock"
flock 9
if is_ready; then
  exit 0
fi

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "sglang_env.sh: needs python3 3.11 or newer" >&2
  exit 2
}

rm -rf "$target"
"$python" -m venv "$target"
run="$target/bin/python"
pip() { "$run" -m pip --disable-pip-version-check install --quiet "$@"; }
site=$("$run" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

if [ "$target" != "$base" ]; then
  echo "sglang_env.sh: SGLang $version over .venv-sglang" >&2
  pip --no-deps "sglang==$version" --requirement "$requirements"
  # Own packages come first on the path, so this SGLang hides the one of the base.
  "$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/smgate_base.pth"
else
  echo "sglang_env.sh: torch $torch_version" >&2
  pip "torch==$torch_version"
  torch_build=$("$run" -c 'import importlib.metadata as m; print(m.version("torch"))')
  # A torch for CUDA brings its own triton; the CPU build brings none, and SGLang imports it.
  "$run" -c 'import importlib.metadata as m; m.version("triton")' 2>/dev/null ||
    pip --no-deps "triton==$triton_version"
  echo "sglang_env.sh: SGLang $version, flashinfer $flashinfer_version" >&2
  pip --requirement "$requirements"
  # Without their dependencies: those ask for CUDA builds of several packages, none needed here.
  pip --no-deps "sglang==$version" "flashinfer-python==$flashinfer_version" \
    compressed-tensors==0.18.0 gguf==0.19.0
  now=$("$run" -c 'import importlib.metadata as m; print(m.version("torch"))')
  if [ "$now" != "$torch_build" ]; then
    echo "sglang_env.sh: torch $torch_build was replaced by $now" >&2
    exit 1
  fi
  "$run" -c 'import flashinfer, torch'
fi

found=$("$run" -c 'import importlib.metadata as m; print(m.version("sglang"))')
if [ "$found" != "$version" ]; then
  echo "sglang_env.sh: SGLang $found answers where $version was asked for" >&2
  exit 1
fi
printf '%s\n' "$wanted" >"$stamp.new"
mv "$stamp.new" "$stamp"
