"""Which kernels FlashInfer would load, and whether they are the pinned ones for this SM."""

import pytest
from tests.probe import cubins

from smgate_agent.launch import shapes
from smgate_agent.probe import artifact, stores

SM107 = {"sm": "10.7"}


def ran(launch=SM107):
    answer = artifact.run(launch)
    assert shapes.fits(shapes.CODE, answer["reason"]), "the wire takes it"
    return answer["outcome"], answer["reason"]


def files(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


@pytest.mark.parametrize("store", ["package", "cache", "env"])
def test_pinned_kernels_pass_wherever_they_lie(tree, store):
    tree(store=store).write()
    answer = artifact.run(SM107)
    assert (answer["outcome"], answer["reason"]) == ("passed", f"kernels_pinned:{store}")
    assert answer["negative_control"] == "caught"
    assert answer["numbers"] == {
        "files_listed": 4, "fc1.kernels": 1, "fc1.here": 1, "fc2.kernels": 1, "fc2.here": 1,
    }  # fmt: skip


def test_the_check_reads_and_does_nothing_else(tree, tmp_path, no_network):
    tree(store="cache").write()
    before = files(tmp_path)
    assert ran()[0] == "passed"
    assert files(tmp_path) == before


def test_nothing_is_made_where_nothing_is(tree, tmp_path, no_network):
    made = tree(store="cache")
    made.pin("0" * 64)
    before = files(tmp_path)
    assert ran() == ("skipped", "manifest_not_here:cache")
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", artifact.DISQUALIFYING_ENV)
@pytest.mark.parametrize("value", ["1", "0"])
def test_each_disqualifying_variable_has_its_own_reason(tree, monkeypatch, name, value):
    """FlashInfer asks whether the text is empty: "0" switches its checksums off as "1" does."""
    tree().write()
    monkeypatch.setenv(name, value)
    assert ran() == ("failed", f"env:{name.lower()}")
    monkeypatch.setenv(name, "")
    assert ran()[0] == "passed"


@pytest.mark.parametrize("sm", ["9.0", "11.0", "12.0", "8.0", "10.1"])
def test_an_sm_that_loads_none_of_them_is_skipped(tree, sm):
    tree().write()
    assert ran({"sm": sm}) == ("skipped", f"sm_uses_no_cubins:{sm}")


def test_an_unknown_sm_is_skipped(tree):
    tree().write()
    assert ran({}) == ("skipped", "sm_unknown")


@pytest.mark.parametrize(("sm", "arch"), [("10.0", "100f"), ("10.3", "100f"), ("10.3", "103a"), ("10.7", "107a"), ("10.0", "100a")])  # fmt: skip
def test_an_sm_takes_kernels_of_its_own(tree, sm, arch):
    tree(arch=arch).write()
    assert ran({"sm": sm})[0] == "passed"


@pytest.mark.parametrize(("sm", "arch"), [("10.7", "100f"), ("10.7", "103a"), ("10.0", "103a"), ("10.0", "107a"), ("10.3", "100a")])  # fmt: skip
def test_an_sm_takes_none_of_another(tree, sm, arch):
    """SM107 would run sm_100f; FlashInfer does not let it, so a list of those alone serves nobody."""
    tree(arch=arch).write()
    assert ran({"sm": sm}) == ("failed", f"no_kernel_for_sm:{sm}")


# What is missing, and what that means: FlashInfer fetches into a cache, never into a package.


def test_without_flashinfer_there_is_nothing_to_check(tree):
    made = tree()
    (made.site / "flashinfer" / "__init__.py").unlink()
    (made.site / "flashinfer").rename(made.site / "other")
    assert ran() == ("error", "flashinfer_missing")


def test_a_flashinfer_of_no_version_is_an_error(tree):
    made = tree()
    (made.site / "flashinfer" / "_build_meta.py").unlink()
    assert ran() == ("error", "flashinfer_version_unknown")


@pytest.mark.parametrize("text", ["", "class ArtifactPath: pass", "def (", "\0", None])
def test_a_flashinfer_without_pins_is_an_error(tree, text):
    made = tree().write()
    path = made.site / "flashinfer" / "artifacts.py"
    path.unlink() if text is None else path.write_text(text)
    assert ran() == ("error", "pins_unreadable")


def test_a_pin_that_leads_elsewhere_is_not_followed(tree):
    made = tree().write()
    path = made.site / "flashinfer" / "artifacts.py"
    path.write_text(path.read_text().replace(cubins.PIN, "../.."))
    assert ran() == ("error", "pins_unreadable")


MISSING = {
    "manifest": ("checksums.txt", "manifest"),
    "list": (cubins.HEADER, "header"),
    "enum": (cubins.ENUMS, "header"),
    "first product": ("Bmm_MxE4m3", "cubin_fc1"),
    "second product": ("Bmm_Bfloat16", "cubin_fc2"),
}


@pytest.mark.parametrize("store", ["package", "cache", "env"])
@pytest.mark.parametrize(("start", "what"), MISSING.values(), ids=MISSING)
def test_what_is_not_here_is_a_failure_only_where_nothing_is_fetched(
    tree, monkeypatch, store, start, what
):
    made = tree(store=store).write()
    folder = made.store / cubins.PIN
    path = made.kernel(start) if start.startswith("Bmm") else folder / start
    path.unlink()
    expected = (
        ("failed", f"{what}_missing") if store == "package" else ("skipped", f"{what}_not_here")
    )
    assert ran() == (expected[0], f"{expected[1]}:{store}")
    monkeypatch.setenv("FLASHINFER_NO_DOWNLOAD", "1")
    assert ran() == ("failed", f"{what}_missing:{store}")


def test_a_cache_may_lack_kernels_that_were_never_asked_for(tree):
    made = tree(store="cache")
    made.add(cubins.OF_SITU.replace("t128x8x512u2", "t128x16x512u2"))
    made.write()
    made.kernel("Bmm_MxE4m3").unlink()
    answer = artifact.run(SM107)
    assert answer["outcome"] == "passed"
    assert (answer["numbers"]["fc1.kernels"], answer["numbers"]["fc1.here"]) == (2, 1)


def test_a_package_may_not(tree):
    made = tree()
    made.add(cubins.OF_SITU.replace("t128x8x512u2", "t128x16x512u2"))
    made.write()
    made.kernel("Bmm_MxE4m3").unlink()
    assert ran() == ("failed", "cubin_fc1_missing:package")


# Two stores.


def test_a_staged_folder_hides_the_right_package(tree, monkeypatch, tmp_path):
    made = tree().write()
    (tmp_path / "old" / "other_pin").mkdir(parents=True)
    monkeypatch.setenv("FLASHINFER_CUBIN_DIR", str(tmp_path / "old"))
    assert ran() == ("failed", "wrong_store_wins:env")
    monkeypatch.setenv("FLASHINFER_CUBIN_DIR", str(made.store))
    assert ran() == ("passed", "kernels_pinned:env")


def test_an_empty_package_hides_a_full_cache(tree):
    made = tree(store="cache").write()
    made.package("flashinfer_cubin", cubins.VERSION)
    assert ran() == ("failed", "wrong_store_wins:package")


def test_a_workspace_elsewhere_moves_the_cache(tree, monkeypatch, tmp_path):
    made = tree(store="cache").write()
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path / "work"))
    assert ran() == ("skipped", "manifest_not_here:cache")
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(made.home))
    assert ran()[0] == "passed"


