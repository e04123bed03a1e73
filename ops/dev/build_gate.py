"""Builds `smgate-gate.pyz`: the launch gate and the probe as one file that any Python 3.10+ runs.

    python3 ops/dev/build_gate.py [OUTPUT]

Equal sources give equal bytes: names are sorted and times fixed, so an image can pin its digest.
"""

# ruff: noqa: INP001 (a script, run by path)
from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AGENTS = ROOT / "agents"
PARTS = ("smgate_agent/__init__.py", "smgate_agent/launch", "smgate_agent/probe")
OUTPUT = ROOT / "build" / "smgate-gate.pyz"
MAIN = Path(__file__).with_name("gate_main.py")
SHEBANG = b"#!/usr/bin/env python3\n"
EPOCH = (1980, 1, 1, 0, 0, 0)


def sources() -> list[Path]:
    """The files that go in."""
    found: list[Path] = []
    for part in PARTS:
        path = AGENTS / part
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def build(output: Path) -> Path:
    """Write the archive and return where it is."""
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_suffix(".part")
    with temporary.open("wb") as stream:
        stream.write(SHEBANG)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in [
                ("__main__.py", MAIN.read_text()),
                *((str(path.relative_to(AGENTS)), path.read_text()) for path in sources()),
            ]:
                entry = zipfile.ZipInfo(name, EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, text)
    temporary.chmod(0o755)
    temporary.replace(output)
    return output


if __name__ == "__main__":
    given = sys.argv[1:2]
    sys.stdout.write(f"{build(Path(given[0]).resolve() if given else OUTPUT)}\n")
