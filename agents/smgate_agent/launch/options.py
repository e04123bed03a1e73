"""The gate's own options, from its command line and environment."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from smgate_agent.launch import config_sink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEADLINE_S = 120.0
DEADLINE_MAX_S = 3600.0
GATE_TIMEOUT_S = 600.0
GATE_TIMEOUT_MAX_S = 86400.0
STATE_DIR = "/var/lib/smgate-agent"
AGENT_SOCKET = "/run/smgate-agent/agent.sock"


class UsageError(ValueError):
    """The gate's own options make no sense; the command may still be known."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # type: ignore[explicit-override]  # 3.12 has it
        raise UsageError(message)


@dataclass(frozen=True)
class Options:
    """What the gate was told."""

    state_dir: str = STATE_DIR
    controller: str | None = None
    credential: str | None = None
    agent_socket: str | None = None
    ca_file: str | None = None
    deadline_s: float = DEADLINE_S
    on_doubt: str = "untouched"
    unit: str | None = None
    restarter: str = "external"
    quiet: bool = False
    base_config: str | None = None
    write_config: str | None = None
    prepare: bool = False
    barrier: bool = False
    gate_timeout_s: float = GATE_TIMEOUT_S


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The gate's own arguments, and the command behind `--`."""
    arguments = list(argv)
    if "--" not in arguments:
        return arguments, []
    position = arguments.index("--")
    return arguments[:position], arguments[position + 1 :]


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The option parser, with defaults from the environment."""
    made = _Parser(
        prog="smgate-agent launch",
        usage="smgate-agent launch [options] -- COMMAND...",
        description="Ask which MoE runner this SGLang launch should use, then become the command. "
        "Whatever goes wrong, the command starts.",
        allow_abbrev=False,
    )
    _add_peers(made, environ)
    _add_manner(made, environ)
    _add_barrier(made, environ)
    return made


def _add_peers(made: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Who is asked, and what is held."""
    add = made.add_argument
    add(
        "--state-dir",
        default=environ.get("SMGATE_STATE_DIR")
        or environ.get("SMGATE_AGENT_STATE_DIR")
        or STATE_DIR,
        help="enrolment and last directive (SMGATE_STATE_DIR, default %(default)s)",
    )
    add(
        "--controller",
        default=environ.get("SMGATE_CONTROLLER"),
        metavar="URL",
        help="instead of the enrolment's address (SMGATE_CONTROLLER)",
    )
    add(
        "--credential",
        default=environ.get("SMGATE_CREDENTIAL"),
        metavar="FILE",
        help="enrolment file, instead of credential.json in the state folder (SMGATE_CREDENTIAL)",
    )
    add(
        "--agent-socket",
        default=environ.get("SMGATE_AGENT_SOCKET", AGENT_SOCKET),
        metavar="PATH",
        help="the resident agent's socket, asked first if it is there (SMGATE_AGENT_SOCKET)",
    )
    add(
        "--ca-file",
        default=environ.get("SMGATE_CA_FILE"),
        metavar="FILE",
        help="certificates to trust for https (SMGATE_CA_FILE)",
    )


def _add_manner(made: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """How long, what on doubt, and which server this is."""
    add = made.add_argument
    add(
        "--deadline-s",
        type=float,
        default=environ.get("SMGATE_DEADLINE_S", str(DEADLINE_S)),
        metavar="SECONDS",
        help="start the command after this long at the latest (SMGATE_DEADLINE_S, 120)",
    )
    add(
        "--on-doubt",
        choices=("untouched", "safe"),
        default=environ.get("SMGATE_ON_DOUBT", "untouched"),
        help="without a decision and without known defaults (SMGATE_ON_DOUBT, untouched)",
    )
    add(
        "--unit",
        default=environ.get("SMGATE_UNIT"),
        metavar="NAME",
        help="name of the server this rank belongs to (SMGATE_UNIT)",
    )
    add(
        "--restarter",
        choices=("external", "hook"),
        default="external",
        help="who restarts this server",
    )
    add(
        config_sink.BASE_OPTION,
        metavar="FILE",
        help="your own YAML for SGLang's --config; goes with --write-config",
    )
    add(
        config_sink.FILE_OPTION,
        metavar="FILE",
        help="put the value into this file, made of the base, instead of appending a flag; the "
        "command names it with --config",
    )
    add(
        "--prepare",
        action="store_true",
        help="write the file and end, for a command that cannot be started from here",
    )
    add("--quiet", action="store_true", help="say nothing on stderr")


def _add_barrier(made: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Whether the ranks of a server of several nodes wait for each other inside SGLang."""
    add = made.add_argument
    add(
        "--barrier",
        action="store_true",
        default=environ.get("SMGATE_BARRIER", "") not in ("", "0"),
        help="let the ranks of several nodes wait at SGLang's own launch gate until their resolved "
        "values were compared; all ranks have to ask for it (SMGATE_BARRIER=1)",
    )
    add(
        "--gate-timeout-s",
        type=float,
        default=environ.get("SMGATE_GATE_TIMEOUT_S", str(GATE_TIMEOUT_S)),
        metavar="SECONDS",
        help="open that gate after this long in any case (SMGATE_GATE_TIMEOUT_S, 600)",
    )


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """The options in force.

    Raises:
        UsageError: one of them makes no sense.
    """
    found = parser(environ).parse_args(list(arguments))
    if found.on_doubt not in ("untouched", "safe"):  # argparse does not check a default
        raise UsageError("SMGATE_ON_DOUBT is neither untouched nor safe")
    if not 0 <= found.deadline_s <= DEADLINE_MAX_S:
        raise UsageError(f"--deadline-s is not between 0 and {DEADLINE_MAX_S:.0f}")
    if not 1 <= found.gate_timeout_s <= GATE_TIMEOUT_MAX_S:
        raise UsageError(f"--gate-timeout-s is not between 1 and {GATE_TIMEOUT_MAX_S:.0f}")
    if (found.base_config is None) != (found.write_config is None):
        raise UsageError("--base-config and --write-config go together")
    if found.prepare and found.write_config is None:
        raise UsageError("--prepare has nothing to write")
    return Options(**vars(found))
