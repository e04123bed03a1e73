"""Puts a launch's readings together as the wire's `LaunchPlanned`. Only named fields leave here."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smgate_agent.launch import (
    command as commands,
    devices,
    dry_resolve,
    flags,
    model,
    shapes,
    sources,
    units,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smgate_agent.launch.children import Children
    from smgate_agent.launch.state import Store

Json = dict[str, Any]

DISQUALIFYING_ENV = (
    "FLASHINFER_CUBINS_REPOSITORY",
    "FLASHINFER_CUBIN_CHECKSUM_DISABLED",
    "FLASHINFER_CUBIN_DIR",
    "FLASHINFER_DISABLE_VERSION_CHECK",
    "FLASHINFER_TACTICS_BLOCKLIST",
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK",
    "SGLANG_TRTLLM_GEN_MOE_CUBIN_POOL",
)
VERSION_FIELDS = (
    "sglang_version",
    "flashinfer_version",
    "jit_cache_version",
    "cubin_version",
    "cute_dsl_version",
    "cuda_toolkit",
    "torch_version",
    "torch_cuda",
)
CLI, FILE = "argv", "config"


@dataclass(frozen=True)
class Edge:
    """What the gate was started with, taken from the process once."""

    launch_id: str
    environ: Mapping[str, str]
    unit_name: str | None
    restarter: str
    children: Children
    store: Store
    timeout_s: float
    """For the driver and for SGLang's interpreter, asked side by side."""
    resolve_s: float
    """For all of the reading, if SGLang is asked what it would make of the launch."""
    base_config: str | None = None
    """What is read in place of the `--config` that is written from it."""


@dataclass(frozen=True)
class Choice:
    """The flags in force, which of them the file gave, and how the file was used."""

    values: dict[str, str]
    from_file: frozenset[str]
    config_file: str
    argv_read: bool


@dataclass(frozen=True)
class Reading:
    """A launch as the wire has it, and what stays on this machine."""

    launch: Json
    command: commands.Command | None
    model_path: str | None


def read(argv: Sequence[str], edge: Edge) -> Reading:
    """Read one launch. What cannot be read is absent, never guessed."""
    until = time.monotonic() + edge.resolve_s
    command = commands.find(argv)
    found = _with_base(command, edge.base_config)
    hardware = _Children(edge, found)
    choice = choose(found.tokens if found else None, hardware.config_tokens)
    launch = {
        "type": "launch_planned",
        "launch_id": edge.launch_id,
        **_hardware(hardware.driver, choice.values, edge.environ),
        "argv_read": choice.argv_read,
        "unit_name": edge.unit_name,
        "workload": units.workload(edge.environ),
        "rendezvous": units.rendezvous(choice.values.get("rendezvous")),
        "nnodes": max(1, flags.integer(choice.values.get("nnodes"), 1)),
        "node_rank": max(0, flags.integer(choice.values.get("node_rank"), 0)),
        "asked_runner": flags.known(choice.values.get("runner"), flags.RUNNERS),
        "asked_runner_in": _where("runner", choice),
        "asked_a2a": flags.known(choice.values.get("a2a"), flags.A2A_BACKENDS),
        "config_file": choice.config_file,
        "draft_asserts_auto": _draft_asserts_auto(choice.values, edge.environ),
        "sink": "argv" if edge.base_config is None else "file",
        "build": _build(hardware.build, hardware.driver, edge.environ),
        "dry_resolved": None,
        "restarter": edge.restarter,
        "held_generation": None,
    }
    launch["model_digest"] = _model_digest(choice.values)
    launch["model"], shape = _model(choice.values, edge)
    launch["layout"] = {**_ranks(choice.values), **shape}
    launch["dry_resolved"] = dry_resolve.pair(
        launch,
        found,
        config_path=hardware.config_path,
        children=edge.children,
        store=edge.store,
        until=until,
    )
    return Reading(
        launch=launch, command=command, model_path=_folder(choice.values.get("model_path"))
    )


def _with_base(
    command: commands.Command | None, base_config: str | None
) -> commands.Command | None:
    """The command as if it named the base: the file made of it may have an earlier override."""
    if command is None or base_config is None:
        return command
    tokens = list(command.tokens)
    for position in range(1, len(tokens)):
        if tokens[position - 1] == flags.CONFIG:
            tokens[position] = base_config
    return replace(command, tokens=tuple(tokens))


def _folder(path: str | None) -> str | None:
    return str(Path(path).resolve()) if path and Path(path).is_dir() else None


class _Children:
    """The two children: one asks the driver, one SGLang's interpreter, side by side."""

    def __init__(self, edge: Edge, found: commands.Command | None) -> None:
        use = flags.config_use(found.tokens) if found else None
        path = use.paths[0] if use and len(use.paths) == 1 else None
        self.config_path = path
        driver, reader = sources.read_both(
            edge.children,
            found,
            mig_names=devices.mig_names(edge.environ),
            options=json.dumps([name for names in flags.OPTIONS.values() for name in names]),
            config_path=path,
            timeout_s=edge.timeout_s,
        )
        self.driver = driver
        self.build: Json = reader.get("build") or {}
        self.config_tokens = _strings(reader.get("tokens"))


def _strings(value: object) -> list[str] | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return None
    return value


