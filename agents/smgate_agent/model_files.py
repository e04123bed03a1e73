"""Find a model's `config.json` on this machine and weigh its checkpoint; remembers what it read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from smgate_agent import config, files, launch_records, model_config

Found = tuple[model_config.ModelConfig, int | None]

NOTHING: Final[Found] = (model_config.ModelConfig(), None)
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_HF_HOME: Final = "root/.cache/huggingface"
"""Of SGLang's images, which run as root."""
SHARDS_MAX: Final = 4096
"""Files of one checkpoint that are weighed; Kimi-K3 has a few hundred."""


class ModelFiles:
    """Reads each place once; a server's model does not change while it runs."""

    def __init__(self, hf_home: str | None = None) -> None:
        self._hf_home = hf_home
        self._read: dict[Path, Found] = {}

    def look(
        self,
        declared: config.Instance,
        launch: launch_records.LaunchRecord | None,
        model_path: str | None,
    ) -> Found:
        """The config that was declared, else the one where the server says its model is."""
        for path in _places(declared, launch, model_path, self._hf_home):
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
    declared: config.Instance,
    launch: launch_records.LaunchRecord | None,
    model_path: str | None,
    hf_home: str | None,
) -> list[Path]:
    if declared.model_config is not None:
        return [Path(declared.model_config)]
    names = [launch.model_path if launch is not None else None, model_path]
    roots = [Path("/")]
    if launch is not None and launch.pid is not None and launch_records.process(launch) == "alive":
        # Inside a container a path means something else; its root is seen from here.
        roots.insert(0, Path(f"/proc/{launch.pid}/root"))
    places: list[Path] = []
    for name in dict.fromkeys(name for name in names if name is not None):
        if name.startswith("/"):
            places += [root / name.lstrip("/") / "config.json" for root in roots]
        elif _REPOSITORY.fullmatch(name):
            homes = [root / _HF_HOME for root in roots] + ([Path(hf_home)] if hf_home else [])
            places += [place for home in homes if (place := _cached(home, name)) is not None]
    return places


def _cached(home: Path, repository: str) -> Path | None:
    """Where the Hugging Face cache keeps the config of a repository's main revision."""
    folder = home / "hub" / ("models--" + repository.replace("/", "--"))
    try:
        commit = files.read_bounded(folder / "refs/main", bytes_max=200).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return folder / "snapshots" / commit / "config.json" if _COMMIT.fullmatch(commit) else None


def _checkpoint_bytes(directory: Path) -> int | None:
    try:
        shards = sorted(directory.glob("*.safetensors"))
        if not shards or len(shards) > SHARDS_MAX:
            return None
        return sum(shard.stat().st_size for shard in shards)
    except OSError:
        return None
