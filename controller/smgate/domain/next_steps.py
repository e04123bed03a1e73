"""What a person can do about each code. One line per code; a test holds the list complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NEXT_STEPS: Final = {
    "observe": "When you trust what it would do: smgate gate mode {gate} {sm} enforce.",
    "released": "smgate unit include {unit} gives it back to smgate.",
    "excluded": "smgate unit include {unit}",
    "retired": "Enrol the node again if it is in use.",
    "not_cuda": "Nothing: this gate is about NVIDIA GPUs.",
    "model_unknown": "Make config.json readable to the launch gate: mount the model path, or fill the cache.",
    "not_applicable": "Nothing: no gate covers this model.",
    "layout_not_covered": "Nothing helps with this a2a backend; SGLang has no packed fused function for it.",
    "choice_unknown": "Run the launch gate where it can read argv and --config (smgate-agent launch ...).",
    "explicit_choice": "Remove the flag from the recipe, or smgate unit adopt-flag {unit}.",
    "override_defeated": "Remove --moe-runner-backend from argv, or put the launch gate before the command.",
    "sm_unknown": "Look at the driver on that node: nvidia-smi, then restart its agent.",
    "sm_mixed": "Do not mix GPUs of different SMs in one server.",
    "sm_unsupported": "Nothing: the target is wrong on this SM.",
    "unit_unsteerable": "Put smgate-agent launch before the server's command and restart it.",
    "gate_disabled": "smgate gate enable {gate}, once the reason is gone.",
    "pinned_off": "smgate unit unpin {unit}",
    "known_issue": "Use a build the issue does not match, or smgate issue withdraw {issue}.",
    "self_test_failed": "Look at the failed check: smgate build why {key}; replace the node or the build.",
    "rolled_back_here": "Use another build on these GPUs; once the reason is gone: "
    "smgate unit clear-memory {unit}.",
    "unit_disagreed_here": "Make all ranks start the same image and arguments, then "
    "smgate unit clear-memory {unit}.",
    "build_failed": "Use another build; this one is wrong on this SM.",
    "fault_in_service": "Look at the Xid or the crashes on this node; use another build, or once it is "
    "repaired: smgate unit clear-memory {unit}.",
    "pinned_on": "smgate unit unpin {unit} returns it to the rules.",
    "baseline_sm": "Nothing: SGLang serves this SM with the target by itself.",
    "granted": "Nothing. To take it away: smgate unit pin {unit} off.",
    "adopted": "smgate unit accept {unit}, or smgate unit take-back {unit}.",
    "standing": "Nothing. To take it away: smgate unit pin {unit} off.",
    "no_rollout": "smgate rollout propose -f PLAN",
    "not_approved": "smgate rollout approve {rollout}, by another person than its author.",
    "rollout_paused": "smgate rollout resume {rollout}",
    "rollout_halted": "Find the bad sign (smgate rollout why {rollout}), then propose a new rollout.",
    "wave_not_open": "Wait for the earlier wave: smgate rollout why {rollout}.",
    "freeze": "smgate freeze lift {freeze}; a window of a rollout's plan ends by itself.",
    "breaker_open": "smgate breaker show, then smgate breaker reset.",
    "change_held": "smgate change ls, then smgate change show CHANGE and smgate change accept CHANGE.",
    "restore_unfinished": "smgate wait ls says which nodes are missing; then smgate db restore-finish.",
    "held_before_restore": "After smgate db restore-finish: smgate change ls, then accept the change.",
    "build_not_qualified": "Run the checks on pool nodes: smgate build why {key}.",
    "build_suspect": "Run it on other pool nodes, or smgate build rule {key}; smgate build why {key}.",
    "evidence_old": "Run the checks again on pool nodes.",
    "known_issue_unevaluable": "Make the launch gate report the missing field.",
    "log_gap": "Wait for the node's full report; look at smgate-agent status there.",
    "silent": "Look at smgate-agent status on that node, and at its network.",
    "unit_incomplete": "Start the missing ranks behind the launch gate.",
    "target_raises": "Use a torch built for CUDA 12.8 or newer, and an SGLang version that was run.",
    "no_safe_value": "Use a build that smgate knows a safe value for: an SGLang version that was run, and "
    "a torch built for CUDA 12.8 or newer.",
    "exposure_limit": "Raise exposure_limit_units in the policy, or end other exposure first.",
    "max_in_flight": "Wait: another unit restarts or bakes.",
}
"""Next step per code; `known_issue` stands for `known_issue:<id>`."""


PLACEHOLDERS: Final = {
    "unit": "UNIT",
    "rollout": "ROLLOUT",
    "freeze": "FREEZE",
    "issue": "ISSUE",
    "key": "KEY",
    "gate": "GATE",
    "sm": "SM",
}


def next_step(code: str, names: Mapping[str, str] | None = None) -> str:
    """The next step for a code, with the names it is about where they are given."""
    base, _, issue = code.partition(":")
    known = {**PLACEHOLDERS, **(names or {}), **({"issue": issue} if issue else {})}
    return NEXT_STEPS[base].format_map(known)