# Versions.


@pytest.mark.parametrize(("version", "fits"), [
    (cubins.VERSION, True), (cubins.VERSION + "+cu130", False),
    ("0.7.2", False), ("0.6.13", False), ("0.7.2.post2", False),
])  # fmt: skip
def test_packages_of_another_version_fail(tree, version, fits):
    made = tree().write()
    made.package("flashinfer_cubin", version)
    expected = (
        ("passed", "kernels_pinned:package") if fits else ("failed", "cubin_version_mismatch")
    )
    assert ran() == expected


@pytest.mark.parametrize(
    "name", ["flashinfer-jit-cache", "flashinfer_jit_cache_sm107", "FlashInfer.JIT-cache"]
)
def test_a_jit_cache_of_another_version_fails(tree, name):
    made = tree().write()
    made.distribution(name, cubins.VERSION + "+cu130")
    assert ran()[0] == "passed"
    made.distribution(name, "0.7.1+cu130")
    assert ran() == ("failed", "jit_cache_version_mismatch")


def test_a_cubin_package_of_no_version_fails(tree):
    made = tree().write()
    (made.site / "flashinfer_cubin" / "_build_meta.py").unlink()
    assert ran() == ("failed", "cubin_version_mismatch")


# What is here must be right.


@pytest.mark.parametrize("store", ["package", "cache", "env"])
def test_other_checksums_than_the_pinned_ones_fail(tree, store):
    made = tree(store=store).write()
    path = made.store / cubins.PIN / "checksums.txt"
    path.write_text(path.read_text().replace("  Bmm", "   Bmm", 1))
    assert ran() == ("failed", f"manifest_not_pinned:{store}")


