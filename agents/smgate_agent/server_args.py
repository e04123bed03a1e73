"""What the agent keeps of a server's resolved arguments: an allowlist, typed, nothing else.

Read from the `server_args=` log line (a dataclass repr up to SGLang 0.5.18, a dict from 0.5.19)
or from `/server_info`. Keys, passwords and the rest of the 500 fields never leave the scanner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from smgate_agent import python_repr, sglang_names

MARKER: Final = "server_args="

FIELDS: Final = frozenset(
    {
        "model_path",
        "moe_runner_backend",
        "moe_a2a_backend",
        "tp_size",
        "ep_size",
        "pp_size",
        "dp_size",
        "nnodes",
        "node_rank",
        "enable_dp_attention",
    }
)

_SIZE_MAX: Final = 1 << 20
_PATH_CHARACTERS: Final = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")


@dataclass(frozen=True, kw_only=True)
class ServerArgs:
    """Resolved arguments of one rank. None: not said, or not what it should be.

    `model_path` is for looking up `config.json` on this machine; it is never reported.
    """

    runner: str | None = None
    a2a: str | None = None
    tp: int | None = None
    ep: int | None = None
    pp: int | None = None
    dp: int | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    dp_attention: bool | None = None
    model_path: str | None = None


def from_fields(fields: Mapping[str, object]) -> ServerArgs:
    """Type the allowlisted fields; one that has a wrong type is not known."""
    path = fields.get("model_path")
    dp_attention = fields.get("enable_dp_attention")
    return ServerArgs(
        runner=sglang_names.runner(fields.get("moe_runner_backend")),
        a2a=sglang_names.a2a(fields.get("moe_a2a_backend")),
        tp=_size(fields.get("tp_size"), least=1),
        ep=_size(fields.get("ep_size"), least=1),
        pp=_size(fields.get("pp_size"), least=1),
        dp=_size(fields.get("dp_size"), least=1),
        nnodes=_size(fields.get("nnodes"), least=1),
        node_rank=_size(fields.get("node_rank"), least=0),
        dp_attention=dp_attention if isinstance(dp_attention, bool) else None,
        model_path=path if isinstance(path, str) and _PATH_CHARACTERS.fullmatch(path) else None,
    )


def from_log_line(line: str) -> ServerArgs | None:
    """The arguments a log line carries; None if it carries none that name a runner."""
    at = line.find(MARKER)
    if at < 0:
        return None
    fields = python_repr.scan_fields(line[at + len(MARKER) :], FIELDS)
    args = from_fields(fields)
    return args if args.runner is not None else None


def _size(value: object, *, least: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value <= _SIZE_MAX else None
