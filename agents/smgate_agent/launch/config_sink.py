"""Writes the file for SGLang's `--config`: the operator's own YAML and the override behind it.

For launches whose command nobody can put a gate in front of. The text of the base is kept as it is,
comments too; one line is added. Where it is not plain that this line will be a key of the root, the
base is refused: a wrong file would stop a server.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from smgate_agent.launch import flags, whole_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smgate_agent.launch.command import Command

KEY = "moe-runner-backend"
BASE_OPTION, FILE_OPTION = "--base-config", "--write-config"
BASE_BYTES_MAX = 1 << 20

_KEY_LINE = re.compile(
    r"(?P<indent> *)(?P<quote>['\"]?)(?P<key>[A-Za-z0-9_.-]+)(?P=quote) *:(?: +(?P<value>.*))?"
)
_VALUE = re.compile(r"[0-9a-z_]{1,40}")
_PLAIN = re.compile(r"[^'\"\[\]{}&*!|>%@`#,?:-].*|-?[0-9.]+|")
_CLOSED = re.compile(r"'[^']*'|\"[^\"\\]*\"|\[[^\[\]{}'\"#]*\]|\{[^\[\]{}'\"#]*\}")
_BLOCK = re.compile(r"[|>][+-]?[1-9]?[+-]?")
_COMMENT = re.compile(r" +#.*$")


class RefusedError(Exception):
    """The file is not written. `code` is stable."""

    def __init__(self, code: str, sentence: str, next_step: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.next_step = next_step


def render(base: bytes, value: str | None) -> bytes:
    """The base with the override; the base itself where there is none.

    Raises:
        RefusedError: it sets the key already, or what the added line would mean is not plain.
    """
    if value is None:
        return base
    if not _VALUE.fullmatch(value):
        raise _unclear("The value is no runner's name")
    try:
        text = base.decode("utf-8")
    except UnicodeDecodeError:
        raise _unclear("It is not UTF-8") from None
    indent = _root_indent(text)
    if base and not base.endswith(b"\n"):
        if text.splitlines()[-1].startswith((f"{indent} ", f"{indent}- ")):
            raise _unclear("Its last line belongs to a value and has no end")
        base += b"\n"
    return base + f"{indent}{KEY}: {value}\n".encode()


def write(path: Path, data: bytes, *, like: Path) -> Path:
    """Replace the file, or the one that a link of this name points to; what was written to.

    The file keeps its mode; a new one gets that of `like`, the base.

    Raises:
        RefusedError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    if target == Path(os.path.realpath(like)):
        raise RefusedError(
            "sink_is_base",
            "The file to write is the base itself.",
            "Name another file, and that one in --config.",
        )
    try:
        mode = (target if target.exists() else like).stat().st_mode & 0o777
        whole_file.replace(target, data, mode=mode)
    except OSError as exc:
        if exc.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise RefusedError(
                "sink_read_only",
                f"The folder {target.parent} cannot be written ({errno.errorcode[exc.errno]}).",
                "Mount a folder that can be written; a single mounted file cannot be replaced.",
            ) from None
        name = errno.errorcode.get(exc.errno or 0, "unknown")
        raise RefusedError(
            "sink_unwritable",
            f"{target} cannot be written ({name}).",
            "Make room or make the folder; the next start writes it.",
        ) from None
    return target


def put(
    value: str | None, *, base: Path, path: Path, command: Command | None
) -> tuple[str | None, str | None]:
    """Write the file; the value that is in it, and why it is not the one that was wanted.

    Whatever is refused, the file has the base's content where that is possible: a server must find
    a file, and no earlier override in it.
    """
    code = None
    if value is not None and not _is_named(path, command):
        value, code = None, "config_not_named"
    elif value is not None and command is not None and "runner" in _typed(command):
        value, code = None, "override_defeated"
    try:
        data = read_base(base)
        try:
            made = render(data, value)
        except RefusedError as exc:
            value, code, made = None, exc.code, data
        write(path, made, like=base)
    except RefusedError as exc:
        return None, exc.code
    return value, code


def lay_base(arguments: Sequence[str]) -> None:
    """Have the base's content in the file before anything else can go wrong. Never raises.

    Whatever becomes of the gate then, and whatever is wrong with its other options, the server finds
    a file and no earlier override in it.
    """
    found = {BASE_OPTION: "", FILE_OPTION: ""}
    for position, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option in found:
            found[option] = value if equals else "".join(arguments[position + 1 : position + 2])
    if all(found.values()):
        with contextlib.suppress(Exception):
            put(None, base=Path(found[BASE_OPTION]), path=Path(found[FILE_OPTION]), command=None)


def _typed(command: Command) -> dict[str, str]:
    return flags.values(flags.without_config(command.tokens))


def _is_named(path: Path, command: Command | None) -> bool:
    """Does this command read the file that is written?"""
    named = flags.config_use(command.tokens).paths if command is not None else ()
    wanted = os.path.realpath(path)
    return len(named) == 1 and named[0] is not None and os.path.realpath(named[0]) == wanted


def read_base(path: Path) -> bytes:
    """The operator's file.

    Raises:
        RefusedError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(BASE_BYTES_MAX + 1)
    except OSError as exc:
        name = errno.errorcode.get(exc.errno or 0, "unknown")
        raise RefusedError(
            "base_unreadable", f"The base {path} cannot be read ({name}).", "Name the right file."
        ) from None
    if len(data) > BASE_BYTES_MAX:
        raise _unclear("It is larger than a configuration")
    return data


def _unclear(why: str) -> RefusedError:
    return RefusedError(
        "base_unclear",
        f"{why}: what an added line would mean is not plain.",
        "Write the base as one block mapping, a `key: value` a line.",
    )


def _root_indent(text: str) -> str:
    """Indentation of the root's keys; a base that is no plain block mapping is refused."""
    indent: str | None = None
    open_value = False
    """The last key has nothing behind it: a list may follow at the same indentation."""
    started = False
    for line in re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        if "\t" in line[: len(line) - len(line.lstrip())]:
            raise _unclear("A line is indented by a tab")
        if line.rstrip() == "---" and not started:
            started = True
            continue
        started = True
        depth = len(line) - len(line.lstrip(" "))
        if indent is not None and depth > len(indent):
            continue
        if indent is not None and depth == len(indent) and open_value and content[:2] == "- ":
            continue
        found = _KEY_LINE.fullmatch(line.rstrip())
        if found is None or (indent is not None and depth < len(indent)):
            raise _unclear("A line of the root is no `key: value`")
        _check_key(found["key"])
        indent = found["indent"]
        open_value = _is_open(_COMMENT.sub("", found["value"] or "").strip())
    return indent or ""


def _check_key(key: str) -> None:
    spelled = key.replace("_", "-")
    if len(spelled) > len("mo") and "runner" in flags.values([f"--{spelled}", "x"]):
        raise RefusedError(
            "base_sets_runner",
            f"The base sets {KEY} itself: that is a person's choice.",
            "Take it out of the base, or let smgate own it.",
        )


def _is_open(value: str) -> bool:
    if value.startswith("#") or not value:
        return True
    if _CLOSED.fullmatch(value) or _BLOCK.fullmatch(value) or _PLAIN.fullmatch(value):
        return False
    raise _unclear("A value of the root does not end on its line")