@pytest.mark.parametrize("name", [cubins.HEADER, cubins.ENUMS])
def test_another_list_than_the_one_with_that_checksum_fails(tree, name):
    made = tree().write()
    path = made.store / cubins.PIN / name
    path.write_text(path.read_text() + "\n")
    assert ran() == ("failed", "header_checksum:package")


@pytest.mark.parametrize(("start", "gemm"), [("Bmm_MxE4m3", "fc1"), ("Bmm_Bfloat16", "fc2")])
def test_a_kernel_that_was_changed_or_cut_fails(tree, start, gemm):
    path = tree().write().kernel(start)
    whole = path.read_bytes()
    for data in (whole[:-1], whole + b"\0", whole[:70] + b"X" + whole[71:], b""):
        path.write_bytes(data)
        assert ran() == ("failed", f"cubin_checksum:{gemm}")


def test_a_kernel_compiled_for_another_sm_fails_whatever_its_name_says(tree):
    """Its checksum is right: what was published is wrong."""
    made = tree()
    made.entries, made.kernels = [], {}
    made.add(cubins.OF_SITU, elf=100)
    made.add(cubins.FC2)
    made.write()
    assert ran() == ("failed", "cubin_wrong_arch:fc1")


def test_a_kernel_that_is_no_elf_fails(tree):
    made = tree()
    name = next(name for name in made.kernels if name.startswith("Bmm_Bfloat16"))
    old, made.kernels[name] = made.kernels[name], b"<html>404</html>"
    made.entries = [
        entry.replace(cubins.sha256(old), cubins.sha256(made.kernels[name]))
        for entry in made.entries
    ]
    made.write()
    assert ran() == ("failed", "cubin_no_elf:fc2")


def test_a_kernel_whose_two_checksums_differ_fails(tree):
    """FlashInfer loads by the list's checksum, so the two must agree."""
    made = tree()
    made.write(header=made.header().replace(made.entries[0].split('"')[3], "0" * 64))
    assert ran() == ("failed", "kernel_not_listed:fc1")


NOT_FOR_US = {
    "SwiGLU": ("ActType(2)", "ActType(0)"),
    "not fused": ("/* mFusedAct */ 1", "/* mFusedAct */ 0"),
    "no routing": ("RouteImpl(2)", "RouteImpl(0)"),
    "relu2": ("EltwiseActType(0)", "EltwiseActType(2)"),
    "other epilogue": ("/* mEpilogueTileM */ 128", "/* mEpilogueTileM */ 64"),
    "weights not shuffled": ("/* mUseShuffledMatrix */ 1", "/* mUseShuffledMatrix */ 0"),
    "output not transposed": ("/* mTransposeMmaOutput */ 1", "/* mTransposeMmaOutput */ 0"),
    "static batch": ("/* mIsStaticBatch */ 0", "/* mIsStaticBatch */ 1"),
    "DeepSeek FP8": ("/* mUseDeepSeekFp8 */ 0", "/* mUseDeepSeekFp8 */ 1"),
    "bias of every element": ("BiasType(1)", "BiasType(3)"),
    "other types": ("bmm_MxE4m3_MxE2m1MxE4m3", "bmm_E2m1_MxE2m1MxE4m3"),
    "a field that is gone": ("/* mFusedAct */ 1", "/* mFusedActivation */ 1"),
}


