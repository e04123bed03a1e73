"""What would keep an override from reaching SGLang, read off a command line before it is trusted.

Pure: words in, findings out. A finding *defeats* when the server would start without the override, or
not at all; the others are said so that somebody looks. Values of a command line are never repeated:
keys stand among them.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from smgate_agent.launch import command, flags, handover, units

Sink = Literal["gate", "config"]
"""How the value reaches SGLang: appended by the launch gate, or in the file of `--config`."""

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_OPERATORS: Final = frozenset({";", "&&", "||", "|", "&"})
_TRANSPARENT: Final = frozenset(
    {"env", "exec", "nice", "ionice", "numactl", "taskset", "chrt", "stdbuf", "nohup", "setsid"}
    | {"tini", "dumb-init", "catatonit", "timeout", "time", "srun", "gosu", "setpriv"}
)
"""Programs that are known to start what stands behind them with all its arguments."""
_DEPTH_MAX: Final = 4
_GATE_FILE: Final = "smgate-gate.pyz"
_FUNCTION: Final = "smgate"
"""What a script calls the function that puts the gate in front of its arguments."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a command line."""

    code: str
    defeats: bool
    sentence: str
    next_step: str


def examine(argv: Sequence[str], *, sink: Sink = "gate", gated: bool = False) -> list[Finding]:
    """Everything found, what defeats first.

    Args:
        argv: The command as it is written where the server is started.
        sink: How the value should reach it.
        gated: The launch gate is known to have started it; else it is looked for in `argv`.
    """
    found = list(dict.fromkeys(_examine(tuple(argv), sink, gated=gated, depth=0)))
    return sorted(found, key=lambda finding: not finding.defeats)


def _defeat(code: str, sentence: str, next_step: str) -> Finding:
    return Finding(code=code, defeats=True, sentence=sentence, next_step=next_step)


def _note(code: str, sentence: str, next_step: str) -> Finding:
    return Finding(code=code, defeats=False, sentence=sentence, next_step=next_step)


def _examine(argv: tuple[str, ...], sink: Sink, *, gated: bool, depth: int) -> Iterator[Finding]:
    options, inner = _behind_gate(argv)
    has_gate = options is not None
    if has_gate and not inner:
        yield _defeat(
            "gate_without_command",
            "The launch gate stands there without a command behind --.",
            "Write: smgate-agent launch -- sglang serve ...",
        )
        return
    argv = inner if has_gate else argv
    behind = _behind_script(argv)
    if behind:
        yield from _examine(behind, sink, gated=True, depth=depth)
        return
    script = _shell_string(argv)
    if script is not None and depth < _DEPTH_MAX:
        yield from _in_shell(script, sink, gated=gated, has_gate=has_gate, depth=depth)
        return
    if sink == "gate" and not has_gate and not gated:
        yield _defeat(
            "gate_missing",
            "No launch gate stands in front of this command: nothing is appended.",
            "Put `smgate-agent launch --` in front of SGLang's own command.",
        )
    found = command.find(argv)
    if found is None:
        yield _defeat(
            "sglang_not_found",
            "SGLang is not recognised here: an image's entry point or a script starts it, and an "
            "appended flag may never reach it.",
            "Put the launch gate into that script, in front of SGLang's own command.",
        )
        return
    yield from _in_front(argv)
    tokens = list(found.tokens)
    if gated and tokens[-2:-1] == [handover.FLAG]:
        tokens = tokens[:-2]  # the gate's own
    yield from _malformed(tokens)
    yield from _config(tokens, sink)
    yield from _choice(tokens, sink)
    yield from _unit(tokens, named=options is not None and "--unit" in _names(options))


