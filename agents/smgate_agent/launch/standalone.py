"""Entry of the archive that holds the launch gate and the probe alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = "usage: smgate-gate.pyz launch [options] -- COMMAND... | probe CHECK [LAUNCH]\n"
USAGE_STATUS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to `launch` or `probe`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["launch"]:
        from smgate_agent import launch

        return launch.main(arguments[1:])
    if arguments[:1] == ["probe"]:
        from smgate_agent import probe

        return probe.main(arguments[1:])
    sys.stderr.write(USAGE)
    return USAGE_STATUS
