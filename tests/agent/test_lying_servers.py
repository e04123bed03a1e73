"""Servers that hang, drip, lie about their length, or are no SGLang at all: unknown, never fine."""

import resource
import time

import pytest
from tests.agent import samples
from tests.agent.test_watch import failures, serve, told

from smgate.wire import facts

HOSTILE = {
    "hangs": ({"behaviour": "hang"}, "timeout"),
    "drips": ({"behaviour": "drip"}, "timeout"),
    "never ends": ({"behaviour": "endless"}, "too_large"),
    "talks no HTTP": ({"behaviour": "no_http"}, "malformed"),
    "is no JSON": ({"body": b"<html>nope</html>"}, "malformed"),
    "is a JSON list": ({"body": b"[1, 2]"}, "malformed"),
    "nests without end": ({"body": b"[" * 200_000}, "malformed"),
    "is cut short": ({"behaviour": "long", "body": samples.SERVER_INFO}, "malformed"),
    "says it is shorter": ({"behaviour": "short", "body": samples.SERVER_INFO}, "malformed"),
    "is a huge body": ({"body": b" " * (5 << 20)}, "too_large"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_server_info_that_is_hostile_is_bounded_counted_and_unknown(
    sglang_server, open_watcher, box, how
):
    options, reason = HOSTILE[how]
    serve(sglang_server)
    sglang_server.route("/server_info", **options)
    watcher = open_watcher(url=sglang_server.url, timeout_s=0.5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    watcher.step()
    assert time.monotonic() - started < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10
    assert failures(watcher, "server_info", reason) == 1
    assert [type(fact) for fact in told(box)] == [facts.InstanceChanged]
    assert watcher.view.runner is None
    assert watcher.view.verdict.known is False


@pytest.mark.parametrize("how", ["hangs", "drips", "never ends", "talks no HTTP"])
def test_a_health_answer_that_is_hostile_makes_a_serving_server_unhealthy(
    sglang_server, open_watcher, box, how
):
    serve(sglang_server)
    watcher = open_watcher(url=sglang_server.url, timeout_s=0.3)
    watcher.step()
    told(box)
    sglang_server.route("/health", **HOSTILE[how][0])
    watcher.step()
    watcher.step()
    assert [fact.state for fact in told(box)] == ["unhealthy"]


def test_a_page_for_people_is_no_server_that_serves(sglang_server, open_watcher, box):
    serve(sglang_server, info=b"<html>Sign in</html>")
    sglang_server.route("/health", b"\n<!doctype html><title>Sign in</title>")
    watcher = open_watcher(url=sglang_server.url)
    for _ in range(3):
        watcher.step()
    assert told(box) == []
    assert (watcher.view.state, watcher.view.verdict.known) == (None, False)
    assert failures(watcher, "health", "malformed") == 3


def test_what_has_only_the_older_names_is_read_by_them(sglang_server, open_watcher, box):
    sglang_server.route("/health")
    sglang_server.route("/get_server_info", samples.SERVER_INFO)
    sglang_server.route("/get_model_info", samples.MODEL_INFO)
    watcher = open_watcher(url=sglang_server.url)
    watcher.step()
    assert (watcher.view.runner, watcher.view.source) == ("auto", "server_info")
    assert watcher.view.architecture == "KimiK3ForConditionalGeneration"
