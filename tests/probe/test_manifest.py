"""FlashInfer's own files are read as they are."""

from tests.probe import cubins

from smgate_agent.probe import elf, manifest


def test_excerpts_of_a_real_package_are_read_as_they_are():
    found = manifest.kernels((cubins.FIXTURE / "flashinferMetaInfo.h").read_text())
    sums = manifest.checksums((cubins.FIXTURE / "checksums.txt").read_text())
    enum = manifest.activations((cubins.FIXTURE / "GemmGatedActOptions.h").read_text())
    assert enum == {"SwiGlu": 0, "GeGlu": 1, "None": 2}
    assert [(kernel.arch, sums[kernel.file] == kernel.sha256) for kernel in found] == [
        ("Sm100f", True), ("Sm100f", True), ("Sm103a", True),
    ]  # fmt: skip
    for number, gemm in enumerate(manifest.GEMMS):
        usable = manifest.usable(found, gemm, archs=("Sm100f",), activation=enum["SwiGlu"])
        assert usable == [found[number]]


def test_the_architecture_is_read_off_real_headers():
    assert elf.cubin_sm(cubins.CUBIN_START) == 100
    of_103 = bytes.fromhex(
        "7f454c460201014108000000000000000200be00010000000000000000000000000000000000"
        "000040000000000000000c67000f400038000000400017000200"
    )
    assert elf.cubin_sm(of_103) == 103
    assert elf.cubin_sm(elf.with_sm(of_103, 107)) == 107
    older = of_103[:8] + b"\x07" + of_103[9:48] + bytes.fromhex("5a055a00") + of_103[52:]
    assert elf.cubin_sm(older) == 90
    of_the_host = older[:18] + b"\x3e\x00" + older[20:]
    assert elf.cubin_sm(of_the_host) is None
