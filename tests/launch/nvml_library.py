"""Writes a `libnvidia-ml.so.1` for x86-64 that shows the GPUs a test asks for.

The gate loads the driver's library by name, so a machine without a GPU needs a library that
answers. Each function is a few instructions over a table of records; no compiler is needed.
"""

import struct

RECORD = 256
TEXT_FIELD = 96
SM_AT, MEMORY_AT, STATUS_AT, MIG_AT, PROCESSES_AT = 192, 200, 208, 212, 216
USED_AT = 224
DATA_AT = 0x1000
NAME = "libnvidia-ml.so.1"

RETURN_OK = bytes.fromhex("31c0 c3")  # xor eax,eax; ret
COPY_TEXT = b"\xb9" + struct.pack("<I", TEXT_FIELD) + bytes.fromhex("f3a4")  # rep movsb
HANDLE_FIRST = bytes.fromhex("4889f8 4889f7 4889c6")  # rdi, rsi = rsi, rdi
HANG = bytes.fromhex("ebfe")  # jump to itself
CRASH = bytes.fromhex("0f0b")  # ud2


def _at(offset):
    return struct.pack("<I", offset)


def _functions(count, start, cuda):
    """Machine code by function name; `start` answers nvmlInit_v2."""
    return {
        "nvmlInit_v2": lambda _: start,
        "nvmlDeviceGetCount_v2": lambda _: b"\xc7\x07" + _at(count) + RETURN_OK,
        "nvmlDeviceGetHandleByIndex_v2": lambda place: (
            bytes.fromhex("89f8 48c1e008 488d0d")  # eax = edi; rax <<= 8; lea rcx,[rip+table]
            + struct.pack("<i", DATA_AT - (place + 13))
            + bytes.fromhex("4801c8 488906")
            + RETURN_OK
        ),
        "nvmlDeviceGetUUID": lambda _: HANDLE_FIRST + COPY_TEXT + RETURN_OK,
        "nvmlDeviceGetName": lambda _: (
            HANDLE_FIRST + bytes.fromhex("4883c660") + COPY_TEXT + RETURN_OK
        ),
        "nvmlDeviceGetCudaComputeCapability": lambda _: (
            b"\x8b\x87" + _at(SM_AT) + b"\x89\x06"
            b"\x8b\x87" + _at(SM_AT + 4) + b"\x89\x02"
            b"\x8b\x87" + _at(STATUS_AT) + b"\xc3"
        ),
        "nvmlDeviceGetMemoryInfo": lambda _: (
            b"\x48\x8b\x87" + _at(MEMORY_AT) + bytes.fromhex("488906") + RETURN_OK
        ),
        "nvmlSystemGetCudaDriverVersion_v2": lambda _: b"\xc7\x07" + _at(cuda) + RETURN_OK,
        "nvmlDeviceGetMigMode": lambda _: (
            b"\x8b\x87" + _at(MIG_AT) + bytes.fromhex("8906 8902") + RETURN_OK
        ),
        "nvmlDeviceGetComputeRunningProcesses_v3": lambda _: (
            b"\x8b\x87"
            + _at(PROCESSES_AT)
            + bytes.fromhex("8906 85c0 7406 b807000000 c3")
            # too small, unless there are none
            + RETURN_OK
        ),
        "nvmlDeviceGetMemoryInfo_v2": lambda _: (
            b"\x48\x8b\x87" + _at(USED_AT) + bytes.fromhex("48894620") + RETURN_OK
        ),
        "nvmlSystemGetDriverVersion": lambda place: (
            bytes.fromhex("488d35")
            + struct.pack("<i", DATA_AT + count * RECORD - (place + 7))
            + COPY_TEXT
            + RETURN_OK
        ),
    }


def _table(gpus, driver):
    table = b""
    for gpu in gpus:
        major, minor = (int(part) for part in (gpu["sm"] or "0.0").split("."))
        record = gpu["uuid"].encode().ljust(TEXT_FIELD, b"\0")
        record += gpu.get("name", "NVIDIA R200").encode().ljust(TEXT_FIELD, b"\0")
        status = 0 if gpu["sm"] else 15
        mig, processes = gpu.get("mig", 0), gpu.get("processes", 0)
        record += struct.pack(
            "<iiQiiiiQ", major, minor, 288 << 30, status, mig, processes, 0, gpu.get("used", 0)
        )
        table += record.ljust(RECORD, b"\0")
    return table + driver.encode().ljust(TEXT_FIELD, b"\0")


def write(folder, gpus, *, driver="595.10.02", start=RETURN_OK, cuda=13040):
    """Write the library into `folder`, which then goes into LD_LIBRARY_PATH."""
    text_at = 64 + 4 * 56
    text, symbols, strings = b"", [], b"\0"
    for name, code in _functions(len(gpus), start, cuda).items():
        place = text_at + len(text)
        symbols.append((len(strings), place))
        strings += name.encode() + b"\0"
        text += code(place)
    assert text_at + len(text) <= DATA_AT
    table = _table(gpus, driver)
    dynsym_at = DATA_AT + len(table)
    dynsym = b"\0" * 24 + b"".join(
        struct.pack("<IBBHQQ", name, 0x12, 0, 1, value, 16) for name, value in symbols
    )
    dynstr_at = dynsym_at + len(dynsym)
    count = len(symbols) + 1
    chain = struct.pack(f"<III{count}I", 1, count, 1, 0, *range(2, count), 0)
    hash_at = (dynstr_at + len(strings) + 7) & ~7
    dynamic_at = (hash_at + len(chain) + 15) & ~15
    entries = [(4, hash_at), (5, dynstr_at), (6, dynsym_at), (10, len(strings)), (11, 24), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in entries)
    end = dynamic_at + len(dynamic)
    segments = [
        (1, 5, 0, DATA_AT),  # load: headers and code
        (1, 6, DATA_AT, end - DATA_AT),  # load: tables
        (2, 6, dynamic_at, len(dynamic)),  # dynamic
        (0x6474E551, 6, 0, 0),  # no executable stack
    ]
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 0, 0, 0)
    for kind, permissions, offset, size in segments:
        header += struct.pack(
            "<IIQQQQQQ", kind, permissions, offset, offset, offset, size, size, 0x1000
        )
    body = (header + text).ljust(DATA_AT, b"\0") + table + dynsym + strings
    body = body.ljust(hash_at, b"\0") + chain
    body = body.ljust(dynamic_at, b"\0") + dynamic
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(body)
    return folder
