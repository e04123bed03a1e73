"""The launch gate: reads a SGLang launch, asks for the unit's decision, then becomes SGLang.

Standard library only: it runs alone, inside other people's containers and interpreters. Whatever
goes wrong here, the command starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run `smgate-agent launch` with the arguments after `launch`; returns only if nothing ran."""
    from smgate_agent.launch import ending

    ending.obey()
    try:
        from smgate_agent.launch import gate

        return gate.main(argv)
    except ending.Terminated as request:
        return ending.die(request.number)
