"""Finds the pods in Kubernetes objects, also in those of kinds that Kubernetes does not know."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import kubernetes_validate

Json = dict[str, Any]
VERSIONS = ("1.27", "1.37")
"""The oldest whose kubectl renders what ships, and the newest that there are schemas of."""
FOREIGN = {
    "ServiceMonitor",
    "PodMonitor",
    "PrometheusRule",
    "LeaderWorkerSet",
    "ClusterServingRuntime",
    "RoleBasedGroup",
    "DynamoGraphDeployment",
}
"""Kinds that other projects define. Their pods are checked as pods."""


def pods(value: object, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every pod spec inside, with the path to it."""
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield path, value
        elif isinstance(value.get("runner"), dict):  # OME: one container beside what a pod has
            yield path, _pod_of_runner(value)
        for name, inner in value.items():
            yield from pods(inner, f"{path}/{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from pods(inner, f"{path}/{number}")


def _pod_of_runner(config: Json) -> Json:
    kept = {name: config[name] for name in ("volumes", "tolerations") if name in config}
    return {"containers": [config["runner"]], **kept}


def problems(thing: Json, version: str) -> list[str]:
    """What this version of Kubernetes would not take."""
    found = []
    if thing["kind"] not in FOREIGN:
        found.append(thing)
    else:
        found += [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": _complete(pod)}
            for _, pod in pods(thing)
        ]
    said = []
    for one in found:
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as exc:
            where = "/".join(str(step) for step in exc.absolute_path)
            said.append(f"{thing['kind']} {thing['metadata']['name']}: {where}: {exc.message}")
    return said


def _complete(pod: Json) -> Json:
    """What a workload's controller adds, so that a partial template is a pod."""
    whole = copy.deepcopy(pod)
    for container in whole["containers"]:
        container.setdefault("name", "main")
    return whole
