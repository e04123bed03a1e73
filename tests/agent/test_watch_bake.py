"""Intervals of a bake: of whom they are told, how often, and what they count."""

import pytest
from tests.agent.test_watch import serve, told

from smgate.wire import facts
from smgate_agent import bake


def test_a_bake_counts_traffic_only_when_it_was_asked_for(
    sglang_server, open_watcher, box, manual_clock
):
    serve(sglang_server)
    page = (
        b"# TYPE sglang:num_requests_total counter\n"
        b'sglang:num_requests_total{model_name="m",tp_rank="0"} %d.0\n'
        b'sglang:num_aborted_requests_total{model_name="m"} 1.0\n'
        b'sglang:generation_tokens_total{model_name="m"} %d.0\n'
    )
    quiet = open_watcher(url=sglang_server.url)
    quiet.step()
    assert "/metrics" not in sglang_server.requests
    told(box)
    watcher = open_watcher(url=sglang_server.url, manual=manual_clock, bake_interval_s=60)
    sglang_server.route("/metrics", page % (100, 1000))
    watcher.step()
    manual_clock.advance(30)
    watcher.step()
    assert told(box) == []
    manual_clock.advance(31)
    sglang_server.route("/metrics", page % (150, 7100))
    watcher.step()
    expected = facts.BakeInterval(
        instance_id="k3", interval_s=61, requests=50, failures=0, tokens_per_s=100.0
    )
    assert told(box) == [expected]
    manual_clock.advance(61)
    sglang_server.route("/metrics", page % (3, 10))  # the server started again
    watcher.step()
    assert told(box) == []
    manual_clock.advance(61)
    sglang_server.route("/metrics", b"not metrics at all \xff")
    watcher.step()
    assert told(box) == []


DAY_S, STEP_S = 86_400, 600
FACTS_A_DAY_MAX = 20
"""What a node at rest may add to a log that is kept for ever."""


def day(server, watcher, manual, requests_per_step):
    """One day of a server that is asked so much."""
    page = b"sglang:num_requests_total %d\nsglang:generation_tokens_total %d\n"
    serve(server)
    for step in range(DAY_S // STEP_S + 1):
        served = step * requests_per_step
        server.route("/metrics", page % (served, served * 50))
        watcher.step()
        manual.advance(STEP_S)


def count(box):
    facts_told, kinds = True, []
    while facts_told:
        facts_told = told(box)
        kinds += [type(one) for one in facts_told]
    return kinds


@pytest.mark.parametrize(
    ("header", "requests_per_step", "least", "most"),
    [
        ("", 30, 1, FACTS_A_DAY_MAX),  # settled, and busy all day
        ("other", 30, 1, FACTS_A_DAY_MAX),  # another server of the node bakes
        ("k3", 30, DAY_S // STEP_S, DAY_S // STEP_S + FACTS_A_DAY_MAX),
        (None, 30, DAY_S // STEP_S, DAY_S // STEP_S + FACTS_A_DAY_MAX),  # an older controller
        ("k3", 0, 2, FACTS_A_DAY_MAX),  # it bakes, and nobody asks it anything
    ],
)
def test_a_server_at_rest_adds_a_few_facts_a_day_and_one_that_bakes_each_interval(
    sglang_server, open_watcher, box, manual_clock, header, requests_per_step, least, most
):
    wanted = bake.Wanted()
    wanted.tell(header)
    watcher = open_watcher(
        url=sglang_server.url, manual=manual_clock, wanted=wanted, bake_interval_s=STEP_S
    )
    day(sglang_server, watcher, manual_clock, requests_per_step)
    kinds = count(box)
    assert least <= len(kinds) <= most
    assert (facts.BakeInterval in kinds) is (header in {"k3", None})


def test_what_a_server_served_before_it_baked_is_in_no_interval_and_faults_are_told_at_once(
    sglang_server, open_watcher, box, manual_clock
):
    page = b"sglang:num_requests_total %d\n"
    serve(sglang_server)
    wanted = bake.Wanted()
    watcher = open_watcher(
        url=sglang_server.url, manual=manual_clock, wanted=wanted, bake_interval_s=60
    )
    sglang_server.route("/metrics", page % 1000)
    watcher.step()  # not told yet: it counts, from here
    told(box)
    wanted.tell("")
    manual_clock.advance(3600)
    sglang_server.route("/metrics", page % 9000)
    watcher.step()
    wanted.tell("k3")
    watcher.step()
    assert told(box) == []
    manual_clock.advance(60)
    sglang_server.route("/metrics", page % 9010)
    watcher.step()
    (fact,) = told(box)
    assert (fact.interval_s, fact.requests) == (60, 10)

    wanted.tell("")
    sglang_server.route("/health", behaviour="reset")
    for _ in range(3):
        watcher.step()
    assert told(box)[0] == facts.InstanceChanged(instance_id="k3", state="exited")


def test_one_idle_interval_is_told_and_the_next_that_is_not(
    sglang_server, open_watcher, box, manual_clock
):
    serve(sglang_server)
    watcher = open_watcher(url=sglang_server.url, manual=manual_clock, bake_interval_s=60)
    requests = []
    for served in (0, 0, 0, 0, 5, 5, 5, 8):
        sglang_server.route("/metrics", b"sglang:num_requests_total %d\n" % served)
        watcher.step()
        requests += [one.requests for one in told(box) if isinstance(one, facts.BakeInterval)]
        manual_clock.advance(60)
    assert requests == [0, 5, 0, 3]
