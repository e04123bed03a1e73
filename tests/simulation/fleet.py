"""Steps of scenarios, made in Python: a pool, production nodes, their servers, and people."""

from __future__ import annotations

from typing import Any, Final

from smgate.domain import cohort, facts as domain_facts, keys

Step = dict[str, Any]
Fact = dict[str, Any]

TARGET: Final = "flashinfer_mxfp4"
BUILD: Final = {
    "sglang_version": "0.5.23",
    "flashinfer_version": "0.7.2",
    "driver_version": "580.95.05",
    "torch_cuda": "13.0",
}
MODEL: Final = {
    "digest": "5f0c2a9b7d31e684",
    "architecture": "KimiK3ForConditionalGeneration",
    "format_group": "mxfp4-pack-quantized",
}


def _gpu(node: str) -> str:
    return f"GPU-{node}-0000"


def _gpus(node: str) -> list[dict[str, str]]:
    return [{"uuid": _gpu(node), "sm": "10.7"}]


def look(at: float | str) -> Step:
    return {"at": at, "look": True}


def facts(at: float | str, node: str, *given: Fact) -> Step:
    return {"at": at, "node": node, "facts": list(given)}


def command(at: float | str, by: str, kind: str, *, role: str = "approver", **fields: Any) -> Step:
    return {
        "at": at,
        "by": by,
        "role": role,
        "command": {"type": kind, "reason": "a test", **fields},
    }


def enforce(at: float | str) -> Step:
    return command(at, "emil", "gate_mode", gate="kimi-k3-mxfp4", sm="10.7", mode="enforce")


def plan(**fields: Any) -> dict[str, Any]:
    return {
        "id": "k3-rubin-1",
        "gate": "kimi-k3-mxfp4",
        "sm": "10.7",
        "waves": [{"percent": 100}],
        **fields,
    }


def rollout(at: float, **fields: Any) -> list[Step]:
    return [
        command(at, "dora", "rollout_propose", plan=plan(**fields)),
        command(at + 1, "emil", "rollout_approve", rollout="k3-rubin-1"),
        command(at + 2, "emil", "rollout_start", rollout="k3-rubin-1"),
    ]


def reported(node: str, **fields: Any) -> Fact:
    return {"type": "node_reported", "agent_version": "0.1.0", "gpus": _gpus(node), **fields}


def launch(node: str, number: int, **fields: Any) -> Fact:
    return {
        "type": "launch_planned",
        "launch_id": f"{node}-{number}",
        "platform": "cuda",
        "argv_read": True,
        "gpus": _gpus(node),
        "model": MODEL,
        "build": BUILD,
        **fields,
    }


def checks(node: str, outcome: str = "passed") -> list[Fact]:
    return [
        {
            "type": "check_finished",
            "check": check,
            "outcome": outcome,
            "reason": "ok" if outcome == "passed" else "cosine_too_low",
            "sm": "10.7",
            "gpu_uuids": [_gpu(node)],
            "probe_version": "0.1.0",
            "negative_control": "caught",
            "build": BUILD,
        }
        for check in ("api_boundary", "moe_mxfp4")
    ]


def server(
    node: str, number: int, runner: str, *, instance_id: str = "k3", restarts: int = 0, **seen: Any
) -> list[Fact]:
    return [
        {
            "type": "instance_changed",
            "instance_id": instance_id,
            "state": "serving",
            "gpu_uuids": [_gpu(node)],
            "launch_id": f"{node}-{number}",
            "restarts": restarts,
        },
        {
            "type": "effective_seen",
            "instance_id": instance_id,
            "runner": runner,
            "a2a": "none",
            "source": "server_info",
            **seen,
        },
    ]


def pool(at: float) -> list[Step]:
    names = [f"pool-{number}" for number in (1, 2, 3)]
    return [facts(at, name, reported(name, pool=True), *checks(name)) for name in names]


def production(at: float, count: int) -> list[Step]:
    names = [f"prod-{number}" for number in range(1, count + 1)]
    return [facts(at, name, reported(name), launch(name, 1)) for name in names]


def served(at: float, node: str, number: int) -> list[Step]:
    return [
        facts(at, node, launch(node, number)),
        facts(at + 1, node, *server(node, number, TARGET)),
    ]


def baked(at: float, node: str, **fields: Any) -> Step:
    interval = {
        "type": "bake_interval",
        "instance_id": "k3",
        "interval_s": 1_800,
        "requests": 100,
        "failures": 0,
    }
    return facts(at, node, {**interval, **fields})


def month(*, nodes: int) -> dict[str, Any]:
    """A rollout in three waves over servers found on marlin, and what they report for a month."""
    names = _in_cohort_order([f"prod-{number}" for number in range(1, nodes + 1)])
    share = nodes // 5
    steps = [enforce(0), *pool(1), *production(60, nodes)]
    waves = [{"count": 1}, {"percent": 20}, {"percent": 100}]
    steps += rollout(3_600, waves=waves, max_in_flight=nodes, wave_timeout_s=14 * 86_400)
    for day, members in ((2, names[:1]), (9, names[1:share]), (16, names[share:])):
        for number, name in enumerate(members):
            at = day * 86_400 + number * 900.0
            steps += [*served(at, name, 2), baked(at + 3_600, name)]
    for day in range(1, 30):
        for number, name in enumerate(names):
            if (day + number) % 4 == 0:
                weights = {"type": "weights_seen", "instance_id": "k3", "weight_bytes": day << 30}
                steps += [facts(day * 86_400 + number * 900.0 + 450, name, weights)]
    steps += [look(30 * 86_400)]
    return {"scenario": 1, "name": "A month", "steps": sorted(steps, key=lambda one: one["at"])}


def _in_cohort_order(nodes: list[str]) -> list[str]:
    planned = domain_facts.LaunchPlanned(launch_id="any", platform="cuda", argv_read=True)
    units = {keys.unit_id(node, planned, (_gpu(node),)): node for node in nodes}
    return [units[unit] for unit in cohort.in_cohort_order("k3-rubin-1", units)]