@pytest.mark.parametrize(("there", "instead"), NOT_FOR_US.values(), ids=NOT_FOR_US)
def test_a_kernel_that_flashinfer_would_pass_over_does_not_count(tree, there, instead):
    made = tree()
    assert there in made.entries[0]
    made.entries[0] = made.entries[0].replace(there, instead)
    made.write()
    assert ran() == ("failed", "kernel_missing:fc1")


def test_the_second_product_is_needed_as_well(tree):
    made = tree()
    made.entries = made.entries[:1]
    made.write()
    assert ran() == ("failed", "kernel_missing:fc2")


def test_a_package_that_does_not_know_situ_fails(tree):
    """0.6.16 and 0.6.17 accept SM107 and the enum of FlashInfer has SiTU; the kernels have not, and
    the number that FlashInfer passes means no activation at all there."""
    made = tree()
    made.enum_text = "enum class ActType { SwiGlu, GeGlu, None, };"
    made.write()
    assert ran() == ("failed", "no_situ_activation")


def test_the_packages_own_number_of_situ_counts(tree):
    made = tree()
    made.enum_text = "enum class ActType { SwiGlu = 0, None = 1, GeGlu, SiTuGlu = 7 };"
    made.write()
    assert ran() == ("failed", "kernel_missing:fc1")
    made.entries[0] = made.entries[0].replace("ActType(2)", "ActType(7)")
    made.write()
    assert ran()[0] == "passed"


def test_sm107_had_a_package_of_its_own(tree):
    """In 0.6.16 and 0.6.17, so the other one says nothing about SM107."""
    made = tree(store="cache").write()
    path = made.site / "flashinfer" / "artifacts.py"
    text = path.read_text()
    text = text.replace(
        "class CheckSumHash:", "    TRTLLM_GEN_BMM_RUBIN = 'rubin/'\nclass CheckSumHash:"
    )
    path.write_text(text + "    TRTLLM_GEN_BMM_RUBIN = '" + "1" * 64 + "'\n")
    assert ran() == ("skipped", "manifest_not_here:cache")
    assert stores.pin("10.3") == stores.Pin(cubins.PIN, stores.pin("10.3").sha256)


@pytest.mark.parametrize("text", [
    "no manifest", "0" * 64, "0" * 63 + "  a", "0" * 64 + "  ../a", "0" * 64 + "  a/../../b", "0" * 64 + "  /etc/passwd",
    "0" * 64 + "  a\n" + "1" * 64 + "  a", "\n",
])  # fmt: skip
def test_pinned_checksums_of_another_form_are_an_error(tree, text):
    tree().write(checksums=text)
    assert ran() == ("error", "manifest_unreadable:checksums")


def test_a_list_that_says_another_length_is_an_error(tree):
    made = tree()
    made.write(header=made.header().replace("ListLen = 2", "ListLen = 3"))
    assert ran() == ("error", "manifest_unreadable:kernels")


def test_a_file_too_large_to_be_one_is_not_read(tree):
    made = tree().write()
    with made.kernel("Bmm_MxE4m3").open("r+b") as stream:
        stream.truncate(stores.FILE_BYTES_MAX + 1)
    assert ran() == ("failed", "cubin_fc1_missing:package")


# The control: what nobody has must not be found.


@pytest.mark.parametrize(("there", "instead"), [
    ("Sm107a}", "Sm199a}"), ("Act::ActType(2)", "Act::ActType(199)"),
])  # fmt: skip
def test_a_check_that_finds_what_nobody_has_cannot_be_believed(tree, there, instead):
    """A kernel for no architecture, one of no activation: where they are found, so is anything."""
    made = tree()
    made.entries.append(made.entries[0].replace(there, instead))
    made.write()
    answer = artifact.run(SM107)
    assert (answer["outcome"], answer["reason"]) == ("error", "control_missed")
    assert answer["negative_control"] == "missed"
