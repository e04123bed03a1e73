"""Find SGLang's servers among the processes of this machine, by their command lines alone.

A server is the Python process that was started as SGLang; its schedulers, its detokenizer and the
programs in front of it (a shell, `tini`, the launch gate) are none. Environments are never read.
Of a command line, which carries API keys, nothing is kept but the fields of `Server`. What cannot
be seen is said: a list that may lack servers is never taken for "none runs".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from smgate_agent import files, log_frames
from smgate_agent.launch import command, flags, units

PROC: Final = Path("/proc")
COMMAND_BYTES_MAX: Final = 128 << 10
SERVERS_MAX: Final = 64
PARENTS_MAX: Final = 32
"""Deepest chain of parents that is followed; a real one has a handful."""
DEFAULT_PORT: Final = 30000
"""SGLang's own; its default address is the loopback one."""

_INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"
"""A constant of the kernel: PROC_PID_INIT_INO."""
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::", "[::]"})  # noqa: S104 # read, not bound
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")
_LOCAL_ADDRESS: Final = re.compile(r"\|-- (\d{1,3}(?:\.\d{1,3}){3})\s+/32 host LOCAL")


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server rank. `start_ticks` tells a process from a later one with the same id."""

    pid: int
    start_ticks: int
    port: int
    url: str | None = None
    """Where this machine reaches it; None where that is not known."""
    log: str | None = None
    log_format: log_frames.Shape = "plain"
    nnodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None
    gpu_count: int = 1
    """Least number of GPUs that it will use, by its command line."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one look at the processes shows. `code` says why servers may be missing from it."""

    servers: tuple[Server, ...] = ()
    code: str | None = None
    sentence: str = ""


def look(proc: Path = PROC, *, logs: Path = Path("/var")) -> Seen:
    """Every server that can be seen."""
    try:
        pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
        own = str((proc / "self/ns/pid").readlink())
    except OSError as exc:
        said = f"{proc} cannot be read ({type(exc).__name__}): servers are not looked for."
        return Seen(code="proc_unreadable", sentence=said)
    code, sentence = _hidden(proc, own)
    commands: dict[int, tuple[str, ...]] = {}
    refused = 0
    for pid in pids:
        try:
            words = argv(proc, pid)
        except PermissionError:
            refused += 1
            continue
        except OSError:
            continue  # it ended meanwhile
        if serves(words) is not None:
            commands[pid] = words
    if refused and code is None:
        code = "processes_hidden"
        sentence = f"{refused} processes do not let their command lines be read."
    found = (_server(proc, logs, pid, words, commands) for pid, words in commands.items())
    servers = tuple(server for server in found if server is not None)
    return Seen(servers=servers[:SERVERS_MAX], code=code, sentence=sentence)


def alive(pid: int, start_ticks: int, proc: Path = PROC) -> bool | None:
    """Does this very process live? None where that cannot be told."""
    try:
        stat = _stat(proc, pid)
    except FileNotFoundError:
        return False if (proc / "self").exists() and not _hides_others(proc) else None
    except (OSError, ValueError):
        return None
    return stat.start_ticks == start_ticks and stat.state not in {"Z", "X"}


def argv(proc: Path, pid: int) -> tuple[str, ...]:
    """The words of a process's command line. Keys may be among them.

    Raises:
        OSError: it ended, or may not be read.
    """
    with (proc / str(pid) / "cmdline").open("rb") as file:
        data = file.read(COMMAND_BYTES_MAX)
    return tuple(data.decode("utf-8", "replace").removesuffix("\0").split("\0")) if data else ()


def serves(words: Sequence[str]) -> tuple[str, ...] | None:
    """What SGLang parses, if this process is one of its servers; else None."""
    if not words or not command.PYTHON.fullmatch(Path(words[0]).name):
        return None
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] not in {"-m", "-c", "-"}:
        rest = rest[2:] if rest[0] in {"-X", "-W"} else rest[1:]
    if rest[:1] == ["-m"]:
        rest = rest[1:]
        known = bool(rest) and rest[0] in command.MODULES
        script = Path()
    else:
        script = Path(rest[0]) if rest else Path()
        known = script.name == "sglang" or script.parts[-2:] == ("sglang", "launch_server.py")
    if not known:
        return None
    program, tokens = rest[0], tuple(rest[1:])
    if script.name == "sglang" or program in {"sglang", "sglang.cli.main"}:
        return tokens[1:] if tokens[:1] == (command.SUBCOMMAND,) else None
    return tokens


def parents(pid: int, proc: Path = PROC) -> Iterator[int]:
    """The process itself and those above it, as far as they can be read."""
    for _ in range(PARENTS_MAX):
        if pid <= 0:
            return
        yield pid
        try:
            pid = _stat(proc, pid).parent
        except (OSError, ValueError):
            return


def launched_as(pid: int, proc: Path = PROC) -> tuple[str, int] | None:
    """Its pid namespace, and the id it has there; None where that cannot be read."""
    try:
        namespace = str((proc / str(pid) / "ns/pid").readlink())
        status = files.read_bounded(proc / str(pid) / "status", bytes_max=64 << 10)
        (line,) = [line for line in status.splitlines() if line.startswith(b"NSpid:")]
        return namespace, int(line.split()[-1])
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    start_ticks: int


