"""A launch of Kimi K3, and decisions about it as an honest controller makes them."""

import json

from tests.launch import stand_ins

from smgate.wire import base, directive
from smgate_agent.launch import local_rule

SAFE = ["--moe-runner-backend", "marlin"]
TARGET = ["--moe-runner-backend", "flashinfer_mxfp4"]
ENFORCE = {"10.7": "enforce"}


def serve(node, k3, *more, **keywords):
    """Launch Kimi K3; returns what was appended."""
    argv = ["serve", "--model-path", str(k3), *more]
    seen = node.launch("sglang", *argv, **keywords)["argv"][1:]
    assert seen[: len(argv)] == argv
    return seen[len(argv) :]


def given_for(planned):
    """What an honest controller would write into a decision about this launch."""
    return local_rule.given_for(planned)


def decide(form="append", value="marlin", code="no_rollout", **changes):
    def with_launch(launch):
        unit = stand_ins.entry(launch, form, value, code, given_for=given_for(launch))
        return stand_ins.directive(unit, **changes)

    return with_launch


def reported(node, *argv, **keywords):
    """The launch a controller is told of, decoded by the contract."""
    with stand_ins.Controller(stand_ins.honest(hands_off)) as controller:
        node.enroll(controller.url)
        seen = node.launch(*argv, **keywords)
        (launch,) = controller.launches()
    assert seen["argv"][1:] == list(argv[1:])
    request = base.decode(json.dumps(controller.requests[0][2]).encode(), directive.LaunchRequest)
    assert request.node == "node-a"
    return request.launch, launch


def hands_off(launch):
    return stand_ins.directive(stand_ins.entry(launch, "untouched", None, "observe"))
