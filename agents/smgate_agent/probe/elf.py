"""The GPU architecture that a cubin was compiled for, as its ELF header says.

A file's name is what somebody called it; `e_flags` is what the compiler wrote.
"""

from __future__ import annotations

import struct

HEADER_BYTES = 64
IDENT = b"\x7fELF\x02\x01\x01"
"""64 bit, little endian, version 1."""
MACHINE_CUDA = 190
ABI_WITH_ARCH_IN_SECOND_BYTE = 8
"""CUDA 12.8 began it: read off FlashInfer's own cubins, 0x64 for sm_100 and 0x67 for sm_103."""
ABI_AT, MACHINE_AT, FLAGS_AT = 8, 18, 48


def cubin_sm(data: bytes) -> int | None:
    """103 for a cubin of sm_103a; None for what is no cubin."""
    if len(data) < HEADER_BYTES or not data.startswith(IDENT):
        return None
    (machine,) = struct.unpack_from("<H", data, MACHINE_AT)
    (flags,) = struct.unpack_from("<I", data, FLAGS_AT)
    if machine != MACHINE_CUDA:
        return None
    shift = 8 if data[ABI_AT] >= ABI_WITH_ARCH_IN_SECOND_BYTE else 0
    return int(flags >> shift & 0xFF) or None


def with_sm(data: bytes, sm: int) -> bytes:
    """The same cubin, said to be for another architecture: what a control shows the check."""
    (flags,) = struct.unpack_from("<I", data, FLAGS_AT)
    shift = 8 if data[ABI_AT] >= ABI_WITH_ARCH_IN_SECOND_BYTE else 0
    flags = flags & ~(0xFF << shift) | sm << shift
    return data[:FLAGS_AT] + struct.pack("<I", flags) + data[FLAGS_AT + 4 :]