def choose(tokens: Sequence[str] | None, config_tokens: list[str] | None) -> Choice:
    """Merge file and command line as SGLang does: the command line wins.

    `tokens` is None where SGLang was not found in the command, `config_tokens` where the file it
    names could not be read as SGLang would.
    """
    if tokens is None:
        return Choice(values={}, from_file=frozenset(), config_file="none", argv_read=False)
    use = flags.config_use(tokens)
    typed = flags.values(flags.without_config(tokens))
    if not use.paths:
        state = "ignored" if use.ignored else "none"
        return Choice(values=typed, from_file=frozenset(), config_file=state, argv_read=True)
    if len(use.paths) > 1 or config_tokens is None:
        return Choice(
            values=typed, from_file=frozenset(), config_file="unreadable", argv_read=False
        )
    written = flags.values(config_tokens)
    return Choice(
        values={**written, **typed},
        from_file=frozenset(written) - frozenset(typed),
        config_file="read",
        argv_read=True,
    )


def _where(field: str, choice: Choice) -> str | None:
    if field not in choice.values:
        return None
    return FILE if field in choice.from_file else CLI


def _hardware(driver: Json, values: dict[str, str], environ: Mapping[str, str]) -> Json:
    first = values.get("base_gpu_id")
    ranks = _ranks(values)
    gpus = devices.of_this_server(
        devices.visible(driver, environ),
        first=flags.integer(first, -1) if first is not None else None,
        step=flags.integer(values.get("gpu_id_step"), 1),
        count=ranks["tp"] * ranks["pp"] // max(1, flags.integer(values.get("nnodes"), 1)),
    )
    return {
        "platform": devices.platform(
            driver,
            amd=Path("/dev/kfd").exists(),
            ascend=Path("/dev/davinci_manager").exists(),
            intel=Path("/dev/dri/by-path").exists() and Path("/sys/module/xe").exists(),
        ),
        "gpus": gpus,
    }


def _ranks(values: dict[str, str]) -> dict[str, int]:
    return {name: max(1, flags.integer(values.get(name), 1)) for name in ("tp", "ep", "pp", "dp")}


def _model_digest(values: dict[str, str]) -> str | None:
    """Names path and revision, so that the controller's last reading can hold where ours fails."""
    path = values.get("model_path")
    return model.digest(path, values.get("revision")) if path else None


def _model(values: dict[str, str], edge: Edge) -> tuple[Json | None, dict[str, int]]:
    """The model and its shape; the last reading of this path and revision holds."""
    path, revision = values.get("model_path"), values.get("revision")
    nothing: dict[str, int] = dict.fromkeys(model.SHAPE_KEYS, 0)
    if not path:
        return None, nothing
    digest = model.digest(path, revision)
    config = model.read_config(path, revision, edge.environ, values.get("model_overrides"))
    facts = None if config is None else model.facts(config, digest)
    if config is not None and facts is not None:
        edge.store.save_model(digest, {"model": facts, "shape": model.shape(config)})
        return facts, model.shape(config)
    if config is not None:
        return None, nothing
    return _last_reading(edge.store.model(digest), digest, nothing)


def _last_reading(
    saved: Json | None, digest: str, nothing: dict[str, int]
) -> tuple[Json | None, dict[str, int]]:
    facts, shape = (saved or {}).get("model"), (saved or {}).get("shape")
    if not isinstance(facts, dict) or not isinstance(shape, dict):
        return None, nothing
    fields = ("quant_method", "format_top_level", "format_group")
    architecture = shapes.kept(shapes.NAME, facts.get("architecture"))
    if architecture is None or facts.get("digest") != digest:
        return None, nothing
    held = {name: shapes.kept(shapes.NAME, facts.get(name)) for name in fields}
    numbers = {name: shape[name] if shapes.is_count(shape.get(name)) else 0 for name in nothing}
    layers = shape.get("expert_layers")
    if shapes.is_count(layers) and layers:
        numbers["expert_layers"] = layers
    return {"digest": digest, "architecture": architecture, **held}, numbers


def _draft_asserts_auto(values: dict[str, str], environ: Mapping[str, str]) -> bool:
    path = values.get("draft_path")
    config = model.read_config(path, values.get("draft_revision"), environ) if path else None
    return model.asserts_auto(config, values.get("draft_quantization") if path else None)


def _build(build: Json, driver: Json, environ: Mapping[str, str]) -> Json:
    pins = build.get("artifact_pins")
    pins = pins if isinstance(pins, dict) else {}
    commit = str(build.get("sglang_commit") or "").removeprefix("g")
    return {
        **{name: shapes.kept(shapes.VERSION, build.get(name)) for name in VERSION_FIELDS},
        "sglang_commit": shapes.kept(shapes.DIGEST, commit),
        "flashinfer_commit": shapes.kept(shapes.DIGEST, build.get("flashinfer_commit")),
        "artifact_pins": {
            name: pin
            for name, pin in pins.items()
            if shapes.fits(shapes.NAME, name) and shapes.fits(shapes.DIGEST, pin)
        },
        "driver_version": shapes.kept(shapes.VERSION, driver.get("driver_version")),
        "image_digest": None,
        "autotune_cache_digest": None,
        "disqualifying_env": [name for name in DISQUALIFYING_ENV if environ.get(name)],
    }
