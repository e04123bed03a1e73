"""A thousand hostile inputs for every parser of the agent: random bytes, and recordings with cuts,
swaps and joins in them. None may end in an error, say "packed" of a server whose own bytes do not say
so, or let a planted secret into a fact. What the bytes say is read here by Python's own `json` and by
a search for the printed pair, not by the agent.
"""

import json
import math
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

cuts = st.tuples(
    st.sampled_from(["cut", "set", "double", "swap", "end"]),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 255),
)


def damaged(data, edits):
    """The bytes after each edit: a piece is cut out, doubled or moved, a byte set, the end lost."""
    out = bytearray(data)
    for kind, where, other, byte in edits:
        if not out:
            break
        at, to = sorted((int(where * len(out)), int(other * len(out))))
        if kind == "cut":
            del out[at : to if byte % 2 else at + byte]
        elif kind == "set":
            out[at] = byte
        elif kind == "double":
            out[to:to] = out[at : at + byte * 8]
        elif kind == "swap":
            piece = out[at : at + byte]
            del out[at : at + byte]
            out[to:to] = piece
        else:
            del out[to:]
    return bytes(out)


def hostile(*seeds):
    """Random bytes one time in four, else one of the seeds with damage."""
    edited = st.builds(damaged, st.sampled_from(seeds), st.lists(cuts, min_size=1, max_size=6))
    return st.one_of(st.binary(max_size=600), edited, edited, edited)


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


def no_secret(data):
    assert not [secret for secret in SECRETS if secret in data], data


@THOUSAND
@given(hostile(*BODIES))
def test_a_server_info_is_read_as_it_stands_or_is_unknown(body):
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
@given(hostile(b'{"architectures":["' + K3.encode() + b'"],"api_key":"sk-PLANTED-api-key-0001"}'))
def test_an_architecture_is_read_or_unknown(body):
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
@given(data=st.data(), pieces=st.integers(1, 4000))
def test_a_log_is_read_as_it_stands_or_is_unknown(data, pieces):
    shape, seed = data.draw(st.sampled_from(SHAPED))
    data = data.draw(hostile(seed))
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
    line.partition(b"server_args=")[2].decode()
    for shape, log in SHAPED
    if shape == "plain"
    for line in log.splitlines()
    if b"] server_args=" in line
]


@THOUSAND
@given(hostile(*(text.encode() for text in ARGS)))
def test_a_python_repr_gives_only_what_was_asked_for(data):
    text = data.decode("utf-8", "replace")
    fields = python_repr.scan_fields(text, server_args.FIELDS)
    assert fields.keys() <= server_args.FIELDS
    assert all(isinstance(value, str | int | float | None) for value in fields.values())
    args = server_args.from_log_line("server_args=" + text)
    if args is not None:
        assert args.runner in {"other", *re.findall(r"[a-z_0-9]+", text)}


@THOUSAND
@given(hostile(CONFIG))
def test_a_model_config_denies_mxfp4_only_where_it_does_not_stand(body):
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
@given(hostile(EXPOSITION))
def test_counters_are_numbers_or_unknown(body):
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
@given(hostile(SIGNED))
def test_a_directive_that_was_changed_on_its_way_is_refused(tmp_path_factory, body):
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
