"""Where FlashInfer would take its kernels from, found without importing or writing anything.

The order is FlashInfer's own (`jit/env.py`): the folder that the environment names, the package
`flashinfer-cubin` of the same version, the cache, which it fills by downloading.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from smgate_agent.launch import reader_child

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_BYTES_MAX = 1 << 26
"""The list of kernels of 0.6.13 has 9 MB, a kernel 0.2 MB; what is larger is none."""


class Store(NamedTuple):
    """A folder of kernels. `name` is env, package or cache."""

    name: str
    folder: Path

    def read(self, name: str) -> bytes | None:
        """A file of it; None where there is none that can be read."""
        path = self.folder / name
        try:
            if not path.is_file() or path.stat().st_size > FILE_BYTES_MAX:
                return None
            return path.read_bytes()
        except (OSError, ValueError):
            return None


class Pin(NamedTuple):
    """A package of kernels that this FlashInfer names: its folder, and SHA-256 of its checksums."""

    folder: str
    sha256: str

    @property
    def checksums(self) -> str:
        """Its list of checksums, within a store."""
        return f"{self.folder}/checksums.txt"


def stores(environ: Mapping[str, str]) -> list[Store]:
    """All stores that could be asked, the winner first; the package is of FlashInfer's version."""
    found = []
    if environ.get("FLASHINFER_CUBIN_DIR"):
        found.append(Store("env", Path(environ["FLASHINFER_CUBIN_DIR"])))
    package = package_folder("flashinfer_cubin")
    if package is not None:
        found.append(Store("package", package / "cubins"))
    base = Path(environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home())
    found.append(Store("cache", base / ".cache" / "flashinfer" / "cubins"))
    return found


def package_folder(name: str) -> Path | None:
    """Where a package is, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        return Path(folder)
    return None


def flashinfer_version() -> str | None:
    """As FlashInfer itself reads it."""
    return _built("flashinfer") or reader_child.installed(
        reader_child.PACKAGES["flashinfer_version"]
    )


def cubin_version() -> str | None:
    """The version of the package `flashinfer-cubin`."""
    return _built("flashinfer_cubin") or reader_child.installed(("flashinfer-cubin",))


def jit_cache_versions() -> set[str]:
    """Versions of `flashinfer-jit-cache` and of the packages that hold its modules."""
    found = set()
    for item in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", item.metadata["Name"] or "").lower()
        if name.startswith("flashinfer-jit-cache"):
            found.add(item.version)
    return found


def _built(package: str) -> str | None:
    text = reader_child.source(package, "_build_meta.py")
    return reader_child.assigned(reader_child.body_of(text)).get("__version__")


def pin(sm: str) -> Pin | None:
    """The package of batched GEMM kernels for this SM; 0.6.16 and 0.6.17 had one for SM107 alone."""
    classes = {
        node.name: reader_child.assigned(node.body)
        for node in reader_child.body_of(reader_child.source("flashinfer", "artifacts.py"))
        if isinstance(node, ast.ClassDef)
    }
    paths, sums = classes.get("ArtifactPath", {}), classes.get("CheckSumHash", {})
    own = "TRTLLM_GEN_BMM_RUBIN"
    name = own if sm == "10.7" and own in paths else "TRTLLM_GEN_BMM"
    folder, sha256 = paths.get(name, "").strip("/"), sums.get(name, "")
    if not folder or ".." in folder.split("/") or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        return None
    return Pin(folder, sha256)