def _stat(proc: Path, pid: int) -> _Stat:
    data = files.read_bounded(proc / str(pid) / "stat", bytes_max=4096)
    # The command's name is in parentheses and may hold anything; fields follow the last one.
    fields = data.rpartition(b")")[2].split()
    try:
        return _Stat(fields[0].decode("ascii"), int(fields[1]), int(fields[19]))
    except IndexError as exc:
        raise ValueError("no stat") from exc


def _hidden(proc: Path, own: str) -> tuple[str | None, str]:
    if own != _INITIAL_PID_NAMESPACE:
        return "own_pid_namespace", "Only the processes of this agent's own container are seen."
    if _hides_others(proc):
        return "processes_hidden", f"{proc} is mounted with hidepid: other users are not seen."
    return None, ""


def _hides_others(proc: Path) -> bool:
    if os.geteuid() == 0:
        return False
    try:
        mounts = files.read_bounded(proc / "self/mountinfo").decode("utf-8", "replace")
    except OSError:
        return True
    return any(
        re.search(r"\bhidepid=(?:[124]|noaccess|invisible|ptraceable)", line)
        for line in mounts.splitlines()
        if line.split()[4:5] == [str(PROC)]
    )


def _server(
    proc: Path, logs: Path, pid: int, words: tuple[str, ...], commands: dict[int, tuple[str, ...]]
) -> Server | None:
    """The server with this process; None if it is a fork of another one, or is gone."""
    tokens = serves(words)
    assert tokens is not None
    try:
        stat = _stat(proc, pid)
    except (OSError, ValueError):
        return None
    above = list(parents(pid, proc))[1:]
    if stat.state in {"Z", "X"} or any(commands.get(one) == words for one in above):
        return None
    typed = flags.values(tokens)
    nnodes = max(1, flags.integer(typed.get("nnodes"), 1))
    port = flags.integer(_value(tokens, "--port"), DEFAULT_PORT)
    port_said = _value(tokens, "--port") is not None or flags.CONFIG not in tokens
    usable = port_said and 0 < port < 1 << 16
    log, shape = _log(proc, logs, pid)
    ranks = [max(1, flags.integer(typed.get(name), 1)) for name in ("tp", "pp")]
    rank = max(0, flags.integer(typed.get("node_rank"), 0))
    return Server(
        pid=pid,
        start_ticks=stat.start_ticks,
        port=port if usable else DEFAULT_PORT,
        url=_url(proc, pid, _value(tokens, "--host"), port) if usable else None,
        log=log,
        log_format=shape,
        nnodes=nnodes,
        node_rank=min(rank, nnodes - 1),
        rendezvous=units.rendezvous(typed.get("rendezvous")),
        gpu_count=max(1, ranks[0] * ranks[1] // nnodes),
    )


def _value(tokens: Sequence[str], name: str) -> str | None:
    """The last value of a flag, as argparse takes it."""
    found = None
    for position, token in enumerate(tokens):
        if token == name and position + 1 < len(tokens):
            found = tokens[position + 1]
        elif token.startswith(f"{name}="):
            found = token.partition("=")[2]
    return found


def _url(proc: Path, pid: int, host: str | None, port: int) -> str | None:
    """By the loopback address in this network namespace, by the one address of another."""
    try:
        here = (proc / "self/ns/net").readlink() == (proc / str(pid) / "ns/net").readlink()
    except OSError:
        return None
    if here:
        known = host is None or host in _EVERYWHERE | _LOOPBACK
        return f"http://127.0.0.1:{port}" if known else None
    if host not in _EVERYWHERE:
        return None
    try:
        table = files.read_bounded(proc / str(pid) / "net/fib_trie").decode("ascii", "replace")
    except OSError:
        return None
    addresses = {one for one in _LOCAL_ADDRESS.findall(table) if not one.startswith("127.")}
    return f"http://{addresses.pop()}:{port}" if len(addresses) == 1 else None


def _log(proc: Path, logs: Path, pid: int) -> tuple[str | None, log_frames.Shape]:
    """Its output, where that is a file of this machine or kept by a container runtime."""
    try:
        here = (proc / "self/ns/mnt").readlink() == (proc / str(pid) / "ns/mnt").readlink()
        for number in (2, 1) if here else ():
            output = (proc / str(pid) / f"fd/{number}").readlink()
            if output.is_absolute() and output.is_file():
                return str(output), "plain"
    except OSError:
        pass
    try:
        groups = files.read_bounded(proc / str(pid) / "cgroup").decode("utf-8", "replace")
    except OSError:
        return None, "plain"
    for container in reversed(_CONTAINER.findall(groups)):
        docker = logs / f"lib/docker/containers/{container}/{container}-json.log"
        if docker.is_file():
            return str(docker), "docker"
        for link in (logs / "log/containers").glob(f"*-{container}.log"):
            return str(link), "cri"
    return None, "plain"
