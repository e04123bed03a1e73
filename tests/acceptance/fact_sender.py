"""Sends numbered facts to a controller that keeps dying, and writes down what was acknowledged.

Run as a process of its own: `fact_sender.py URL TOKEN_FILE NODE OUTBOX ACKS_FILE STOP_FILE`. It
imports nothing of smgate. A batch is sent until it is acknowledged; only then is it written down.
"""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import sys
import time
import urllib.parse

BATCH = 3


def main(url: str, token_file: str, node: str, outbox: str, acks: str, stop: str) -> None:
    token = pathlib.Path(token_file).read_text()
    host = urllib.parse.urlsplit(url).netloc
    first = 1
    with open(acks, "a") as record:
        while not pathlib.Path(stop).exists():
            if not send(host, token, body_of(node, outbox, first), through=first + BATCH - 1):
                time.sleep(0.02)
                continue
            record.writelines(f"{sequence}\n" for sequence in range(first, first + BATCH))
            record.flush()
            os.fsync(record.fileno())
            first += BATCH


def body_of(node: str, outbox: str, first: int) -> bytes:
    facts = [
        {
            "sequence": sequence,
            "occurred_at_us": sequence,
            "payload": {
                "type": "node_reported",
                "agent_version": "1",
                "rack": f"{outbox}.{sequence}",
            },
        }
        for sequence in range(first, first + BATCH)
    ]
    return json.dumps({"node": node, "outbox_id": outbox, "facts": facts}).encode()


def send(host: str, token: str, body: bytes, *, through: int) -> bool:
    """True if the controller said that everything in it is durable."""
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("POST", "/v1/agent/facts", body, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    if answer.status in (429, 503):
        return False
    if answer.status != 200:
        raise SystemExit(f"refused: {answer.status} {content!r}")
    return json.loads(content)["acknowledged_through"] >= through


if __name__ == "__main__":
    main(*sys.argv[1:])
