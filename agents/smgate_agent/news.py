"""What the resident agent writes into its log: each state once, when it begins.

An operator who reads the log of a quiet node must find why it is quiet; one who reads the log of a
node in trouble must not wade through a line per second. So a topic is said when it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from smgate_agent import controller_link, found, identity, outbox, outbox_file

_CREDENTIAL_REFUSED: Final = frozenset({"http_401", "http_403", "wrong_kind_of_token"})
_CREDENTIAL_CODES: Final = "token_"
"""Every refusal of a token begins so; its code says whether it is unknown, revoked or expired."""


class News:
    """Remembers what was said last about each topic."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, str] = {}

    def say(self, topic: str, sentence: str, *, level: int = logging.INFO) -> None:
        """Log the sentence unless it is what was said last about this topic."""
        if self._said.get(topic) != sentence:
            self._said[topic] = sentence
            self._log.log(level, "%s", sentence)

    def forget(self, topic: str) -> None:
        """It is over: the next time it is news again."""
        self._said.pop(topic, None)

    def enrolment(self, credential: identity.Credential | None, state_dir: Path) -> None:
        """Who this node is, or that it is nobody yet."""
        if credential is not None:
            sentence = f"This is node {credential.node} of {credential.controller_url}."
            self.say("enrolment", sentence)
            return
        path = state_dir / identity.CREDENTIAL_FILE
        found = "cannot be used" if path.exists() else "is not there"
        self.say(
            "enrolment",
            f"Not enrolled: {path} {found}. Facts are kept and nothing is sent until "
            "`smgate-agent enroll` has run.",
            level=logging.WARNING,
        )

    def links(self, links: Mapping[str, controller_link.Link]) -> None:
        """Whether the controller answers, and what is wrong if it does not."""
        for name, link in links.items():
            state = link.state
            topic = f"link {name}"
            if state.reachable and state.code is None:
                self.say(topic, f"The controller answers for {name}.")
            elif _is_refused(state.code):
                self.say(
                    topic,
                    f"The controller refuses this node's credential ({name}: {state.code}). "
                    "Run `smgate-agent enroll` again.",
                    level=logging.ERROR,
                )
            elif state.code == "state_dir_unwritable":
                self.say(
                    topic,
                    "The controller's directive cannot be kept: the state directory cannot be "
                    "written. Launches here follow the last one that was.",
                    level=logging.ERROR,
                )
            elif state.code is not None and name == "facts" and state.refused:
                self.say(
                    topic,
                    f"The controller refuses facts ({state.code}), and not for a reason that this "
                    "agent acts on. They are kept and sent again. The controller's log says what "
                    "it misses; a newer agent may know the code.",
                    level=logging.ERROR,
                )
            elif state.code is not None:
                said = "answers what cannot be used" if state.reachable else "does not answer"
                self.say(
                    topic,
                    f"The controller {said} for {name} ({state.code}). Servers keep what they "
                    "have; it is asked again.",
                    level=logging.WARNING,
                )

    def scan(self, shown: found.Shown) -> None:
        """Whether all servers of this machine can be found."""
        if shown.code is None:
            self.forget("scan")
            return
        self.say(
            "scan",
            f"Servers that nobody declared may be missed ({shown.code}): {shown.sentence}",
            level=logging.WARNING,
        )

    def outbox(self, standing: outbox.Standing, path: Path) -> None:
        """Whether facts can be kept."""
        if standing.outbox_id == outbox_file.UNKNOWN_OUTBOX:
            self.say(
                "outbox",
                f"The outbox {path} cannot be used: facts are lost until it can. Look at the "
                "disk and the permissions.",
                level=logging.ERROR,
            )
        else:
            self.say("outbox", f"The outbox is {standing.outbox_id}.")
        if standing.dropped:
            self.say(
                "dropped",
                "Facts found no room or were refused; a full report follows them.",
                level=logging.WARNING,
            )


def _is_refused(code: str | None) -> bool:
    return code is not None and (code in _CREDENTIAL_REFUSED or code.startswith(_CREDENTIAL_CODES))
