"""What `config.json` says of the model that is to be served: architecture, weight format, shape."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smgate_agent.launch import shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]

CONFIG_BYTES_MAX = 8 << 20
DIGEST_HEX_DIGITS = 16
REPOSITORY = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")
COMMIT = re.compile(r"[0-9a-f]{40}")
REVISION = re.compile(r"[A-Za-z0-9._/-]{1,200}")
DEFAULT_REVISION = "main"
METHODS_THAT_ASSERT_AUTO = ("awq", "gptq")
MODEL_WITH_EXPERTS_IN_EVERY_LAYER = "gpt_oss"
LAYERS_MAX = 10_000
SHAPE_KEYS = {
    "experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "hidden_size": ("routed_expert_hidden_size", "hidden_size"),
    "intermediate_size": ("moe_intermediate_size", "intermediate_size"),
    "top_k": ("num_experts_per_token", "num_experts_per_tok", "top_k"),
}


def digest(path: str, revision: str | None) -> str:
    """Names a model path and revision without telling them: paths can carry tokens."""
    text = f"{path.rstrip('/')}\0{revision or ''}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:DIGEST_HEX_DIGITS]


def read_config(
    path: str, revision: str | None, environ: Mapping[str, str], overrides: str | None = None
) -> Json | None:
    """`config.json` of a folder or of a cached repository, or None if there is no readable one."""
    location = _location(path, revision, environ)
    if location is None:
        return None
    try:
        with location.open("rb") as stream:
            body = stream.read(CONFIG_BYTES_MAX + 1)
    except OSError:
        return None
    config = _object(body) if len(body) <= CONFIG_BYTES_MAX else None
    if config is not None and overrides is not None:
        config.update(_object(overrides.encode("utf-8", "surrogateescape")) or {})
    return config


def _object(body: bytes) -> Json | None:
    try:
        value = shapes.parse(body)
    except shapes.MalformedError:
        return None
    return value if isinstance(value, dict) else None


def _location(path: str, revision: str | None, environ: Mapping[str, str]) -> Path | None:
    try:
        folder = Path(path)
        if folder.is_dir():
            return folder / "config.json"
    except (OSError, ValueError):
        return None
    if not REPOSITORY.fullmatch(path):
        return None
    wanted = revision or DEFAULT_REVISION
    if not REVISION.fullmatch(wanted) or ".." in wanted:
        return None
    repository = _hub_cache(environ) / ("models--" + path.replace("/", "--"))
    commit = wanted if COMMIT.fullmatch(wanted) else _reference(repository / "refs" / wanted)
    return None if commit is None else repository / "snapshots" / commit / "config.json"


def _reference(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            text = stream.read(200).decode(errors="replace").strip()
    except OSError:
        return None
    return text if COMMIT.fullmatch(text) else None


def _hub_cache(environ: Mapping[str, str]) -> Path:
    """Where the hub library keeps repositories, in its own order of precedence."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return Path(environ[name])
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]) / "hub"
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  Path's raises without one
    return Path(environ.get("XDG_CACHE_HOME") or f"{home}/.cache") / "huggingface" / "hub"


def facts(config: Json, model_digest: str) -> Json | None:
    """The wire's `Model`, or None if the file names no architecture.

    SGLang's own selection looks for a group's `format` inside `text_config` alone; its loader takes
    the quantisation from there or from the top of the file, and looks at the `format` beside the
    groups. Both views are kept apart.
    """
    names = config.get("architectures")
    architecture = shapes.kept(shapes.NAME, names[0] if isinstance(names, list) and names else None)
    if architecture is None:
        return None
    inner = _dict(config.get("text_config"))
    seen_by_selection = _quantization(config if inner is None else inner)
    seen_by_loader = _quantization(inner or {}) or _quantization(config)
    return {
        "digest": model_digest,
        "architecture": architecture,
        "quant_method": shapes.kept(shapes.NAME, seen_by_loader.get("quant_method")),
        "format_top_level": shapes.kept(shapes.NAME, seen_by_loader.get("format"))
        or (_group_format(seen_by_loader) if not seen_by_selection else None),
        "format_group": _group_format(seen_by_selection),
    }


def _dict(value: object) -> Json | None:
    return value if isinstance(value, dict) else None


def _quantization(config: Json) -> Json:
    return _dict(config.get("quantization_config")) or {}


def _group_format(quantization: Json) -> str | None:
    """The MXFP4 format of any group, else the first group's format."""
    groups = _dict(quantization.get("config_groups")) or {}
    formats = [
        text
        for text in (
            shapes.kept(shapes.NAME, group.get("format"))
            for group in groups.values()
            if isinstance(group, dict)
        )
        if text is not None
    ]
    return next((text for text in formats if "mxfp4" in text), formats[0] if formats else None)


def shape(config: Json) -> dict[str, int]:
    """The experts' shape for the wire's `Layout`; 0 where the file does not say."""
    inner = _dict(config.get("text_config")) or {}
    found: dict[str, int] = {}
    for field, keys in SHAPE_KEYS.items():
        values = [place.get(key) for key in keys for place in (inner, config)]
        numbers = [value for value in values if shapes.is_count(value) and value]
        found[field] = int(numbers[0]) if numbers else 0
    layers = _expert_layers(config, inner)
    return {**found, "expert_layers": layers} if layers else found


def _expert_layers(config: Json, inner: Json) -> int:
    """How many layers have routed experts; 0 where the file does not say which.

    The same reading as the controller's `domain/memory/shape.py`: nothing is guessed, because a size
    is told from it.
    """
    text = inner or config
    layers, first = text.get("num_hidden_layers") or 0, text.get("first_k_dense_replace")
    step, dense_only = text.get("decoder_sparse_step"), text.get("mlp_only_layers")
    named = any(value is not None for value in (first, step, dense_only))
    everywhere = config.get("model_type") == MODEL_WITH_EXPERTS_IN_EVERY_LAYER
    cadence = text.get("moe_layer_freq") or 1
    first = 0 if first is None else first
    if not (named or everywhere) or step not in (None, 1) or dense_only not in (None, []):
        return 0
    if not all(map(shapes.is_count, (layers, first, cadence))) or layers > LAYERS_MAX:
        return 0
    return sum(number >= first and number % cadence == 0 for number in range(layers))


def asserts_auto(config: Json | None, stated_quantization: str | None) -> bool:
    """Whether a draft model stops SGLang unless the runner is `auto`: AWQ and GPTQ assert it."""
    method = _quantization(config or {}).get("quant_method")
    inner = _quantization(_dict((config or {}).get("text_config")) or {}).get("quant_method")
    return any(
        isinstance(name, str) and name.lower().startswith(METHODS_THAT_ASSERT_AUTO)
        for name in (method, inner, stated_quantization)
    )
