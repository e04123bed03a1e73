"""Whatever a log holds that can be read: no question about it is answered by a failure of ours.

Events of `tests/golden`, in orders and about units, nodes, kernel keys and rollouts that no controller
would write: dropped, doubled, shuffled, of things that nobody ever reported. The leader may go on from
there, and everything that may be asked is asked, by HTTP and by the command line.
"""

from __future__ import annotations

import collections
import contextlib
import pathlib
import random
import re
import shutil
import urllib.parse
from collections.abc import Iterator

import fastapi.routing
import pytest
from hypothesis import Phase, given, settings, strategies as st
from tests import cli_fakes, controller_bench as cb
from tests.unit import test_golden_events as golden

from smgate.api import agent, health, operator
from smgate.log import codec, open as log_open, port, verify

STORY = [name for name in golden.HISTORY if name not in ("opening_recorded", "fact_redacted")]
PAYLOADS = collections.defaultdict(list)
for _path in golden.FILES:
    PAYLOADS[golden.parts(_path)[0]].append(_path.read_bytes().removesuffix(b"\n"))
OTHERS = {b'"two"': b'"three"', b'"r1"': b'"r2"', b'"node-a"': b'"node-z"'}
OTHERS |= {b'"kimi-k3-mxfp4"': b'"k4"', b'"aff69870a45e3b04"': b'"aff69870a45e3b05"'}
NUMBERS = re.compile(rb'"(wave|order|nnodes|node_rank|epoch)":\d+')
VERBS = [
    *("alarm ls", "breaker show", "build ls", "build show KEY", "build why KEY", "change ls"),
    *("drain ls", "fleet ls", "freeze ls", "gate show", "issue ls"),
    *("log rulings", "log tail", "log verify", "node ls", "node show NODE", "policy show"),
    *("rollout ls", "rollout get ROLLOUT", "rollout why ROLLOUT", "unit history UNIT", "unit ls"),
    *("unit show UNIT", "unit why UNIT", "unit why UNIT --rules", "wait ls", "token ls"),
    *("unit ls -o wide", "node ls -o wide", "issue ls -o wide", "change show CHANGE"),
]


