"""A FlashInfer with its packages of kernels, small: files alone, nothing in it can be imported.

Entries of the list of kernels are those of FlashInfer's own package 0.6.13
(`tests/fixtures/flashinfer/0.6.13`), said to be for the architecture and activation a test needs.
"""

import hashlib
import pathlib
import struct

FIXTURE = pathlib.Path(__file__).resolve().parents[1] / "fixtures/flashinfer/0.6.13"
PIN = "8ee504560a86b6c72b8c941d3003e8fb1804b1b6/batched_gemm-fdba669-16ba8ed"
VERSION = "0.7.2.post1"
HEADER = "include/flashinferMetaInfo.h"
ENUMS = "include/trtllmGen_bmm_export/GemmGatedActOptions.h"
CUBIN_START = bytes.fromhex(
    "7f454c460201014108000000000000000200be00010000000000000000000000d8390100000000"
    "00d82f01000000000002640006400038000600400028000100"
)
"""The ELF header of one of its kernels, for sm_100f."""
SITU = 2
ENUM_TEXT = "enum class ActType {\n  // a comment {\n  SwiGlu,\n  GeGlu,\n  SiTuGlu,\n  None,\n};\n"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def cubin(arch, content=b"code"):
    """A kernel for `sm_<arch>`."""
    start = bytearray(CUBIN_START)
    struct.pack_into("<I", start, 48, 0x06000002 | arch << 8)
    return bytes(start) + content


def entries(text):
    """The entries of a list of kernels, as text."""
    body = text[text.index("{nullptr") : text.index("#endif // EXCLUDE_SM_100")]
    return ["{nullptr" + part for part in body.split("{nullptr")[1:]]


REAL = (FIXTURE / "flashinferMetaInfo.h").read_text()
FC1, FC2, OTHER = entries(REAL)
OF_SITU = FC1.replace("swiGlu", "siTuGlu").replace("Act::ActType(0)", f"Act::ActType({SITU})")


class Tree:
    """A site-packages with FlashInfer, one store of kernels, and the rest a test adds."""

    def __init__(self, root, *, arch="107a", store="package", version=VERSION):
        self.site, self.home = root / "site", root / "home"
        self.kernels = {}
        self.enum_text = ENUM_TEXT
        self.arch = arch
        self.entries = []
        self.add(OF_SITU)
        self.add(FC2)
        self.store = self.place(store, root)
        self.home.mkdir(parents=True, exist_ok=True)
        self.package("flashinfer", version)
        if store == "package":
            self.package("flashinfer_cubin", version)

    def place(self, store, root):
        return {
            "package": self.site / "flashinfer_cubin" / "cubins",
            "cache": self.home / ".cache" / "flashinfer" / "cubins",
            "env": root / "staged",
        }[store]

    def package(self, name, version):
        folder = self.site / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
        (folder / "_build_meta.py").write_text(f'__version__ = "{version}"\n')

    def distribution(self, name, version):
        folder = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )

    def add(self, entry, *, elf=None):
        """An entry of the list and its kernel."""
        number = int(self.arch.rstrip("af"))
        data = cubin(elf or number, entry[40:60].encode())
        name = entry.split('"')[1].rpartition("_")[0] + f"_sm{self.arch}"
        entry = entry.replace(entry.split('"')[1], name).replace(entry.split('"')[3], sha256(data))
        entry = entry.replace("Sm100f", f"Sm{self.arch}").replace("Sm103a", f"Sm{self.arch}")
        self.entries.append(entry)
        self.kernels["B" + name[1:] + ".cubin"] = data

    def header(self):
        start = REAL[: REAL.index("{nullptr")].replace(
            "ListLen = 3", f"ListLen = {len(self.entries)}"
        )
        return start + "".join(self.entries) + REAL[REAL.index("#endif // EXCLUDE_SM_100") :]

    def write(self, *, header=None, checksums=None, folder=None, pin=True):
        """Write the store, and pin it in FlashInfer's `artifacts.py`."""
        folder = (folder or self.store) / PIN
        texts = {HEADER: (header or self.header()).encode(), ENUMS: self.enum_text.encode()}
        files = {**self.kernels, **texts}
        lines = "".join(f"{sha256(data)}  {name}\n" for name, data in files.items())
        sums = (checksums or lines).encode()
        for name, data in {**files, "checksums.txt": sums}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        if pin:
            self.pin(sha256(sums))
        return self

    def pin(self, digest, extra=""):
        (self.site / "flashinfer" / "artifacts.py").write_text(
            "import requests\n\n"
            f"class ArtifactPath:\n    TRTLLM_GEN_BMM: str = (\n        '{PIN}/'\n    )\n"
            f"class CheckSumHash:\n    TRTLLM_GEN_BMM: str = '{digest}'\n{extra}"
        )

    def kernel(self, start):
        """The path of the first kernel whose name begins so."""
        name = next(name for name in self.kernels if name.startswith(start))
        return self.store / PIN / name
