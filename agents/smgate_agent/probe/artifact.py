"""Check `artifact`: the kernels FlashInfer would load here are the pinned ones, and are for this SM.

It reads files and nothing else: no import of FlashInfer, no network, no write, no GPU. FlashInfer
downloads on demand, so a kernel that is not here yet is no failure, and never a pass.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from smgate_agent.probe import driver, elf, manifest, stores
from smgate_agent.probe.ending import EndedError
from smgate_agent.probe.results import Numbers, result

if TYPE_CHECKING:
    from collections.abc import Mapping

DISQUALIFYING_ENV = (
    "FLASHINFER_CUBIN_CHECKSUM_DISABLED",
    "FLASHINFER_CUBINS_REPOSITORY",
    "FLASHINFER_DISABLE_VERSION_CHECK",
    "FLASHINFER_TACTICS_BLOCKLIST",
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK",
    "SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL",
)
"""Any value counts, "0" too: so FlashInfer reads them. `FLASHINFER_CUBIN_DIR` is not one of them: it
names a store, whose contents are checked here as any other's."""
NO_SUCH_ARCH = ("Sm199a",)
NO_SUCH_SM = 199
NO_SUCH_ACTIVATION = 199


class Here(NamedTuple):
    """The store that wins, what it must hold, and what else could have won."""

    store: stores.Store
    others: list[stores.Store]
    pin: stores.Pin
    downloads: bool
    """Whether FlashInfer would fetch what is not here."""

    def absent(self, what: str) -> EndedError:
        """What it means that something is not in the store."""
        if any(_is_pinned(other, self.pin) for other in self.others):
            return EndedError("failed", f"wrong_store_wins:{self.store.name}")
        if self.downloads:
            return EndedError("skipped", f"{what}_not_here:{self.store.name}")
        return EndedError("failed", f"{what}_missing:{self.store.name}")


def run(launch: dict[str, Any]) -> dict[str, Any]:
    """Passed if every kernel that is here is pinned and right, and both products have one here."""
    numbers: Numbers = {}
    try:
        sm = launch.get("sm") or driver.single_sm()
        control = _check(sm, os.environ, numbers)
    except EndedError as ended:
        return result(ended.outcome, ended.reason, numbers)
    except manifest.MalformedError as exc:
        return result("error", f"manifest_unreadable:{exc}", numbers)
    if control is None:
        return result("error", "control_missed", numbers, control="missed")
    return result("passed", f"kernels_pinned:{control}", numbers, control="caught")


def _check(sm: str | None, environ: Mapping[str, str], numbers: Numbers) -> str | None:
    """The name of the store that holds right kernels; None if the check could not tell wrong ones."""
    _versions(environ)
    if sm is None:
        raise EndedError("skipped", "sm_unknown")
    if sm not in manifest.ARCHS:
        raise EndedError("skipped", f"sm_uses_no_cubins:{sm}")
    pin = stores.pin(sm)
    if pin is None:
        raise EndedError("error", "pins_unreadable")
    here = _here(environ, pin)
    sums = _checksums(here)
    numbers["files_listed"] = float(len(sums))
    listed = _listed(here, sums)
    wrong = _control_of_list(listed)
    for gemm, kernels in _usable(listed, sm).items():
        present = _verified(here, sums, gemm, kernels)
        numbers[f"{gemm.name}.kernels"] = float(len(kernels))
        numbers[f"{gemm.name}.here"] = float(len(present))
        wrong = wrong or _control_of_file(*present[0])
    return None if wrong else here.store.name


def _versions(environ: Mapping[str, str]) -> None:
    if stores.package_folder("flashinfer") is None:
        raise EndedError("error", "flashinfer_missing")
    for name in DISQUALIFYING_ENV:
        if environ.get(name):
            raise EndedError("failed", f"env:{name}")
    version = stores.flashinfer_version()
    if version is None:
        raise EndedError("error", "flashinfer_version_unknown")
    package = stores.package_folder("flashinfer_cubin")
    if package is not None and stores.cubin_version() != version:
        raise EndedError("failed", "cubin_version_mismatch")
    # As FlashInfer compares them: of a jit-cache `+cu130` says which CUDA it is for.
    if any(
        other != version and not other.startswith(f"{version}+")
        for other in stores.jit_cache_versions()
    ):
        raise EndedError("failed", "jit_cache_version_mismatch")


def _here(environ: Mapping[str, str], pin: stores.Pin) -> Here:
    winner, *others = stores.stores(environ)
    downloads = not environ.get("FLASHINFER_NO_DOWNLOAD") and winner.name != "package"
    return Here(winner, others, pin, downloads)


def _is_pinned(store: stores.Store, pin: stores.Pin) -> bool:
    data = store.read(pin.checksums)
    return data is not None and hashlib.sha256(data).hexdigest() == pin.sha256


def _checksums(here: Here) -> dict[str, str]:
    data = here.store.read(here.pin.checksums)
    if data is None:
        raise here.absent("manifest")
    if hashlib.sha256(data).hexdigest() != here.pin.sha256:
        raise EndedError("failed", f"manifest_not_pinned:{here.store.name}")
    return manifest.checksums(data.decode(errors="replace"))


def _listed(here: Here, sums: dict[str, str]) -> tuple[list[manifest.Kernel], dict[str, int]]:
    """The kernels of the package, and its activations by name."""
    texts = {}
    for name in (manifest.HEADER, manifest.ENUMS):
        if name not in sums:
            raise EndedError("error", "manifest_unreadable:headers")
        data = here.store.read(f"{here.pin.folder}/{name}")
        if data is None:
            raise here.absent("header")
        if hashlib.sha256(data).hexdigest() != sums[name]:
            raise EndedError("failed", f"header_checksum:{here.store.name}")
        texts[name] = data.decode(errors="replace")
    return manifest.kernels(texts[manifest.HEADER]), manifest.activations(texts[manifest.ENUMS])


def _usable(
    listed: tuple[list[manifest.Kernel], dict[str, int]], sm: str
) -> dict[manifest.Gemm, list[manifest.Kernel]]:
    kernels, activations = listed
    archs = manifest.ARCHS[sm]
    if not any(kernel.arch in archs for kernel in kernels):
        raise EndedError("failed", f"no_kernel_for_sm:{sm}")
    if manifest.SITU not in activations:
        raise EndedError("failed", "no_situ_activation")
    found = {}
    for gemm in manifest.GEMMS:
        found[gemm] = manifest.usable(
            kernels, gemm, archs=archs, activation=activations[manifest.SITU]
        )
        if not found[gemm]:
            raise EndedError("failed", f"kernel_missing:{gemm.name}")
    return found


def _verified(
    here: Here, sums: dict[str, str], gemm: manifest.Gemm, kernels: list[manifest.Kernel]
) -> list[tuple[bytes, manifest.Kernel]]:
    """Those that are here; whatever is here must be right."""
    present = []
    for kernel in kernels:
        if sums.get(kernel.file) != kernel.sha256:
            raise EndedError("failed", f"kernel_not_listed:{gemm.name}")
        data = here.store.read(f"{here.pin.folder}/{kernel.file}")
        if data is None:
            if not here.downloads:
                raise here.absent(f"cubin_{gemm.name}")
            continue
        problem = _problem(data, kernel)
        if problem is not None:
            raise EndedError("failed", f"{problem}:{gemm.name}")
        present.append((data, kernel))
    if not present:
        raise here.absent(f"cubin_{gemm.name}")
    return present


def _problem(data: bytes, kernel: manifest.Kernel) -> str | None:
    if hashlib.sha256(data).hexdigest() != kernel.sha256:
        return "cubin_checksum"
    sm = elf.cubin_sm(data)
    if sm is None:
        return "cubin_no_elf"
    return None if f"Sm{sm}" == kernel.arch.rstrip("af") else "cubin_wrong_arch"


def _control_of_list(listed: tuple[list[manifest.Kernel], dict[str, int]]) -> bool:
    """Whether the list is said to hold what nobody has: a kernel of no architecture, of no activation."""
    kernels, activations = listed
    first = manifest.GEMMS[0]
    everywhere = tuple({kernel.arch for kernel in kernels})
    return any(
        manifest.usable(kernels, gemm, archs=NO_SUCH_ARCH, activation=value)
        for gemm in manifest.GEMMS
        for value in activations.values()
    ) or bool(manifest.usable(kernels, first, archs=everywhere, activation=NO_SUCH_ACTIVATION))


def _control_of_file(data: bytes, kernel: manifest.Kernel) -> bool:
    """Whether a kernel with one byte changed, or one for no such SM, is said to be right."""
    changed = bytes([*data[:-1], data[-1] ^ 1])
    other = elf.with_sm(data, NO_SUCH_SM)
    renamed = kernel._replace(sha256=hashlib.sha256(other).hexdigest())
    return _problem(changed, kernel) is None or _problem(other, renamed) is None
