"""Who this node is to the controller: enrolment, the credential file, the machine id.

Tokens come from a file or standard input, never from an argument, and are never printed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

import smgate_agent
from smgate.wire import base, directive
from smgate_agent import files, http1
from smgate_agent.launch import state, whole_file

CREDENTIAL_FILE: Final = state.CREDENTIAL_FILE
TOKEN_BYTES_MAX: Final = 4096
_MACHINE_ID_FILE: Final = "machine-id"
_MACHINE_ID: Final = re.compile(r"[0-9a-f]{16,64}")
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,1024}")
_TIMEOUT_S: Final = 30.0
_OK: Final = 200
_CREATED: Final = 201


class EnrollError(Exception):
    """Enrolment did not happen; code, sentence and next step for a person."""

    def __init__(
        self, code: str, message: str, next_step: str, *, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.next_step = next_step


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """The node's own credential and the key that its directives are signed with."""

    node: base.Name
    controller_url: str
    credential: str
    public_key: str
    incarnation: base.Name


def read_token(data: bytes) -> str:
    """A token as it stands in a file or arrives on standard input.

    Raises:
        EnrollError: empty, too long, or not one word.
    """
    text = data[: TOKEN_BYTES_MAX + 1].decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(text):
        raise EnrollError(
            "token_unreadable",
            "The join token is empty or is not one word.",
            "Give the file that `smgate token issue` wrote.",
        )
    return text


def machine_id(state_dir: Path, *, etc: Path, new_id: Callable[[], str]) -> str:
    """The system's machine id, else a random one that is kept in the state directory."""
    own = state_dir / _MACHINE_ID_FILE
    for path in (etc, own):
        try:
            text = files.read_bounded(path, bytes_max=200).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if _MACHINE_ID.fullmatch(text):
            return text
    made = new_id()
    whole_file.replace(own, made.encode())
    return made


def enroll(client: http1.Client, *, token: str, node: str, machine: str) -> directive.EnrollAnswer:
    """Exchange a join token for the node's credential.

    Raises:
        EnrollError: refused, unreachable, or the answer is not one.
    """
    request = directive.EnrollRequest(
        node=node, machine_id=machine, agent_version=smgate_agent.VERSION
    )
    try:
        answer = client.request(
            "POST",
            "/v1/agent/enroll",
            timeout_s=_TIMEOUT_S,
            headers={"Authorization": f"Bearer {token}"},
            body=base.encode(request),
        )
    except http1.HttpError as exc:
        raise EnrollError(
            "controller_unreachable",
            f"The controller did not answer ({exc.code}).",
            "Check the URL and the network, then run enroll again; the token is still good.",
        ) from exc
    if answer.status not in {_OK, _CREATED}:
        raise _refused(answer)
    try:
        made = base.decode(answer.body, directive.EnrollAnswer)
    except base.MalformedError:
        made = None
    if made is None or made.node != node:
        raise EnrollError(
            "answer_malformed",
            "The answer is not an enrolment of this node.",
            "Check that the URL is a smgate controller of this version.",
        )
    return made


def save(state_dir: Path, controller_url: str, answer: directive.EnrollAnswer) -> Credential:
    """Write the credential, readable by its owner alone, and what gates may know of it."""
    credential = Credential(
        node=answer.node,
        controller_url=controller_url,
        credential=answer.credential,
        public_key=answer.public_key,
        incarnation=answer.incarnation,
    )
    whole_file.replace(state_dir / CREDENTIAL_FILE, msgspec.json.encode(credential))
    publish(state_dir, credential)
    return credential


def publish(state_dir: Path, credential: Credential) -> None:
    """Write down who this node is and whose directives count, without the credential."""
    public = msgspec.json.encode(
        {
            "node": credential.node,
            "controller_url": credential.controller_url,
            "public_key": credential.public_key,
            "incarnation": credential.incarnation,
        }
    )
    path = state_dir / state.IDENTITY_FILE
    with contextlib.suppress(OSError):
        if files.read_bounded(path) == public:
            return
    whole_file.replace(path, public, mode=whole_file.PUBLIC)


def load(state_dir: Path) -> Credential | None:
    """The credential, or None if the node is not enrolled (or the file is not one)."""
    try:
        data = files.read_bounded(state_dir / CREDENTIAL_FILE, bytes_max=64 << 10)
        return msgspec.json.decode(data, type=Credential)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


def _refused(answer: http1.Answer) -> EnrollError:
    try:
        problem = base.decode(answer.body, base.ErrorBody).error
    except base.MalformedError:
        return EnrollError(
            "enroll_refused",
            f"The controller answered {answer.status} without saying why.",
            "Check that the URL is a smgate controller.",
            status=answer.status,
        )
    return EnrollError(problem.code, problem.message, problem.next_step, status=answer.status)
