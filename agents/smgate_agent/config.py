"""Settings of the resident agent: read once from one TOML file and a few variables, then frozen."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from smgate.wire import base, facts
from smgate_agent import files, log_frames

DEFAULT_PATH: Final = Path("/etc/smgate-agent/agent.toml")
DEFAULT_STATE_DIR: Final = "/var/lib/smgate-agent"
DEFAULT_SOCKET: Final = "/run/smgate-agent/agent.sock"

_ENVIRONMENT: Final = {
    "SMGATE_STATE_DIR": "state_dir",
    "SMGATE_AGENT_SOCKET": "socket",
    "SMGATE_AGENT_METRICS_PORT": "metrics_port",
}

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class ConfigError(ValueError):
    """The configuration cannot be used; the text says where and why."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the configuration's tables: an unknown key is an error, not a surprise."""


class Instance(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One declared server rank on this node."""

    id: base.Name
    """Name of the instance, unique on the node."""
    url: str | None = None
    """`http://127.0.0.1:30000`; none for a rank that is only known by its log."""
    log: str | None = None
    """Path of its log, or a glob of which the newest file is followed."""
    log_format: log_frames.Shape = "plain"
    """`plain`, `cri` (Kubernetes) or `docker` (json-file)."""
    api_key_file: str | None = None
    """File with the server's API key; the key itself never stands in a configuration."""
    gpu_uuids: tuple[base.GpuUuid, ...] = ()
    unit_name: base.Name | None = None
    workload: base.Name | None = None
    nnodes: base.Positive = 1
    node_rank: base.Count = 0
    rendezvous: base.Name | None = None
    launch_id: base.Name | None = None
    """Links the instance to a launch; without it the launch gate's record does."""
    restarter: facts.Restarter = "external"
    """Who restarts it; `hook` if and only if there is a `drain_hook`."""
    drain_hook: tuple[str, ...] = ()
    """Program and arguments that restart the whole unit; run once when the controller orders it."""
    drain_hook_timeout_s: Seconds = 300.0
    """How long it may run before it is killed."""
    drain_hook_on: Literal["first_rank", "every_rank"] = "first_rank"
    """Of a unit over several nodes: whether only the first rank's node runs it, or each its own."""
    model_config: str | None = None
    """Path of the model's `config.json`, where the path in the log does not exist on this node."""
    architecture: base.Name | None = None
    """The model's architecture, where no `config.json` can be read before it is served."""
    mxfp4: bool | None = None
    """Whether its experts are packed MXFP4, likewise."""
    expected_packed_bytes: base.Positive | None = None
    """Most that this rank weighs when packed; without it, computed where the model is readable."""
    bake_interval_s: Annotated[int, msgspec.Meta(ge=0, le=86400)] = 0
    """Report requests and failures from `/metrics` this often while it bakes; 0: never."""


class AgentConfig(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one agent."""

    state_dir: str = DEFAULT_STATE_DIR
    """Credential, outbox, directive, launch records; on a disk that survives a restart."""
    socket: str = DEFAULT_SOCKET
    """Unix socket of the launch gate."""
    metrics_port: Port = 9472
    """Port of `/metrics`; 0: none."""
    metrics_host: str = "127.0.0.1"
    """Address of that port; in a pod, where the loopback address is its own, `0.0.0.0`."""
    ca_file: str | None = None
    """Certificate authority of the controller, if the system does not know it."""
    hf_home: str | None = None
    """Hugging Face home as this node sees it, to find the config of a model named by repository."""
    rack: base.Name | None = None
    chassis: base.Name | None = None
    pool: bool = False
    ephemeral: bool = False
    poll_interval_s: Seconds = 10.0
    """How often a server's health is asked and its log is read."""
    scan_interval_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 30.0
    """How often the machine's processes are looked through for servers nobody declared; 0: never."""
    bake_interval_s: Annotated[int, msgspec.Meta(ge=0, le=86400)] = 0
    """`bake_interval_s` of servers nobody declared: without one, a rollout's bake counts no time."""
    info_interval_s: Seconds = 300.0
    """How often `/server_info` is asked again once it was read."""
    request_timeout_s: Seconds = 5.0
    """Whole time of one request to a server, however slowly it answers."""
    directive_wait_s: Annotated[int, msgspec.Meta(ge=0, le=60)] = 30
    """Long-poll time; 0 is plain polling."""
    outbox_bytes_max: Annotated[int, msgspec.Meta(ge=1 << 20)] = 256 << 20
    """The outbox never grows beyond this; facts that find no room are counted and a gap is said."""
    architectures: tuple[base.Name, ...] = ("KimiK3ForConditionalGeneration",)
    """Architectures whose BF16 fallback is told by the resolved runner."""
    instance: tuple[Instance, ...] = ()


def load(path: Path | None, environ: Mapping[str, str] | None = None) -> AgentConfig:
    """Read the file (the default one may be absent) and the environment.

    Raises:
        ConfigError: unreadable, unknown key, wrong type, contradiction.
    """
    source = path or DEFAULT_PATH
    values: dict[str, Any] = {}
    if path is not None or source.exists():
        try:
            values = tomllib.loads(files.read_bounded(source).decode())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
            raise ConfigError(f"{source}: {exc}") from exc
    # The one place of the agent that reads the environment.
    variables = os.environ if environ is None else environ  # noqa: TID251
    for variable, key in _ENVIRONMENT.items():
        if variable in variables:
            values[key] = variables[variable]
    try:
        config = msgspec.convert(values, AgentConfig, strict=False)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"{source}: {exc}") from exc
    _check(source, config)
    return config


def _check(source: Path, config: AgentConfig) -> None:
    seen: set[str] = set()
    for instance in config.instance:
        if instance.id in seen:
            raise ConfigError(f"{source}: two instances are named {instance.id}")
        seen.add(instance.id)
        if instance.url is None and instance.log is None:
            raise ConfigError(f"{source}: instance {instance.id} has neither url nor log")
        if instance.url is not None and not is_http_url(instance.url, schemes=("http",)):
            raise ConfigError(f"{source}: instance {instance.id}: url must be http://host:port")
        if (instance.restarter == "hook") != bool(instance.drain_hook):
            raise ConfigError(
                f"{source}: instance {instance.id}: restarter = hook goes with a drain_hook"
            )
        if instance.drain_hook and not Path(instance.drain_hook[0]).is_absolute():
            raise ConfigError(
                f"{source}: instance {instance.id}: drain_hook must begin with an absolute path"
            )
        if instance.node_rank >= instance.nnodes:
            raise ConfigError(f"{source}: instance {instance.id}: node_rank is not below nnodes")


def is_http_url(url: str, *, schemes: tuple[Literal["http", "https"], ...]) -> bool:
    """Is it scheme://host[:port][/path], without credentials, query or fragment?"""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in schemes
            and bool(parts.hostname)
            and parts.username is None
            and not parts.query
            and not parts.fragment
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        return False
