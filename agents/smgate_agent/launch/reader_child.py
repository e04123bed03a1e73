"""Reads what only SGLang's interpreter can: the YAML config file and the installed versions.

A script passed to SGLang's own interpreter with `-c`, whatever its version: it imports nothing of
the gate, never torch and never flashinfer, and prints one marked line. Arguments: the flags wanted
from the config file as JSON, then the config file, if there is one.
"""

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

MARK = "smgate-result "
PACKAGES = {
    "sglang_version": ("sglang",),
    "flashinfer_version": ("flashinfer-python", "flashinfer"),
    "jit_cache_version": ("flashinfer-jit-cache",),
    "cubin_version": ("flashinfer-cubin",),
    "cute_dsl_version": ("nvidia-cutlass-dsl",),
    "torch_version": ("torch",),
}
FILE_BYTES_MAX = 1 << 20


def config_tokens(path: str, wanted: "list[str]") -> "list[str] | None":
    """The wanted flags of a config file as SGLang turns them into arguments; None if it cannot."""
    if Path(path).suffix.lower() not in (".yaml", ".yml"):
        return None
    try:
        import yaml

        with Path(path).open() as stream:  # in the locale's encoding, as SGLang opens it
            data = yaml.safe_load(stream)
    except Exception:
        return None
    data = {} if data is None else data
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        return None
    tokens: list[str] = []
    for key, value in data.items():
        flag = "--" + key
        if any(option.startswith(flag) for option in wanted):
            tokens += tokens_of(flag, value)
    return tokens


def tokens_of(flag: str, value: object) -> "list[str]":
    """One entry as arguments: SGLang writes booleans in lower case and spreads lists."""
    if isinstance(value, bool):
        return [flag, str(value).lower()]
    if isinstance(value, list):
        return [flag] + [str(item) for item in value] if value else []
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    return [flag, str(value)]


def installed(names: "tuple[str, ...]") -> "str | None":
    """The version of the first of these packages that is installed."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except Exception:
            continue
    return None


def source(package: str, name: str) -> "str | None":
    """The text of a file beside a package's `__init__`, found without importing the package."""
    try:
        spec = importlib.util.find_spec(package)
    except Exception:
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / name
        if path.is_file() and path.stat().st_size <= FILE_BYTES_MAX:
            return path.read_text(encoding="utf-8", errors="replace")
    return None


def assigned(body: "list[ast.stmt]") -> "dict[str, str]":
    """Names that a block assigns a plain text to."""
    found = {}
    for node in body:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id] = value.value
    return found


def body_of(text: "str | None") -> "list[ast.stmt]":
    """The statements of a module's text."""
    try:
        return ast.parse(text or "").body
    except (SyntaxError, ValueError):
        return []


def artifact_pins() -> "dict[str, str]":
    """Checksums of FlashInfer's kernel packages, as its `artifacts.py` pins them."""
    for node in body_of(source("flashinfer", "artifacts.py")):
        if isinstance(node, ast.ClassDef) and node.name == "CheckSumHash":
            return assigned(node.body)
    return {}


def toolkit() -> "str | None":
    """The version of the nvcc that FlashInfer would compile with."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = f"{home}/bin/nvcc" if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).is_file():
        return installed(("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu13", "nvidia-cuda-nvcc-cu12"))
    try:
        text = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, timeout=3, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    match = re.search(r"\bV([0-9]+\.[0-9]+\.[0-9]+)", text)
    return match.group(1) if match else None


def build() -> "dict[str, Any]":
    """Exact versions, None where nothing could be read."""
    versions: dict[str, Any] = {field: installed(names) for field, names in PACKAGES.items()}
    version_file = assigned(body_of(source("sglang", "_version.py")))
    if versions["sglang_version"] is None:
        versions["sglang_version"] = version_file.get("version") or version_file.get("__version__")
    versions["sglang_commit"] = version_file.get("commit_id")
    meta = assigned(body_of(source("flashinfer", "_build_meta.py")))
    versions["flashinfer_commit"] = meta.get("__git_commit__") or meta.get("__git_version__")
    versions["torch_cuda"] = assigned(body_of(source("torch", "version.py"))).get("cuda")
    versions["artifact_pins"] = artifact_pins()
    versions["cuda_toolkit"] = toolkit()
    return versions


def main() -> None:
    """Print the readings as one marked line."""
    sys.path[:] = [folder for folder in sys.path if folder]
    wanted = json.loads(sys.argv[1])
    answer: dict[str, Any] = {"tokens": None, "build": {}}
    for path in sys.argv[2:]:
        answer["tokens"] = config_tokens(path, wanted)
    try:
        answer["build"] = build()
    except Exception:
        answer["build"] = {}
    sys.stdout.write("\n" + MARK + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
