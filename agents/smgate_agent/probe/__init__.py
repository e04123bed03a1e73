"""The probe: checks that run in SGLang's own Python, as a child that may crash without harm.

Standard library, torch and flashinfer only, any version. `probe CHECK [LAUNCH]` prints one marked
line of JSON; what the imported packages print goes to stderr. LAUNCH is a JSON object with what the
gate read of the launch: `sm`, `a2a`, `layout`, `gpu_uuids`. A person or a test may add `device`
(`"cpu"`: CPU tensors and no question about a GPU) and `unpacked` (true: also pass the routing as two
tensors on the CPU).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = "4"
"""Part of every result: a check counts only if this version passed on a baseline GPU."""

ALLOW_COMPILE = "SMGATE_ALLOW_COMPILE"
"""Set where a check may take the time of a compiler: on a pool node, never before a server."""

CHECKS = (
    "inventory",
    "api_boundary",
    "artifact",
    "memory",
    "quantize",
    "moe_mxfp4",
    "marlin",
)
"""Each is a module here whose `run(launch)` gives `outcome`, `reason`, `numbers` and, of a check with
a control, `negative_control`."""


def main(argv: Sequence[str]) -> int:
    """Run one check and print its result."""
    from smgate_agent.probe import runner

    return runner.main(argv)
