"""Find a model's `config.json` on this machine and weigh its checkpoint; remembers what it read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from smgate_agent import config, files, launch_records, model_config

Found = tuple[model_config.ModelConfig, int | None]

NOTHING: Final[Found] = (model_config.ModelConfig(), None)
SHARDS_MAX: Final = 4096
"""Files of one checkpoint that are weighed; Kimi-K3 has a few hundred."""


class ModelFiles:
    """Reads each place once; a server's model does not change while it runs."""

    def __init__(self) -> None:
        self._read: dict[Path, Found] = {}

    def look(
        self,
        declared: config.Instance,
        launch: launch_records.LaunchRecord | None,
        model_path: str | None,
    ) -> Found:
        """The config that was declared, else the one where the server says its model is."""
        for path in _places(declared, launch, model_path):
            if path in self._read:
                return self._read[path]
            try:
                body = files.read_bounded(path)
            except OSError:
                continue
            found = (model_config.parse(body), _checkpoint_bytes(path.parent))
            self._read = {path: found}
            return found
        return NOTHING


def _places(
    declared: config.Instance, launch: launch_records.LaunchRecord | None, model_path: str | None
) -> list[Path]:
    if declared.model_config is not None:
        return [Path(declared.model_config)]
    paths = [launch.model_path if launch is not None else None, model_path]
    absolute = [Path(path) for path in paths if path is not None and path.startswith("/")]
    places = [path / "config.json" for path in absolute]
    if launch is not None and launch.pid is not None and launch_records.process(launch) == "alive":
        # Inside a container the path means something else; its root is seen from here.
        root = Path(f"/proc/{launch.pid}/root")
        places = [root / path.relative_to("/") / "config.json" for path in absolute] + places
    return places


def _checkpoint_bytes(directory: Path) -> int | None:
    try:
        shards = sorted(directory.glob("*.safetensors"))
        if not shards or len(shards) > SHARDS_MAX:
            return None
        return sum(shard.stat().st_size for shard in shards)
    except OSError:
        return None
