"""Announced builds: the kernel keys that an image's packages would make in this fleet.

A key needs an SM, a driver branch and a layout beside the packages; those are taken from what the
fleet has launched or tested so far.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from smgate.domain import exposure, keys
from smgate.domain.rulings import BuildAnnounced
from smgate.domain.state import Fleet
from smgate.domain.state_evidence import Standing
from smgate.domain.values import Build

PIN_PREFIX = "artifact_pins."


def kernel_keys(fleet: Fleet, build: BuildAnnounced) -> dict[str, Standing]:
    """Each key on a candidate SM with its standing. `unknown` still needs evidence."""
    packages: dict[str, Any] = {
        name: version for name, version in build.packages.items() if not name.startswith(PIN_PREFIX)
    }
    packages["artifact_pins"] = {
        name.removeprefix(PIN_PREFIX): digest
        for name, digest in build.packages.items()
        if name.startswith(PIN_PREFIX)
    }
    found: dict[str, Standing] = {}
    for seen in fleet.keys.values():
        if not exposure.is_candidate(fleet, seen.sm):
            continue
        made = replace(Build(driver_version=seen.build.driver_version), **packages)
        key = keys.kernel_key(sm=seen.sm, build=made, layout=seen.layout, a2a=seen.a2a)
        if key is not None:
            found[key] = fleet.keys[key].standing if key in fleet.keys else "unknown"
    return dict(sorted(found.items()))
