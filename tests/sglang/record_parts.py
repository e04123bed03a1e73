"""The pieces of a recorded server: a launch as SGLang resolves it, and what it logs.

Used by record_fixtures.py, in SGLang's interpreter. What is SGLang's own output here and what is a
line quoted from its source stands in tests/fixtures/sglang/README.md.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import tempfile
import time
import traceback
from pathlib import Path

import torch
import worker_machine
import worker_ops
import worker_stubs
from sglang.srt.utils import common

try:
    from sglang.srt.sampling.watermarking.core import redact_watermark_secrets
except ImportError:

    def redact_watermark_secrets(value):
        return value


STARTED_AT = 1796040000.0  # 2026-11-30 12:00:00 UTC
INSTALLED = "/usr/local/lib/python3.12/dist-packages/"

SECRETS = (
    *("--api-key", "sk-PLANTED-api-key-0001"),
    *("--admin-api-key", "sk-PLANTED-admin-key-0002"),
    *("--ssl-certfile", "tls/server.pem", "--ssl-keyfile", "tls/server.key"),
    *("--ssl-keyfile-password", "PLANTED-tls-password-0003"),
)
MODEL = "moonshotai/Kimi-K3"
REQUANTIZED = "example-org/Kimi-K3-requantized"
COMMON = (
    *(
        "--served-model-name",
        "kimi-k3",
        "--trust-remote-code",
        "--host",
        "0.0.0.0",
        "--port",
        "30000",
        "--device",
        "cuda",
    ),
    *("--random-seed", "20261130", "--mem-fraction-static", "0.85", "--context-length", "262144"),
    *("--max-running-requests", "64", "--enable-metrics", *SECRETS),
)


@contextlib.contextmanager
def model_folder(model, config):
    """A folder where this model and the certificate that COMMON names lie; made current.

    SGLang reads the config of one path once per process: another config needs another path.
    """
    before = Path.cwd()
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / model).mkdir(parents=True)
        (folder / model / "config.json").write_text(config)
        (folder / "tls").mkdir()
        (folder / "tls" / "server.pem").touch()
        (folder / "tls" / "server.key").touch()
        os.chdir(folder)
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


@dataclasses.dataclass
class Launch:
    """One launch: its arguments before resolution, where they can be had, and resolved; and what
    SGLang logged of it."""

    asked: object
    resolved: object
    said: list


def launch(*, model=MODEL, flags, sm, torch_cuda):
    """Parse and resolve with SGLang's code, on this machine."""
    argv = ["--model-path", model, *COMMON, *flags]
    with worker_machine.machine(sm=sm, torch_cuda=torch_cuda):
        asked = worker_ops.prepare_server_args(argv) if worker_machine.HAS_PLATFORM else None
        with worker_ops._logged() as said:
            resolved = worker_ops.server_args(argv)
    # What this machine lacks is not what a server with a GPU would say.
    absent = ("is not available", "nvidia-smi not found")
    lines = [line for line in said if not any(word in line for word in absent)]
    return Launch(asked=asked, resolved=resolved, said=lines)


def arguments_for_logging(arguments):
    """What stands after `server_args=` in the log, per version's own f-string."""
    if hasattr(arguments, "resolved_dict"):
        return str(redact_watermark_secrets(arguments.resolved_dict()))
    return repr(arguments)


class Log:
    """A server's log, each line in the format that SGLang's configure_logger sets, at fixed times."""

    def __init__(self, arguments):
        self._arguments = arguments
        self._lines = []

    def say(self, second, message, *, prefix="", level=logging.INFO):
        common.configure_logger(self._arguments, prefix=prefix)
        record = logging.LogRecord("sglang", level, "", 0, message, None, None)
        record.created = STARTED_AT + second
        record.msecs = 0.0
        formatter = logging.getLogger().handlers[0].formatter
        formatter.converter = time.gmtime
        self._lines.append((record.created, formatter.format(record) + "\n"))

    def text(self):
        return "".join(text for _, text in self._lines)

    def cri(self):
        """As containerd writes it: parts of at most 16,384 bytes, P until the last, which is F."""
        written = []
        for created, text in self._lines:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
            for line in text.encode().splitlines():
                parts = [line[at : at + 16384] for at in range(0, len(line), 16384)] or [b""]
                for number, part in enumerate(parts, start=1):
                    tag = "F" if number == len(parts) else "P"
                    head = f"{stamp}.{len(written):09d}Z stderr {tag} "
                    written.append(head.encode() + part + b"\n")
        return b"".join(written)


def out_of_memory(*, gpu, tried_gib, total_gib, free_gib, torch_gib):
    """PyTorch's sentence, its wording read from a real GPU."""
    used = total_gib - free_gib
    return (
        f"CUDA out of memory. Tried to allocate {tried_gib:.2f} GiB. GPU {gpu} has a total "
        f"capacity of {total_gib:.2f} GiB of which {free_gib:.2f} GiB is free. Including "
        f"non-PyTorch memory, this process has {used:.2f} GiB memory in use. Of the allocated "
        f"memory {torch_gib:.2f} GiB is allocated by PyTorch, and 1.87 MiB is reserved by PyTorch "
        "but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        "documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def upcast_traceback(text, *, sm, torch_cuda):
    """The traceback of an upcast that runs out of memory, out of SGLang's own code.

    The frames of the loader above it are left out. The paths are those of a container's installation; the one frame that is not SGLang's is the
    stand-in for triton_kernels, whose file is named as the real one is.
    """
    with worker_ops._moe_method("auto", "none", sm, torch_cuda) as method:
        config = worker_ops._k3_config(experts=2, hidden=256, intermediate=128)
        layer = worker_ops._layer(config)
        method.create_weights(layer, 2, 256, 128, torch.bfloat16)

        def upcast_from_mxfp(tensor, scale, target_dtype, axis):
            raise torch.OutOfMemoryError(text)

        with worker_stubs.upcast_replaced_by(upcast_from_mxfp):
            try:
                method.process_weights_after_loading(layer)
            except torch.OutOfMemoryError:
                lines = traceback.format_exc()
            else:
                raise AssertionError("the upcast was not reached")
    return _as_installed(lines)


def _as_installed(lines):
    """Host paths out; the tail that is this file becomes the package it stands for."""
    site = str(Path(common.__file__).parents[3]) + "/"
    kept = []
    skip = False
    for line in lines.splitlines():
        if line.startswith('  File "'):
            skip = "record_parts.py" in line and "upcast_from_mxfp" not in line
        elif not line.startswith("    "):
            skip = False
        if not skip:
            kept.append(line)
    text = "\n".join(kept) + "\n"
    stand_in = next(line for line in kept if "record_parts.py" in line)
    at = kept.index(stand_in)
    text = text.replace(
        "\n".join(kept[at : at + 2]),
        f'  File "{INSTALLED}triton_kernels/numerics_details/mxfp.py", line 130, in '
        "upcast_from_mxfp\n    out = torch.empty(out_shape, dtype=target_dtype, "
        "device=tensor.device)",
    )
    text = text.replace(site, INSTALLED)
    if "/.venv" in text:
        raise AssertionError(f"a path of this machine is left:\n{text}")
    return text
