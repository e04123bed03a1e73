"""The node's state folder: credential, last verified directive, what was appended last.

Any of it may be missing, unreadable, full or read-only: reading gives None, writing is tried.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smgate_agent.launch import contact, ed25519, kernel_key, shapes, whole_file

Json = dict[str, Any]
FILE_BYTES_MAX = 4 << 20
CREDENTIAL_FILE, IDENTITY_FILE = "credential.json", "identity.json"
"""The agent's own, and what of it is no secret."""
LAST_APPENDED, MODELS, DRY_RESOLVED = "last_appended", "models", "dry_resolved"
LAUNCHES = "launches"
DISAGREED, BARRIERS = f"{LAUNCHES}/disagreed", f"{LAUNCHES}/barriers"
"""Below the one folder that a server in a container has from its host, and that outlives it."""


@dataclass(frozen=True)
class Identity:
    """Who this node is. Without a credential it can only verify and use the agent's socket."""

    node: str
    public_key: str
    incarnation: str | None = None
    controller_url: str | None = None
    credential: str | None = None


def read_json(path: Path) -> Json | None:
    """The object in a file, or None."""
    try:
        with path.open("rb") as stream:
            body = stream.read(FILE_BYTES_MAX + 1)
        value = shapes.parse(body) if len(body) <= FILE_BYTES_MAX else None
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: Json) -> bool:
    """Replace a file whole or not at all; nothing that is written here is a secret.

    The state folder itself is made at enrolment, not here.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        data = json.dumps(value, sort_keys=True).encode()
        whole_file.replace(path, data, mode=whole_file.PUBLIC)
    except (OSError, ValueError):
        return False
    return True


def identity_of(value: Json | None) -> Identity | None:
    """An identity from its JSON, or None if the node or the pinned key is missing."""
    if value is None:
        return None
    node = shapes.kept(shapes.NAME, value.get("node"))
    public_key = shapes.kept(shapes.PUBLIC_KEY, value.get("public_key"))
    if node is None or public_key is None:
        return None
    url, credential = value.get("controller_url"), value.get("credential")
    return Identity(
        node=node,
        public_key=public_key,
        incarnation=shapes.kept(shapes.NAME, value.get("incarnation")),
        controller_url=url if isinstance(url, str) else None,
        credential=credential if isinstance(credential, str) and credential.isascii() else None,
    )


@dataclass(frozen=True)
class Store:
    """The state folder."""

    folder: Path

    def identity(self, path: str | None) -> Identity | None:
        """The enrolment written by `smgate-agent enroll`, or the file named instead.

        A gate of another user than the agent's has no credential, and may know whom to believe.
        """
        if path:
            return identity_of(read_json(Path(path)))
        files = (self.folder / name for name in (CREDENTIAL_FILE, IDENTITY_FILE))
        return next(filter(None, (identity_of(read_json(file)) for file in files)), None)

    def held(self, identity: Identity) -> Json | None:
        """The last directive for this node whose signature still verifies, or None."""
        saved = read_json(self.folder / "directive.json")
        try:
            return verified(saved, identity)
        except shapes.MalformedError:
            return None

    def save_directive(self, signed: Json, directive: Json, identity: Identity) -> None:
        """Keep a verified directive, unless a newer one of its log is there already."""
        if not is_older(directive, self.held(identity)):
            write_json(self.folder / "directive.json", signed)

    def heard(self) -> Json | None:
        """When the controller was heard last, by `contact.now`."""
        return read_json(self.folder / contact.CONTACT_FILE)

    def save_heard(self) -> None:
        """The controller was heard now."""
        write_json(self.folder / contact.CONTACT_FILE, contact.now())

    def last_appended(self, unit: str) -> Json | None:
        """What was appended last for a unit, and what it was given for."""
        return read_json(self._unit_file(unit))

    def save_appended(self, unit: str, value: str, given_for: Json) -> None:
        """Remember what is being appended."""
        write_json(self._unit_file(unit), {"unit": unit, "value": value, "given_for": given_for})

    def model(self, digest: str) -> Json | None:
        """The last reading of a model path and revision."""
        return read_json(self.folder / MODELS / f"{digest}.json")

    def save_model(self, digest: str, reading: Json) -> None:
        """Remember a reading of a model path and revision."""
        if self.model(digest) != reading:
            write_json(self.folder / MODELS / f"{digest}.json", reading)

    def dry_resolved(self, name: str) -> Json | None:
        """What SGLang made of a launch of this name."""
        return read_json(self.folder / DRY_RESOLVED / f"{name}.json")

    def save_dry_resolved(self, name: str, pair: Json) -> None:
        """Remember what SGLang made of a launch."""
        write_json(self.folder / DRY_RESOLVED / f"{name}.json", pair)

    def save_launch(self, launch_id: str, record: Json) -> None:
        """Leave word for the resident agent which process this launch became."""
        write_json(self.folder / LAUNCHES / f"{launch_id}.json", record)

    def disagreed(self, unit: str) -> Json | None:
        """What the ranks of a unit disagreed about, when that ended a launch of it."""
        return read_json(self._unit_file(unit, DISAGREED))

    def save_disagreed(self, unit: str, record: Json) -> bool:
        """Remember that a launch is being ended because its ranks disagree; whether it was kept."""
        self._make_launches()
        return write_json(self._unit_file(unit, DISAGREED), record)

    def save_barrier(self, launch_id: str, record: Json) -> None:
        """Leave word of how a launch came past SGLang's own launch gate."""
        self._make_launches()
        write_json(self.folder / BARRIERS / f"{launch_id}.json", record)

    def _make_launches(self) -> None:
        with contextlib.suppress(OSError):
            (self.folder / LAUNCHES).mkdir(exist_ok=True)

    def _unit_file(self, unit: str, folder: str = LAST_APPENDED) -> Path:
        name = kernel_key.canonical_digest(unit) if "/" in unit else unit
        return self.folder / folder / f"{name}.json"


def verified(signed: object, identity: Identity) -> Json:
    """The directive inside, if it is signed by the pinned key and meant for this node.

    Raises:
        MalformedError: its text is the code of what is wrong.
    """
    directive = _opened(signed, identity)
    if directive["node"] != identity.node:
        raise shapes.MalformedError("directive_of_another_node")
    return directive


def decision_of(signed: object, identity: Identity, unit: str, launch_id: object) -> Json | None:
    """What a directive says of a unit's launch, whichever of its nodes it was meant for."""
    try:
        directive = _opened(signed, identity)
    except shapes.MalformedError:
        return None
    for entry in directive["units"]:
        if entry["unit"] == unit and launch_id in entry["launch_ids"]:
            return dict(entry)
    return None


def _opened(signed: object, identity: Identity) -> Json:
    envelope = shapes.signed_directive(signed)
    text = str(envelope["signed"])
    try:
        message = text.encode()
    except UnicodeEncodeError as exc:
        raise shapes.MalformedError("directive_malformed") from exc
    if not ed25519.verify_hex(identity.public_key, message, str(envelope["signature"])):
        raise shapes.MalformedError("signature_bad")
    return shapes.directive(text)


def is_older(directive: Json, held: Json | None) -> bool:
    """Whether a directive comes before the one that is held.

    Within one log the generation orders them. After a restore the log has a new incarnation; then
    the controller's own time says which log is the newer one.
    """
    if held is None:
        return False
    if directive["incarnation"] == held["incarnation"]:
        return bool(directive["generation"] < held["generation"])
    return bool(directive["issued_at_us"] < held["issued_at_us"])
