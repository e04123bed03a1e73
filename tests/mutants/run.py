"""Break the code on purpose, one line at a time, and see that the test named beside it fails.

    python -m tests.mutants.run [PART ...]

`mutants.toml` lists the mutants. Each is run in a process of its own, which imports the changed
module from memory: no file is written. One JSON line a mutant and one at the end; the exit status
is 1 if a mutant survived. PART picks the mutants whose file or test contains it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Literal

import pytest
from typing_extensions import override

ROOT = pathlib.Path(__file__).parents[2]
LIST = pathlib.Path(__file__).parent / "mutants.toml"
SOURCES = ("controller", "agents")
"""Folders on the path of imports."""

IMPORTED_ANEW = ("smgate", "smgate_agent", "tests")
"""Packages that a mutant may be in or have been imported by, whatever its parent had imported."""

Result = Literal["killed", "survived", "broken"]
"""`broken`: the test could not even be collected, which shows nothing about the test."""

RESULTS: dict[int, Result] = {
    int(pytest.ExitCode.TESTS_FAILED): "killed",
    int(pytest.ExitCode.OK): "survived",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong line: in `file`, `before` (which stands there once) becomes `after`."""

    file: str
    before: str
    after: str
    killed_by: str
    """The test that must fail, as pytest names it."""

    @property
    def module(self) -> str:
        """The changed module's import name."""
        folder = next(one for one in SOURCES if self.file.startswith(f"{one}/"))
        return self.file.removeprefix(f"{folder}/").removesuffix(".py").replace("/", ".")

    def source(self) -> str:
        """The file's text with the line changed.

        Raises:
            ValueError: `before` does not stand in the file exactly once, or is no part of one line.
        """
        text = (ROOT / self.file).read_text(encoding="utf-8")
        if text.count(self.before) != 1 or "\n" in self.before + self.after:
            times = text.count(self.before)
            raise ValueError(f"{self.file}: {self.before!r} stands there {times} times, not once")
        return text.replace(self.before, self.after)


class _Changed(MetaPathFinder):
    """Finds one module in memory, before anything looks for its file."""

    def __init__(self, module: str, path: pathlib.Path, source: str) -> None:
        self._module = module
        self._loader = _Loader(module, str(path), source.encode())

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._loader.path, loader=self._loader
        )


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the text it was given, and neither reads nor leaves a cached file."""

    def __init__(self, module: str, path: str, source: bytes) -> None:
        super().__init__(module, path)
        self._source = source

    @override
    def get_code(self, fullname: str) -> object:
        return compile(self._source, self.path, "exec", dont_inherit=True)


def read(parts: Sequence[str] = ()) -> list[Mutant]:
    """The listed mutants whose file or test contains one of `parts`; all if there are none."""
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]
    found = [Mutant(**entry) for entry in listed]
    return [
        one for one in found if not parts or any(p in f"{one.file} {one.killed_by}" for p in parts)
    ]


def run_test(test: str, mutant: Mutant | None) -> int:
    """Pytest's exit status for one test, in a process of its own, with or without the mutant."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        # Of the run around this one; processes of pytest-xdist would be without the mutant.
        os.environ.pop("PYTEST_ADDOPTS", None)
        for name in [one for one in sys.modules if one.partition(".")[0] in IMPORTED_ANEW]:
            del sys.modules[name]
        if mutant is not None:
            changed = _Changed(mutant.module, ROOT / mutant.file, mutant.source())
            sys.meta_path.insert(0, changed)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            status = int(pytest.main([test, "-x", "-q", "-p", "no:cacheprovider"]))
    finally:
        os._exit(status)


def judge(mutant: Mutant) -> Result:
    """What became of one mutant.

    Raises:
        ValueError: its line is not there (once), or its test does not pass without it.
    """
    mutant.source()
    return RESULTS.get(run_test(mutant.killed_by, mutant), "broken")


def main(parts: Sequence[str]) -> int:
    """Run the mutants and say what became of each. 1 if one was not killed, or proves nothing."""
    os.chdir(ROOT)
    mutants = read(parts)
    unsound = [
        test
        for test in sorted({one.killed_by for one in mutants})
        if run_test(test, None) != int(pytest.ExitCode.OK)
    ]
    for test in unsound:
        print(json.dumps({"test": test, "error": "does not pass on the code as it is"}))
    counts: dict[Result, int] = {"killed": 0, "survived": 0, "broken": 0}
    for mutant in mutants:
        result = judge(mutant)
        counts[result] += 1
        line = {"result": result, "file": mutant.file, "after": mutant.after.strip()}
        print(json.dumps({**line, "test": mutant.killed_by}), flush=True)
    print(json.dumps({"mutants": len(mutants), **counts}))
    return int(bool(unsound) or counts["killed"] < len(mutants) or not mutants)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
