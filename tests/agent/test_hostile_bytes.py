"""A thousand hostile inputs for every parser of the agent: random bytes, and recordings with cuts,
swaps and joins in them. None may end in an error, say "packed" of a server whose own bytes do not say
so, or let a planted secret into a fact. What the bytes say is read here by Python's own `json` and by
a search for the printed pair, not by the agent.
"""

import json
import math
import random
import re
from pathlib import Path

from hypothesis import given, settings, strategies as st
from nacl.signing import SigningKey

from smgate.wire import base, directive
from smgate_agent import (
    bake,
    config,
    directive_poll,
    identity,
    instance,
    log_frames,
    log_reader,
    model_config,
    python_repr,
    server_args,
    server_info,
)
from smgate_agent.launch import ed25519

FIXTURES = Path(__file__).parent.parent / "fixtures/sglang"
BODIES = [path.read_bytes() for path in sorted((FIXTURES / "server_info").glob("*.json"))]
CONFIG = (FIXTURES / "k3_config.json").read_bytes()
MODEL_INFO = (
    b'{"architectures":["KimiK3ForConditionalGeneration"],"api_key":"sk-PLANTED-api-key-0001"}'
)
EXPOSITION = b"""# HELP sglang:num_requests_total Requests.
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{model_name="k3"} 1204.0
sglang:num_aborted_requests_total{model_name="k3"} 3.0
sglang:generation_tokens_total{model_name="k3"} 9.81e+05
"""
SECRETS = (b"PLANTED-api-key", b"PLANTED-admin-key", b"PLANTED-tls-password")
K3 = "KimiK3ForConditionalGeneration"
ARCHITECTURES = frozenset({K3})
THOUSAND = settings(max_examples=1000)


class Chance(random.Random):
    """Draws a whole input from one number: drawn piece by piece, hypothesis is most of the time."""

    def __init__(self, number):
        super().__init__(number)
        self._number = number

    def __repr__(self):
        return f"Chance({self._number})"


chances = st.integers(0, 2**64 - 1).map(Chance)


def damaged(data, chance):
    """The bytes after one to six edits: a piece is cut out, doubled or moved, a byte set, the end lost."""
    out = bytearray(data)
    for _ in range(min(chance.randint(1, 6), chance.randint(1, 6))):
        if not out:
            break
        at, to = sorted((chance.randrange(len(out)), chance.randrange(len(out))))
        kind, size = chance.choice(["cut", "set", "double", "swap", "end"]), chance.randrange(256)
        if kind == "cut":
            del out[at : to if size % 2 else at + size]
        elif kind == "set":
            out[at] = size
        elif kind == "double":
            out[to:to] = out[at : at + size * 8]
        elif kind == "swap":
            piece = out[at : at + size]
            del out[at : at + size]
            out[to:to] = piece
        else:
            del out[to:]
    return bytes(out)


def hostile(seeds, chance):
    """Random bytes one time in four, else one of the seeds with damage."""
    if chance.randrange(4) == 0:
        return chance.randbytes(chance.randrange(601))
    return damaged(chance.choice(seeds), chance)


def facts_of(**reading):
    """What the agent would tell of a server that reads so, in wire form; and its verdict."""
    declared = config.Instance(id="k3", url="http://127.0.0.1:1", log="/l")
    tracker = instance.Tracker(declared, ARCHITECTURES, instance.Memory())
    offers = tracker.observe(instance.Reading(**reading))
    return b"".join(base.encode(offer.payload) for offer in offers), tracker.view.verdict


