"""Owns tokens: who holds one, what it allows, how long. Only hashes are stored.

A token is 256 random bits, so its plain SHA-256 cannot be searched for; a slow hash would protect
nothing more. The prefix says what a leaked one is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import threading
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import sqlalchemy as sa

from smgate import clock as clock_module
from smgate.log import database, tables
from smgate.service import refusal
from smgate.views import shape

Kind = Literal["join", "node", "operator"]
Role = Literal["viewer", "operator", "approver", "admin"]

PREFIXES: Final[dict[Kind, str]] = {"join": "smgj", "node": "smgn", "operator": "smgo"}
ROLES: Final[tuple[Role, ...]] = ("viewer", "operator", "approver", "admin")
"""Each role may do what those before it may; admin may also issue and revoke tokens."""

SUBJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,119}")
BAD_NAME: Final = (
    "The name may have 120 letters, digits and ._:/@+- and begins with one of the first two."
)
TOKEN: Final = re.compile(r"smg[jno]_[A-Za-z0-9_-]{43}")

CACHE_S: Final = 1.0
"""A token revoked by another process is still taken here for this long."""
CACHE_MAX: Final = 50_000

_TABLE = tables.CREDENTIAL.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Who a token belongs to."""

    id: str
    kind: Kind
    subject: str
    role: Role | None
    created_at_us: int
    expires_at_us: int | None
    revoked_at_us: int | None

    def may(self, role: Role) -> bool:
        """True if this is an operator of at least that role."""
        return self.role is not None and ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new token. The only moment it is known."""

    credential: Credential
    token: str


class Credentials:
    """The table of tokens."""

    def __init__(self, opened: database.Database, *, clock: clock_module.Clock) -> None:
        self._database: Final = opened
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._cache: dict[str, tuple[int, Credential]] = {}

    def issue(
        self,
        *,
        kind: Kind,
        subject: str,
        role: Role | None = None,
        ttl_s: float | None = None,
        public_key: str | None = None,
    ) -> Issued:
        """Make a token. `public_key` is what a node pins together with its credential.

        Raises:
            RefusedError: `bad_token_request`.
        """
        _check(kind=kind, subject=subject, role=role, ttl_s=ttl_s)
        token = clock_module.new_token(PREFIXES[kind])
        now_us = self._clock.now_us()
        made = Credential(
            id=clock_module.new_id()[:16],
            kind=kind,
            subject=subject,
            role=role,
            created_at_us=now_us,
            expires_at_us=None if ttl_s is None else now_us + round(ttl_s * 1_000_000),
            revoked_at_us=None,
        )
        with self._database.writing() as connection:
            connection.execute(
                sa.insert(tables.CREDENTIAL).values(
                    id=made.id,
                    kind=kind,
                    subject=subject,
                    role=role,
                    token_hash=hash_of(token),
                    created_at_us=now_us,
                    expires_at_us=made.expires_at_us,
                    public_key=public_key,
                )
            )
        return Issued(credential=made, token=token)

    def authenticate(self, token: str) -> Credential:
        """Whose token this is.

        Raises:
            RefusedError: 401 with the reason: malformed, unknown, expired or revoked.
        """
        if TOKEN.fullmatch(token) is None:
            raise _unauthorized("token_malformed", "This is not a token of smgate.")
        found = self._find(hash_of(token))
        if found is None:
            raise _unauthorized("token_unknown", "Nobody has this token.")
        if found.revoked_at_us is not None:
            raise _unauthorized("token_revoked", "This token was revoked.")
        if found.expires_at_us is not None and found.expires_at_us <= self._clock.now_us():
            raise _unauthorized("token_expired", "This token has expired.")
        return found

    def pinned(self) -> dict[str, int]:
        """How many nodes hold directives to which public key."""
        with self._database.reading() as connection:
            rows = connection.execute(
                sa.select(_TABLE.public_key, sa.func.count())
                .where(
                    _TABLE.kind == "node",
                    _TABLE.revoked_at_us.is_(None),
                    _TABLE.public_key.is_not(None),
                )
                .group_by(_TABLE.public_key)
            ).all()
        return {row[0]: row[1] for row in rows}

    def revoke(self, credential_id: str) -> bool:
        """End a token; False if it had ended.

        Raises:
            RefusedError: `unknown_token`.
        """
        with self._database.writing() as connection:
            known = connection.execute(
                sa.select(_TABLE.revoked_at_us).where(_TABLE.id == credential_id)
            ).first()
            if known is None:
                raise refusal.not_found("token", credential_id)
            if known[0] is not None:
                return False
            self._end(connection, _TABLE.id == credential_id)
        self._forget()
        return True

    def revoke_nodes(self, node: str, *, except_id: str) -> None:
        """End a node's earlier credentials."""
        with self._database.writing() as connection:
            self._end(
                connection,
                sa.and_(
                    _TABLE.kind == "node",
                    _TABLE.subject == node,
                    _TABLE.id != except_id,
                    _TABLE.revoked_at_us.is_(None),
                ),
            )
        self._forget()

    def list(self) -> list[Credential]:
        """All tokens, the newest first, without anything that would help to use one."""
        with self._database.statement() as connection:
            rows = connection.execute(
                _SELECT.order_by(_TABLE.created_at_us.desc(), _TABLE.id)
            ).all()
        return [_credential(row) for row in rows]

    def _end(self, connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
        connection.execute(
            sa.update(tables.CREDENTIAL).where(which).values(revoked_at_us=self._clock.now_us())
        )

    def _forget(self) -> None:
        with self._lock:
            self._cache = {}

    def _find(self, token_hash: str) -> Credential | None:
        now_us = self._clock.now_us()
        cached = self._cache.get(token_hash)
        if cached is not None and 0 <= now_us - cached[0] < CACHE_S * 1_000_000:
            return cached[1]
        with self._database.statement() as connection:
            row = connection.execute(_SELECT.where(_TABLE.token_hash == token_hash)).first()
        if row is None:
            return None
        found = _credential(row)
        with self._lock:
            if len(self._cache) >= CACHE_MAX:
                self._cache = {}
            self._cache[token_hash] = (now_us, found)
        return found


_COLUMNS: Final = tuple(field.name for field in dataclasses.fields(Credential))
_SELECT: Final = sa.select(*(_TABLE[name] for name in _COLUMNS))


def row(one: Credential) -> dict[str, str | None]:
    """A credential as lists show it; of its token nothing is known."""
    return {
        "id": one.id,
        "kind": one.kind,
        "subject": one.subject,
        "role": one.role,
        "created_at": shape.iso(one.created_at_us),
        "expires_at": shape.iso(one.expires_at_us),
        "revoked_at": shape.iso(one.revoked_at_us),
    }


def hash_of(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _credential(row: sa.Row[*tuple[Any, ...]]) -> Credential:
    # Only `issue` writes the table, and its CHECK admits the three kinds.
    return msgspec.convert(dict(zip(_COLUMNS, row, strict=True)), Credential)


def check_name(name: str) -> None:
    """Refuse a name, given on the database itself, that no token could have.

    Raises:
        RefusedError: `bad_name`.
    """
    if SUBJECT.fullmatch(name) is None:
        raise refusal.RefusedError(422, "bad_name", BAD_NAME, next_step="Give your name by --by.")


def _check(*, kind: str, subject: str, role: str | None, ttl_s: float | None) -> None:
    problem = None
    if kind not in PREFIXES:
        problem = f"There is no kind of token {kind!r}: join, node or operator."
    elif SUBJECT.fullmatch(subject) is None:
        problem = BAD_NAME
    elif kind == "operator" and role not in ROLES:
        problem = f"An operator needs a role: {', '.join(ROLES)}."
    elif kind != "operator" and role is not None:
        problem = "Only operators have roles."
    elif ttl_s is not None and not 0 < ttl_s <= 10 * 366 * 86400:
        problem = "A token lives for more than nothing and at most ten years."
    elif kind == "join" and ttl_s is None:
        problem = "A join token needs an end."
    if problem is not None:
        raise refusal.RefusedError(
            422, "bad_token_request", problem, next_step="See `smgate token issue --help`."
        )


def _unauthorized(code: str, message: str) -> refusal.RefusedError:
    return refusal.RefusedError(
        401, code, message, next_step="Ask an admin for a token, or enrol the node again."
    )
