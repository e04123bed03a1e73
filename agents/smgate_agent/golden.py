"""Hand on what a job of the operator's found: answers of a running server to golden prompts.

The job asks the prompts and counts; prompts and answers never come here. It is a fact of an outbox
of its own, so it may be sent again: a job that was told nothing sends it until it was.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from smgate.wire import base, facts
from smgate_agent import controller_link, http1

FILE_BYTES_MAX: Final = 64 << 10
_TIMEOUT_S: Final = 30.0
_OK: Final = 200


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: which set of prompts, how many of them, how many came out wrong."""

    set_digest: base.Digest
    prompts: base.Positive
    mismatches: base.Count
    run: base.Name
    """Names this run of the job: the same run sent again is the same fact."""
    finished_at_us: base.Micros
    """When it ended, by this node's clock."""


class GoldenError(Exception):
    """It was not taken in. `status` is the controller's, None if it did not answer."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def read(data: bytes) -> Result:
    """The job's result.

    Raises:
        GoldenError: it is not one.
    """
    if len(data) > FILE_BYTES_MAX:
        raise GoldenError(f"Not a result: longer than {FILE_BYTES_MAX} bytes.")
    try:
        result = msgspec.json.decode(data, type=Result)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise GoldenError(f"Not a result: {exc}.") from exc
    if result.mismatches > result.prompts:
        raise GoldenError("Not a result: more mismatches than prompts.")
    return result


def send(link: controller_link.Link, result: Result, instance_id: str) -> None:
    """Report it; durable when this returns.

    Raises:
        GoldenError: refused, or no answer.
    """
    name = hashlib.sha256(f"{link.node}/{result.run}".encode()).hexdigest()[:32]
    said = facts.GoldenFinished(
        instance_id=instance_id,
        set_digest=result.set_digest,
        prompts=result.prompts,
        mismatches=result.mismatches,
    )
    batch = facts.FactsBatch(
        node=link.node,
        outbox_id=f"golden-{name}",
        facts=(facts.Fact(sequence=1, occurred_at_us=result.finished_at_us, payload=said),),
    )
    try:
        answer = link.request(
            "POST", "/v1/agent/facts", timeout_s=_TIMEOUT_S, body=base.encode(batch)
        )
    except http1.HttpError as exc:
        raise GoldenError(f"The controller did not answer ({exc.code}).") from exc
    if answer.status != _OK:
        code = controller_link.problem_code(answer.body) or f"http_{answer.status}"
        raise GoldenError(f"The controller refused it ({code}).", status=answer.status)
