"""Finds SGLang in the command that is to be started, and the interpreter that will run it."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PYTHON = re.compile(r"(python|pypy)[0-9.]*")
MODULES = frozenset({"sglang.launch_server", "sglang", "sglang.cli.main", "dynamo.sglang"})
SUBCOMMAND = "serve"
ISOLATION_FLAGS = frozenset({"-I", "-E", "-s", "-S", "-P"})
SHEBANG_BYTES_MAX = 4096


@dataclass(frozen=True)
class Command:
    """SGLang inside a command line.

    `tokens` are what SGLang will parse. `interpreter` runs SGLang, `interpreter_flags` are those
    that change where it finds packages. None and empty where they could not be found.
    """

    tokens: tuple[str, ...]
    interpreter: str | None
    interpreter_flags: tuple[str, ...] = ()


def find(argv: Sequence[str]) -> Command | None:
    """SGLang in `argv`, or None where what is appended might never reach SGLang's parser.

    Programs that start another program (`numactl`, `env`, `tini --`) may stand in front. A command
    inside one string (`bash -c "sglang serve"`) is not seen: what is appended would not reach it.
    """
    for position, token in enumerate(argv):
        name = Path(token).name
        rest = tuple(argv[position + 1 :])
        if PYTHON.fullmatch(name):
            found = _under_python(token, rest)
            if found is not None:
                return found
        elif name == "sglang" and SUBCOMMAND in rest[:1]:
            return Command(tokens=_serve_tokens(rest[1:]), interpreter=_script_interpreter(token))
        elif position == 0 and name.startswith("sglang") and _names_a_model(rest):
            return Command(tokens=rest, interpreter=_script_interpreter(token))
    return None


def _under_python(python: str, rest: tuple[str, ...]) -> Command | None:
    """`python -m MODULE ...` or `python SCRIPT ...`."""
    flags: list[str] = []
    position = 0
    while position < len(rest) and rest[position].startswith("-") and rest[position] != "-m":
        if rest[position] == "-c":
            return None
        flags.append(rest[position])
        position += 2 if rest[position] in ("-X", "-W") else 1
    if position >= len(rest):
        return None
    if rest[position] == "-m":
        program, tokens = rest[position + 1 : position + 2], rest[position + 2 :]
        recognised = program[:1] and program[0] in MODULES
    else:
        program, tokens = rest[position : position + 1], rest[position + 1 :]
        recognised = Path(program[0]).name.startswith("sglang") or _names_a_model(tokens)
    if not recognised:
        return None
    if tokens[:1] == (SUBCOMMAND,):
        tokens = _serve_tokens(tokens[1:])
    return Command(
        tokens=tokens,
        interpreter=shutil.which(python),
        interpreter_flags=tuple(flag for flag in flags if flag in ISOLATION_FLAGS),
    )


def _names_a_model(tokens: Sequence[str]) -> bool:
    return any(token.partition("=")[0] in ("--model-path", "--model") for token in tokens)


def _serve_tokens(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """What `sglang serve` hands to the argument parser: `--model-type` out, the model named."""
    kept: list[str] = []
    skip = False
    for token in tokens:
        if skip:
            skip = False
        elif token == "--model-type":
            skip = True
        elif not token.startswith("--model-type="):
            kept.append(token)
    if kept and not kept[0].startswith("-"):
        kept.insert(0, "--model-path")
    return tuple(kept)


def _script_interpreter(script: str) -> str | None:
    """The interpreter in a script's first line; pip writes a `/bin/sh` trampoline for long paths."""
    path = shutil.which(script)
    if path is None:
        return None
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(SHEBANG_BYTES_MAX).decode(errors="replace").splitlines()
    except OSError:
        return None
    if not head or not head[0].startswith("#!"):
        return None
    words = _words(head[0][2:])
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    elif words and Path(words[0]).name == "sh" and len(head) > 1:
        words = _words(head[1].removeprefix("'''exec'").removeprefix("''''exec"))
    if not words or not PYTHON.fullmatch(Path(words[0]).name):
        return None
    return shutil.which(words[0])


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []
