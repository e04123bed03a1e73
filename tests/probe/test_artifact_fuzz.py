"""Damaged files are never a crash and never a pass: 300 of each kind, the same in every run."""

import random
import shutil

import pytest
from tests.probe import cubins

from smgate_agent.launch import shapes
from smgate_agent.probe import artifact, elf, manifest, stores

ROUNDS = 300
TOKENS = (b"Sm107a", b"ActType(2)", b"{nullptr", b"}, gemm::SmVersion::", b"0" * 64, b"/* m", b"\n", b"\xff", b'"', b"../", b"9" * 400, b"")  # fmt: skip


def damaged(data, dice):
    """One to three changes: bytes, a cut, a repeat, a token put in or taken away."""
    for _ in range(dice.randint(1, 3)):
        at, to = sorted((dice.randrange(len(data) + 1), dice.randrange(len(data) + 1)))
        to = min(to, at + 400)
        kind = dice.randrange(5)
        if kind == 0:
            data = data[:at] + dice.randbytes(dice.randint(1, 8)) + data[at:]
        elif kind == 1:
            data = data[:at] + data[to:]
        elif kind == 2:
            data = data[:to] + data[at:]
        elif kind == 3:
            data = data[:at] + dice.choice(TOKENS) + data[at:]
        else:
            old = dice.choice(TOKENS[:6])
            data = data.replace(old, dice.choice(TOKENS), 1)
        data = data or b"x"
    return data


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_file_of_the_store_never_passes(tree, seed):
    dice = random.Random(f"store-{seed}")
    made = tree().write()
    folder = made.store / cubins.PIN
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    assert artifact.run({"sm": "10.7"})["outcome"] == "passed"
    for _ in range(ROUNDS // 5):
        path = dice.choice(paths)
        whole = path.read_bytes()
        path.write_bytes(data := damaged(whole, dice))
        answer = artifact.run({"sm": "10.7"})
        assert shapes.fits(shapes.CODE, answer["reason"])
        assert answer["outcome"] in ("failed", "error") or data == whole, (path, answer)
        path.write_bytes(whole)


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_list_with_a_right_checksum_passes_only_with_both_kernels_in_it(tree, seed):
    """As if FlashInfer itself had published it."""
    dice = random.Random(f"list-{seed}")
    made = tree(store="cache")
    made.write()
    for _ in range(ROUNDS // 5):
        data = damaged(made.header().encode(), dice).decode(errors="replace")
        made.write(header=data)
        answer = artifact.run({"sm": "10.7"})
        assert shapes.fits(shapes.CODE, answer["reason"])
        if answer["outcome"] == "passed":
            for entry in made.entries:
                name, digest = entry.split('"')[1], entry.split('"')[3]
                assert f'"{name}"' in data
                assert digest in data
            assert data.count("}, gemm::SmVersion::Sm107a}") >= 2
            assert "Act::ActType(2)" in data


def test_damaged_pins_are_the_right_ones_or_none(tree):
    dice = random.Random("pins")
    made = tree().write()
    path = made.site / "flashinfer" / "artifacts.py"
    whole, right = path.read_bytes(), stores.pin("10.7")
    refused = 0
    for round_ in range(ROUNDS):
        path.write_bytes(damaged(whole, dice))
        found = stores.pin("10.7")
        refused += found is None
        if round_ % 10 == 0:
            assert (artifact.run({"sm": "10.7"})["outcome"] == "passed") == (found == right)
    assert 0 < refused < ROUNDS


PARSERS = {
    "checksums": (manifest.checksums, "checksums.txt"),
    "kernels": (manifest.kernels, "flashinferMetaInfo.h"),
    "activations": (manifest.activations, "GemmGatedActOptions.h"),
}


@pytest.mark.parametrize(("parse", "file"), PARSERS.values(), ids=PARSERS)
def test_a_parser_refuses_or_reads_and_does_nothing_else(parse, file):
    dice = random.Random(file)
    whole = (cubins.FIXTURE / file).read_bytes()
    refused = 0
    for _ in range(ROUNDS):
        try:
            found = parse(damaged(whole, dice).decode(errors="replace"))
        except manifest.MalformedError:
            refused += 1
        else:
            assert found
    assert 0 < refused < ROUNDS


def test_an_elf_header_of_any_bytes_is_a_number_or_none():
    dice = random.Random("elf")
    seen = set()
    for round_ in range(ROUNDS):
        data = (
            damaged(cubins.cubin(107), dice) if round_ % 2 else dice.randbytes(dice.randrange(90))
        )
        seen.add(elf.cubin_sm(data))
    assert None in seen
    assert 107 in seen
    assert all(value is None or 0 < value < 256 for value in seen)


def test_folders_and_links_in_place_of_files_never_pass(tree):
    made = tree().write()
    for path in sorted((made.store / cubins.PIN).rglob("*")):
        if not path.is_file():
            continue
        whole = path.read_bytes()
        path.unlink()
        path.mkdir()
        assert artifact.run({"sm": "10.7"})["outcome"] == "failed"
        path.rmdir()
        path.symlink_to(path)
        assert artifact.run({"sm": "10.7"})["outcome"] == "failed"
        path.unlink()
        path.write_bytes(whole)
    shutil.rmtree(made.store)
    made.store.symlink_to(made.store)
    assert artifact.run({"sm": "10.7"})["outcome"] == "failed"