@st.composite
def odd_logs(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """Names and payloads: the story of the golden files, and what went wrong with it."""
    chance = draw(st.randoms(use_true_random=False, note_method_calls=False))
    names = list(STORY)
    for _ in range(draw(st.integers(0, 40))):
        names.insert(chance.randrange(len(names)), names.pop(chance.randrange(len(names))))
    names += chance.choices(STORY, k=draw(st.integers(0, 40)))
    for _ in range(draw(st.integers(0, 40))):
        names.pop(chance.randrange(len(names)))
    return [(name, _altered(chance, name, chance.choice(PAYLOADS[name]))) for name in names]


def _altered(chance: random.Random, name: str, data: bytes) -> bytes:
    """The payload, perhaps about another unit, node, key or rollout, or with another number."""
    if chance.random() < 0.6:
        return data
    made = data
    for one, other in OTHERS.items():
        if chance.random() < 0.3:
            made = made.replace(one, other)
    made = NUMBERS.sub(lambda found: b'"%s":%d' % (found[1], chance.choice([0, 1, 7])), made)
    with contextlib.suppress(codec.UnknownEventError):
        codec.decode(name, 1, made)
        return made
    return data


def records(events: list[tuple[str, bytes]]) -> list[port.NewRecord]:
    """The same, as records of who would have written them."""
    versions: collections.Counter[str] = collections.Counter()
    made = []
    for name, data in events:
        module = codec.NAMES[name].__module__
        actor = "node:node-a" if module.endswith("facts") else "controller"
        if module.endswith(("rulings", "revocation")):
            actor = "operator:anna"
        versions[actor] += 1
        made.append(
            port.NewRecord(
                stream=actor,
                version=versions[actor],
                type=name,
                schema_version=1,
                occurred_at_us=1_764_480_000_000_000 + len(made) * 1_000_000,
                actor=actor,
                counter_actor=None,
                data=data,
            )
        )
    return made


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An upgraded database, to be copied."""
    file = tmp_path_factory.mktemp("empty") / "log.db"
    log_open.upgrade(f"sqlite:///{file}")
    return file


@contextlib.contextmanager
def serving(folder: pathlib.Path, empty: pathlib.Path) -> Iterator[cb.Bench]:
    """A controller that does not lead, and takes any number of questions."""
    shutil.copy(empty, folder / "log.db")
    given_settings = cb.settings(
        f"sqlite:///{folder / 'log.db'}", folder, requests_per_minute_operator=1_000_000
    )
    with cb.running(given_settings, lead=False) as bench:
        yield bench


def named(bench: cb.Bench) -> dict[str, list[str]]:
    """Values for each part of a path: everything there is, and what is not."""
    with bench.service.folder.at_head() as fleet:
        return {
            "unit": [*fleet.units, "nobody"],
            "key": [*fleet.keys, *fleet.announced, "nothing"],
            "rollout": [*fleet.rollouts, "none"],
            "node": [*fleet.nodes, "nowhere"],
            "launch_id": [*fleet.launch_units, "none"],
            "change": [*fleet.changes, "c0"],
        }


def paths(bench: cb.Bench) -> Iterator[str]:
    """Every path that may be read: a new one is asked without anybody adding it here."""
    values = named(bench)
    kinds = {"units": "unit", "builds": "key", "rollouts": "rollout", "nodes": "node"}
    kinds |= {"changes": "change", "launch": "launch_id"}
    routers = (health.router, agent.router, operator.router)
    for route in [route for router in routers for route in router.routes]:
        if not isinstance(route, fastapi.routing.APIRoute) or "GET" not in route.methods:
            continue
        before, brace, after = route.path.partition("{")
        if not brace:
            yield route.path
            continue
        for value in values[kinds[before.rstrip("/").rpartition("/")[2]]]:
            yield before + urllib.parse.quote(value, safe="") + after.partition("}")[2]


def ask_everything(bench: cb.Bench, node: dict[str, str]) -> None:
    """Nothing answers with a failure of ours."""
    person = cb.bearer(bench.token("admin"))
    asked = list(paths(bench))
    assert len(asked) > 40
    for path in asked:
        answer = bench.http.get(path, headers=node if "/agent/" in path else person)
        assert answer.status_code < 500 or path == "/readyz", (path, answer.text)


def tell_everything(bench: cb.Bench, token: pathlib.Path) -> None:
    """Every verb that reads says something and ends as a verb does."""
    token.touch(mode=0o600)
    token.write_text(bench.token("admin"))
    with cli_fakes.serving() as api:

        def forward(request: cli_fakes.Request) -> cli_fakes.Answer:
            header = {"Authorization": request.headers["authorization"]}
            told = bench.http.get(request.path, params=request.query, headers=header)
            return told.status_code, told.content

        api.answer = forward  # type: ignore[method-assign]
        cli = cli_fakes.Cli(api.url)
        cli.environ["SMGATE_TOKEN_FILE"] = str(token)
        values = named(bench)
        for verb in VERBS:
            words = verb.split()
            kind = next((word for word in words if word.isupper()), None)
            where = "launch_id" if kind is None else kind.lower()
            for value in values[where] if kind else [""]:
                told = cli(*(value if word == kind else word for word in words))
                assert "Traceback" not in told.err, (verb, value, told.err)
                assert told.code in (0, 3), (verb, value, told.err)


@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])  # each takes a second
@given(events=odd_logs())
def test_an_odd_log_is_no_failure_of_ours(
    events: list[tuple[str, bytes]], empty: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    with serving(folder, empty) as bench:
        node = bench.enrol("node-a").headers
        bench.service.store.append(records(events), writer="w")
        assert verify.verify(bench.service.store).ok
        ask_everything(bench, node)
        bench.lead()
        ask_everything(bench, node)
    shutil.rmtree(folder)


def test_the_command_line_tells_of_odd_logs(empty: pathlib.Path, tmp_path: pathlib.Path) -> None:
    chance = random.Random(7)
    events = [(name, _altered(chance, name, PAYLOADS[name][0])) for name in STORY * 2]
    with serving(tmp_path, empty) as bench:
        bench.service.store.append(records(events), writer="w")
        tell_everything(bench, tmp_path / "token")