def _behind_gate(
    argv: tuple[str, ...],
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The gate's own options and the command behind it; None if there is no gate in front."""
    for position, token in enumerate(argv[:-1]):
        if argv[position + 1] != "launch":
            continue
        if Path(token).name.startswith("smgate"):
            rest = argv[position + 2 :]
            at = rest.index("--") if "--" in rest else len(rest)
            return rest[:at], rest[at + 1 :]
    return None, ()


def _behind_script(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command behind the script that ships to stand in front of it, if one does.

    It gets the command as its arguments, and becomes the gate where the gate works, else the command.
    """
    for position, token in enumerate(argv[:-2]):
        name, script = Path(token).name, argv[position + 2]
        is_python = command.PYTHON.fullmatch(name) is not None
        if argv[position + 1] == "-c" and (is_python or name in _SHELLS):
            arguments = "sys.argv[1:]" if is_python else '"$@"'
            ours = _GATE_FILE in script and arguments in script
            return argv[position + (3 if is_python else 4) :] if ours else ()
        if name not in _TRANSPARENT and not token.startswith("-"):
            return ()
    return ()


def _names(tokens: Sequence[str]) -> set[str]:
    return {token.partition("=")[0] for token in tokens}


def _shell_string(argv: tuple[str, ...]) -> str | None:
    """The commands of `bash -c "..."`, wherever the shell stands in front."""
    for position, token in enumerate(argv):
        if Path(token).name in _SHELLS:
            rest = argv[position + 1 :]
            for index, word in enumerate(rest[:-1]):
                if word.startswith("-") and not word.startswith("--") and "c" in word:
                    return rest[index + 1]
            return None
        if Path(token).name not in _TRANSPARENT and not token.startswith("-"):
            return None
    return None


def _in_shell(
    script: str, sink: Sink, *, gated: bool, has_gate: bool, depth: int
) -> Iterator[Finding]:
    if has_gate:
        yield _defeat(
            "shell_string",
            "SGLang stands inside a shell's string: what the gate appends goes to the shell.",
            "Put the gate into the string: bash -c 'exec smgate-agent launch -- sglang serve ...'",
        )
        gated = True
    try:
        words = shlex.split(script.strip().replace("\\\n", " ").replace("\n", " ; "))
    except ValueError:
        yield _defeat(
            "shell_unreadable",
            "The shell's string cannot be taken apart.",
            "Write SGLang's command outside of a shell, or simpler.",
        )
        return
    last: list[str] = []
    for word in words:
        # The server is the last command that could be one.
        last = [] if word in _OPERATORS or word.endswith(";") else [*last, word]
    if last[:1] == [_FUNCTION] and _GATE_FILE in script:
        last, gated = ["exec", *last[1:]], True
    if last[:1] != ["exec"]:
        yield _note(
            "shell_without_exec",
            "The shell stays in front of SGLang and does not hand on the signal to stop.",
            "Write `exec` in front of the last command of the string.",
        )
    words = last[1:] if last[:1] == ["exec"] else last
    yield from _examine(tuple(words), sink, gated=gated, depth=depth + 1)


def _in_front(argv: tuple[str, ...]) -> Iterator[Finding]:
    """Programs in front of SGLang that nothing is known of."""
    at = max(position for position in range(len(argv)) if command.find(argv[position:]) is not None)
    names = [Path(word).name for word in argv[:at] if not word.startswith("-")]
    programs = [name for name in names if not command.PYTHON.fullmatch(name)]
    if programs and programs[0] not in _TRANSPARENT:
        yield _note(
            "entrypoint_in_front",
            "A program that is not known stands in front of SGLang: it must hand on every argument.",
            'See that it ends with: exec "$@"',
        )


def _malformed(tokens: Sequence[str]) -> Iterator[Finding]:
    if "--" in tokens:
        yield _defeat(
            "double_dash",
            "SGLang's own arguments have a --: behind it no flag is one, and SGLang ends.",
            "Take the -- out of SGLang's arguments.",
        )
    if "" in tokens:
        yield _defeat(
            "empty_argument",
            "An argument is empty, as from a variable that is not set: SGLang ends with 2.",
            "Leave the argument out where the variable is empty.",
        )
    if any("$(" in token or "${" in token for token in tokens):
        yield _defeat(
            "variable_not_expanded",
            "An argument still has a variable's name in it: it is not defined where this starts.",
            "Define it, or write the value.",
        )
    if any(token.startswith("--") and " " in token.partition("=")[0].strip() for token in tokens):
        yield _defeat(
            "flag_and_value_in_one",
            "A flag and its value stand in one argument: SGLang ends with 2.",
            "Write them as two arguments, or with = between.",
        )


def _config(tokens: Sequence[str], sink: Sink) -> Iterator[Finding]:
    use = flags.config_use(tokens)
    if use.ignored:
        finding = _defeat if sink == "config" else _note
        yield finding(
            "config_ignored",
            "SGLang takes no notice of --config=FILE: only the two words --config FILE count.",
            "Write --config and the file as two arguments.",
        )
    elif sink == "config" and not use.paths:
        yield _defeat(
            "config_missing",
            "The override stands in a file that this command does not name.",
            "Add --config and the file that is written.",
        )
    if len(use.paths) > 1:
        yield _defeat(
            "config_twice",
            "Two --config are one too many: SGLang ends.",
            "Keep one; the written file has everything of the base.",
        )
    if None in use.paths:
        yield _defeat(
            "config_without_file", "--config has no file behind it: SGLang ends.", "Name the file."
        )


def _choice(tokens: Sequence[str], sink: Sink) -> Iterator[Finding]:
    values = flags.values(flags.without_config(tokens))
    runner, a2a = values.get("runner"), values.get("a2a")
    if runner is not None and runner != "auto":
        yield _defeat(
            "runner_explicit",
            "The command names a runner itself: that is a person's choice, and it is left alone.",
            "Take --moe-runner-backend out, or let smgate own it: smgate unit adopt-flag.",
        )
    elif runner == "auto" and sink == "config":
        yield _defeat(
            "runner_beats_file",
            "The command says --moe-runner-backend auto, and a command line beats the file.",
            "Take --moe-runner-backend out of the command.",
        )
    if a2a is not None and a2a != "none":
        yield _note(
            "a2a_explicit",
            "Experts are exchanged by an a2a backend: no safe value exists there, and it is left alone.",
            "Nothing, if this layout is wanted.",
        )
    if "--use-ray" in _names(tokens):
        yield _note(
            "ray",
            "Under Ray one process resolves the runner for all ranks, by the GPU that it sees.",
            "See that the driver process has a GPU, and put the gate in front of it.",
        )


def _unit(tokens: Sequence[str], *, named: bool) -> Iterator[Finding]:
    values = flags.values(flags.without_config(tokens))
    if flags.integer(values.get("nnodes"), 1) <= 1 or named:
        return
    address = units.rendezvous(values.get("rendezvous"))
    if address is None:
        yield _note(
            "rendezvous_missing",
            "The server spans several nodes, and its ranks have nothing in common to name it by.",
            "Give every rank the same --dist-init-addr, or --unit NAME to the gate.",
        )
        return
    try:
        ipaddress.ip_address(address.rpartition(":")[0])
    except ValueError:
        return
    yield _note(
        "rendezvous_is_ip",
        "The server is named by an IP address: with another first node it is another server.",
        "Use a host name for --dist-init-addr, or give --unit NAME to the gate.",
    )
