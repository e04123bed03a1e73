"""How a check ends before it has measured anything: what it says, and which error means what."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")
RAISED: tuple[tuple[str, str, str], ...] = (
    ("No kernel found for the given options", "failed", "no_kernel"),
    ("contains no kernels runnable", "failed", "no_kernel"),
    ("no kernel image is available", "failed", "no_kernel_image"),
    ("Artifact not found locally", "skipped", "cubins_missing"),
    ("FLASHINFER_DISABLE_JIT", "skipped", "kernels_not_prebuilt"),
)
"""What FlashInfer or the driver says, and what that is: a build without the kernel will not serve; a
node without the build's files has not been asked yet."""


class EndedError(Exception):
    """The check ends here, with this outcome and reason."""

    def __init__(self, outcome: str, reason: str, numbers: dict[str, float] | None = None) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason
        self.numbers = numbers or {}


def import_flashinfer() -> None:
    """Import the package.

    Raises:
        EndedError: it is missing or does not import.
    """
    try:
        importlib.import_module("flashinfer")
    except ImportError as exc:
        missing = getattr(exc, "name", None) == "flashinfer"
        reason = "flashinfer_missing" if missing else "flashinfer_import_failed"
        raise EndedError("error", reason) from exc
    except Exception as exc:
        raise EndedError("error", "flashinfer_import_failed") from exc


@contextlib.contextmanager
def named(step: str) -> Iterator[None]:
    """Give an error in here its meaning; one that has none is `STEP_raised_TYPE`."""
    try:
        yield
    except EndedError:
        raise
    except Exception as exc:
        raise EndedError(*meaning(exc, step)) from exc


def meaning(exc: BaseException, step: str) -> tuple[str, str]:
    """Outcome and reason of an error raised by torch, the driver or FlashInfer."""
    text = str(exc)
    if isinstance(exc, MemoryError) or any(words in text.lower() for words in OUT_OF_MEMORY):
        return "error", "out_of_memory"
    for words, outcome, reason in RAISED:
        if words in text:
            return outcome, reason
    return "error", f"{step}_raised_{type(exc).__name__.lower()}"