def as_python_reads(body):
    try:
        return json.loads(body.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None


def test_of_the_inputs_some_are_still_read_and_most_are_not():
    """Else the tests below would try nothing but the first line of a parser."""
    read = 0
    for number in range(400):
        try:
            server_info.parse(hostile(BODIES, Chance(number)))
            read += 1
        except server_info.MalformedBodyError:
            pass
    assert 20 < read < 200


def no_secret(data):
    assert not [secret for secret in SECRETS if secret in data], data


@THOUSAND
@given(chances)
def test_a_server_info_is_read_as_it_stands_or_is_unknown(chance):
    body = hostile(BODIES, chance)
    try:
        info = server_info.parse(body)
    except server_info.MalformedBodyError as exc:
        no_secret(str(exc).encode())
        return
    told, verdict = facts_of(http="ok", info=info, architecture=K3)
    no_secret(told)
    if verdict.known and verdict.phase is None:
        read = as_python_reads(body)
        assert (read["moe_runner_backend"], read["moe_a2a_backend"]) == (
            info.args.runner,
            info.args.a2a,
        )


@THOUSAND
@given(chances)
def test_an_architecture_is_read_or_unknown(chance):
    body = hostile([MODEL_INFO], chance)
    try:
        name = server_info.parse_architecture(body)
    except server_info.MalformedBodyError:
        return
    no_secret(repr(name).encode())
    assert name is None or as_python_reads(body)["architectures"] == [name]


def as_docker(log):
    """As dockerd writes it: a JSON record for every 16 KiB of a line."""
    records = [
        json.dumps({"log": line[at : at + 16384], "stream": "stderr", "time": "2026"}).encode()
        for line in log.decode().splitlines(keepends=True)
        for at in range(0, len(line), 16384)
    ]
    return b"\n".join([*records, b""])


SHAPED = [
    (shape, data)
    for path in sorted((FIXTURES / "logs").glob("*.log"))
    for shape, data in (
        [("cri", path.read_bytes())]
        if ".cri." in path.name
        else [("plain", path.read_bytes()), ("docker", as_docker(path.read_bytes()))]
    )
]


@THOUSAND
@given(chances)
def test_a_log_is_read_as_it_stands_or_is_unknown(chance):
    shape, seed = chance.choice(SHAPED)
    data, pieces = hostile([seed], chance), chance.randint(1, 4000)
    framer, reader = log_frames.Framer(shape), log_reader.LogReader()
    lines = []
    for at in range(0, len(data), pieces * 16):
        for line in framer.feed(data[at : at + pieces * 16]):
            lines.append(line)
            reader.line(line)
    assert all(len(line) <= log_frames.LINE_BYTES_MAX for line in lines)
    told, verdict = facts_of(http="none", life=reader.life, architecture=K3)
    no_secret(told)
    if verdict.known and verdict.phase is None:
        runner = re.escape(reader.life.args.runner)
        assert re.search(rf"moe_runner_backend'?[:=] ?['\"]{runner}['\"]", "".join(lines))


ARGS = [
    line.partition(b"server_args=")[2]
    for shape, log in SHAPED
    if shape == "plain"
    for line in log.splitlines()
    if b"] server_args=" in line
]


@THOUSAND
@given(chances)
def test_a_python_repr_gives_only_what_was_asked_for(chance):
    data = hostile(ARGS, chance)
    text = data.decode("utf-8", "replace")
    fields = python_repr.scan_fields(text, server_args.FIELDS)
    assert fields.keys() <= server_args.FIELDS
    assert all(isinstance(value, str | int | float | None) for value in fields.values())
    args = server_args.from_fields(fields)
    if args.runner is not None:
        assert args.runner in {"other", *re.findall(r"[a-z_0-9]+", text)}


@THOUSAND
@given(chances)
def test_a_model_config_denies_mxfp4_only_where_it_does_not_stand(chance):
    body = hostile([CONFIG], chance)
    found = model_config.parse(body)
    no_secret(repr(found).encode())
    if found.mxfp4 is False:
        read = as_python_reads(body)
        text = read.get("text_config")
        text = text if isinstance(text, dict) else read
        quantization = text.get("quantization_config", read.get("quantization_config"))
        assert quantization is None or not _words(quantization)


def _words(quantization):
    words = [quantization.get("format"), quantization.get("quant_method")]
    groups = quantization.get("config_groups")
    if isinstance(groups, dict):
        words += [group.get("format") for group in groups.values() if isinstance(group, dict)]
    return [word for word in words if isinstance(word, str) and "mxfp4" in word]


@THOUSAND
@given(chances)
def test_counters_are_numbers_or_unknown(chance):
    body = hostile([EXPOSITION], chance)
    counters = bake.parse(body.decode("utf-8", "replace"))
    if counters is not None:
        for value in (counters.requests, counters.failures, counters.tokens):
            assert math.isfinite(value)
            assert value >= 0


KEY = SigningKey(b"\x05" * 32)
TOLD = base.encode(
    directive.Directive(incarnation="log-1", generation=7, node="node-1", issued_at_us=1)
)
SIGNED = base.encode(
    directive.SignedDirective(signed=TOLD.decode(), signature=KEY.sign(TOLD).signature.hex())
)


@THOUSAND
@given(chances)
def test_a_directive_that_was_changed_on_its_way_is_refused(tmp_path_factory, chance):
    body = hostile([SIGNED], chance)
    folder = tmp_path_factory.mktemp("holder") if not FOLDERS else FOLDERS[0]
    FOLDERS[:] = [folder]
    holder = directive_poll.Holder(
        folder,
        credential=identity.Credential(
            node="node-1",
            controller_url="http://127.0.0.1:1",
            credential="c",
            public_key=KEY.verify_key.encode().hex(),
            incarnation="log-1",
        ),
        verify=ed25519.verify,
    )
    try:
        holder.take(body)
    except directive_poll.RefusedError:
        assert not (folder / directive_poll.DIRECTIVE_FILE).exists()
    else:
        assert as_python_reads(body) == as_python_reads(SIGNED)
        (folder / directive_poll.DIRECTIVE_FILE).unlink()


FOLDERS: list[Path] = []
