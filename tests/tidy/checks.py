"""Checks of the repository itself that no linter has. Each returns what is wrong, one line each.

The words that must not stand in any file are put together from pieces here, because this file is
checked too.
"""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Hashable, Iterator
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).parents[2]
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

NOT_OURS = {
    "__pycache__",
    "build",
    "dist",
    "node_modules",
}
"""Folders that tools make. Those whose name begins with a dot are left out too, but for `.ci`."""

MARKERS = tuple(
    "".join(pieces) for pieces in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK"))
)
HOST_PATHS = tuple(
    "".join(pieces)
    for pieces in (
        ("/ro", "ot/"),
        ("/wo", "rk/"),
        ("/ho", "me/"),
        ("/Us", "ers/"),
    )
)
FROZEN = {"frozen": True, "slots": True, "kw_only": True}


def files(*suffixes: str, under: str = ".") -> list[pathlib.Path]:
    """Our files with these suffixes (none given: all), as paths relative to the root."""
    return sorted(path for path in _walk(ROOT / under) if not suffixes or path.suffix in suffixes)


def _walk(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    for entry in folder.iterdir():
        hidden = entry.name.startswith(".") and entry.name != ".ci"
        if entry.is_dir():
            if not hidden and entry.name not in NOT_OURS and not entry.name.endswith(".egg-info"):
                yield from _walk(entry)
        elif entry.name != ".git":  # in a worktree of git that is a file
            yield entry.relative_to(ROOT)


def module_problems(source: str) -> list[str]:
    """A module is short and says what it owns; a function fits on a screen."""
    tree = ast.parse(source)
    found = []
    lines = source.count("\n")
    if lines > MODULE_LINES_MAX:
        found.append(f"{lines} lines, at most {MODULE_LINES_MAX}: split it by idea")
    if tree.body and not ast.get_docstring(tree):
        found.append("no docstring: say what this module owns")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            if length >= FUNCTION_LINES_MAX:
                found.append(f"{node.name}: {length} lines, below {FUNCTION_LINES_MAX}")
    return found


def left_over_problems(text: str) -> list[str]:
    """No marker of unfinished work and no path of somebody's machine."""
    marker = re.compile(r"\b(" + "|".join(MARKERS) + r")\b")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        found += [f"line {number}: {word}" for word in marker.findall(line)]
        found += [f"line {number}: {path}" for path in HOST_PATHS if path in line]
    return found


def dataclass_problems(source: str) -> list[str]:
    """Every class is a dataclass that is frozen, has slots and takes keywords only."""
    found = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        given = {
            keyword.arg: ast.literal_eval(keyword.value)
            for decorator in node.decorator_list
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "dataclass"
            for keyword in decorator.keywords
        }
        if given != FROZEN:
            found.append(f"{node.name}: dataclass({given}), not {FROZEN}")
    return found


def suite_problems(source: str) -> list[str]:
    """A test skips only through `tests/skips.py`, and our own code is never patched."""
    skips = {"skip", "skipif", "importorskip", "skipTest", "skipIf", "skipUnless", "SkipTest"}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in skips:
            found.append(f"line {node.lineno}: {ast.unparse(node)}: use tests/skips.py")
        named = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import | ast.ImportFrom)
            else []
        )
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if "mock" in {*module.split("."), *(part for name in named for part in name.split("."))}:
            found.append(f"line {node.lineno}: mock: pass a fake through the port")
        if module in {"pytest", "unittest"} and skips & set(named):
            found.append(f"line {node.lineno}: {', '.join(named)}: use tests/skips.py")
    return found


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice; plain YAML keeps the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in own]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"{key!r} stands twice{node.start_mark}")
        return super().construct_mapping(node, deep)


def yaml_problems(text: str) -> list[str]:
    """A YAML file can be read, and no key stands twice in one mapping."""
    try:
        list(yaml.load_all(text, Loader=_StrictLoader))  # a subclass of SafeLoader
    except yaml.YAMLError as exc:
        return [" ".join(str(exc).split())]
    return []


def link_problems(text: str, folder: pathlib.Path) -> list[str]:
    """Every relative link of a page leads to a file, and its fragment to a heading there."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _without_code(text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = (folder / name).resolve() if name else None
        if target is not None and not target.exists():
            found.append(f"{link}: there is no {name}")
            continue
        page = (
            text
            if target is None
            else target.read_text(encoding="utf-8")
            if target.suffix == ".md"
            else ""
        )
        if fragment and fragment not in headings(page):
            found.append(f"{link}: no heading #{fragment}")
    return found


def headings(page: str) -> set[str]:
    """The fragments of a page's headings, made as the usual viewers make them."""
    titles = re.findall(r"^#+\s+(.+?)\s*$", _without_code(page, inline=False), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def make_problems(text: str, targets: set[str]) -> list[str]:
    """Every `make TARGET` that a page names is a target of the Makefile."""
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    named = re.findall(r"(?:^|[`\s$;&])make ([a-z][a-z-]*)", code)
    return [f"make {name}: no such target" for name in named if name not in targets]


def make_targets(makefile: str) -> set[str]:
    """The targets of a Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))


def _without_code(text: str, *, inline: bool = True) -> str:
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text) if inline else text
