"""A controller never starts with a key that the whole fleet would refuse in silence."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Iterator

import pytest

from smgate import bootstrap, config
from smgate.log import open as log_open
from smgate.service import service
from smgate.wire import directive


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    made = f"sqlite:///{tmp_path / 'log.db'}"
    log_open.upgrade(made)
    return made


@pytest.fixture
def key(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where the key of that log is, once it was started."""
    return tmp_path / "log.db.key"


@contextlib.contextmanager
def started(url: str, **settings: str | bool) -> Iterator[service.Service]:
    with bootstrap.assembled(config.load({}, database_url=url, **settings)) as made:
        yield made


def enrol(made: service.Service, node: str) -> None:
    join = made.credentials.issue(kind="join", subject="rack", ttl_s=60).credential
    request = directive.EnrollRequest(node=node, machine_id=node, agent_version="1")
    made.enrolment.enrol(request, by=join)


def write(path: pathlib.Path, seed: str) -> str:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(seed)
    return str(path)


def test_a_log_that_no_node_listens_to_gets_a_key(url: str, key: pathlib.Path) -> None:
    with started(url):
        assert key.exists()
    key.unlink()
    with started(url):
        assert key.exists()


def test_the_same_key_starts_again(url: str) -> None:
    with started(url) as made:
        enrol(made, "n1")
    with started(url) as made:
        assert sum(made.credentials.pinned().values()) == 1


def test_a_lost_key_is_not_replaced_while_nodes_listen_to_it(url: str, key: pathlib.Path) -> None:
    with started(url) as made:
        enrol(made, "n1")
    key.unlink()
    with (
        pytest.raises(bootstrap.CannotServeError, match=r"1 nodes have pinned a key.*backup"),
        started(url),
    ):
        pass
    assert not key.exists(), "a new key would hide that the old one is lost"


def test_another_key_is_refused_until_a_person_says_so(
    url: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    first = write(tmp_path / "first.key", "11" * 32)
    other = write(tmp_path / "other.key", "22" * 32)
    with started(url, signing_key_file=first) as made:
        enrol(made, "n1")
        enrol(made, "n2")
    with (
        pytest.raises(bootstrap.CannotServeError, match="not the one of this log"),
        started(url, signing_key_file=other),
    ):
        pass
    with started(url, signing_key_file=other, new_signing_key=True) as made:
        assert "2 nodes pinned another key" in caplog.text
        enrol(made, "n1")
    # The change is under way: one node listens to the new key, the other must follow.
    with started(url, signing_key_file=other):
        assert "1 nodes pinned another key" in caplog.text


def test_a_node_whose_credential_ended_holds_nobody_back(url: str, tmp_path: pathlib.Path) -> None:
    first = write(tmp_path / "first.key", "11" * 32)
    with started(url, signing_key_file=first) as made:
        enrol(made, "n1")
        [node] = [one for one in made.credentials.list() if one.kind == "node"]
        made.credentials.revoke(node.id)
    with started(url, signing_key_file=write(tmp_path / "other.key", "22" * 32)) as made:
        assert made.credentials.pinned() == {}


def test_a_key_that_is_not_there_yet_is_asked_for_with_how_to_make_it(
    url: str, tmp_path: pathlib.Path
) -> None:
    missing = str(tmp_path / "signing.key")
    with (
        pytest.raises(bootstrap.CannotServeError, match=rf"openssl rand -hex 32 > {missing}\)"),
        started(url, signing_key_file=missing),
    ):
        pass


def test_a_key_that_is_there_and_open_to_others_is_not_called_lost(
    url: str, key: pathlib.Path
) -> None:
    with started(url) as made:
        enrol(made, "n1")
    key.chmod(0o644)
    with pytest.raises(bootstrap.CannotServeError, match="chmod 600 it") as caught, started(url):
        pass
    assert "new-signing-key" not in str(caught.value), "that would make every node deaf"
    key.chmod(0o600)
    with started(url):
        pass


def test_a_key_that_cannot_be_read_is_not_called_lost(url: str, key: pathlib.Path) -> None:
    with started(url) as made:
        enrol(made, "n1")
    key.rename(key.with_suffix(".away"))
    key.mkdir()
    with pytest.raises(bootstrap.CannotServeError, match="Let this user read it") as caught:
        started(url).__enter__()
    assert "new-signing-key" not in str(caught.value)
