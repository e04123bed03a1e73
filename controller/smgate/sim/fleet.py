"""The simulated fleet: which nodes there are, and what each is there to show."""

from __future__ import annotations

from smgate.sim.node import Spec, build

GOOD = build("0.7.2")
"""FlashInfer with SM107 SiTU kernels."""

BAD = build("0.7.2+site.1")
"""Built on site from the good release: the enum and the signature are there, and its SM107 kernel is
wrong. No known issue names it; only a check finds out."""

OLD = build("0.6.17", sglang="0.5.18")
"""SGLang that leaves `auto` unresolved on SM107: BF16. Its FlashInfer is named by a known issue."""


def specs() -> list[Spec]:
    """About two dozen nodes in four racks."""
    return [
        *(Spec(name=f"b200-{n}", sm="10.0", rack="rack-a", build=GOOD) for n in range(1, 5)),
        *(Spec(name=f"b300-{n}", sm="10.3", rack="rack-b", build=GOOD) for n in range(1, 4)),
        Spec(name="h200-1", sm="9.0", rack="rack-a", build=GOOD),
        *(
            Spec(name=f"rubin-pool-{n}", sm="10.7", rack="rack-c", build=GOOD, pool=True)
            for n in range(1, 4)
        ),
        *(
            Spec(name=f"rubin-{n}", sm="10.7", rack="rack-c" if n <= 4 else "rack-d", build=GOOD)  # noqa: PLR2004  two racks
            for n in range(1, 8)
        ),
        *(
            Spec(
                name=f"rubin-pair-{rank}",
                sm="10.7",
                rack="rack-d",
                build=GOOD,
                unit_name="k3-pair",
                nnodes=2,
                rank=rank,
            )
            for rank in range(2)
        ),
        Spec(name="rubin-ep-1", sm="10.7", rack="rack-d", build=GOOD, a2a="deepep", ep=8),
        Spec(
            name="rubin-new-1",
            sm="10.7",
            rack="rack-c",
            build=BAD,
            pool=True,
            kernel_is_good=False,
        ),
        Spec(name="rubin-new-2", sm="10.7", rack="rack-d", build=BAD, kernel_is_good=False),
        Spec(name="rubin-old-1", sm="10.7", rack="rack-d", build=OLD),
    ]
