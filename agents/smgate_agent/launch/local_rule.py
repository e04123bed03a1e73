"""What the gate does by itself when no decision reaches it. Pure: plain dicts in, a dict out.

Rules 3 to 6 of the decision table come first; then the last verified directive, where it was given
for what is being launched; then the safe value, only where the fleet's last known default is
`enforce` or `--on-doubt safe` was given; then nothing. `tests/golden/gate/local_rule.json` holds
these rules equal to the controller's.

A target that was given under a lease, because it had not baked, is the safe value again when the
controller was not heard for that long.

A rank of several nodes never takes the target by itself: `ranks.py` is where they agree.
"""

from __future__ import annotations

from typing import Any

from smgate_agent.launch import kernel_key

Json = dict[str, Any]

ARCHITECTURE = "KimiK3ForConditionalGeneration"
WEIGHT_FORMAT = "mxfp4"
TARGET = "flashinfer_mxfp4"
TARGET_SMS = ("10.0", "10.3", "10.7")
"""SMs on which SGLang has the target's kernels for this model: baseline and candidate."""
SAFE = "marlin"
SAFE_SMS = ("9.0", "10.0", "10.3", "10.7", "12.0", "12.1")
SGLANG_VERSIONS_RUN = ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""Versions on which the outcome table was run. Another version starts with nothing of ours."""
FIRST_CUDA = {"9": (12, 3), "10": (12, 8), "12": (12, 8)}
"""By major SM: the first CUDA of torch with which SGLang knows the GPU; below it marlin and the
target stop the server."""


def result(form: str, value: str | None, code: str) -> Json:
    """The outcome in the shape of the golden vectors."""
    return {"form": form, "value": value, "code": code}


def asked_a2a(launch: Json) -> str:
    """The a2a backend of the launch: resolved where a dry resolve was made, else as asked."""
    if launch.get("asked_runner") == "megamoe":  # a runner name that is really an a2a backend
        return "megamoe"
    resolved = launch.get("dry_resolved") or {}
    return str(resolved.get("a2a") or launch.get("asked_a2a") or "none")


def sms_of(launch: Json) -> list[str | None]:
    """The distinct SMs of the launch; None stands for a GPU whose driver did not answer."""
    return sorted({gpu.get("sm") for gpu in launch.get("gpus", ())}, key=str)


def single_sm(launch: Json) -> str | None:
    """The SM all GPUs of the launch share, or None."""
    sms = sms_of(launch)
    return sms[0] if len(sms) == 1 else None


def launch_key(launch: Json) -> str | None:
    """The kernel key of the launch."""
    return kernel_key.kernel_key(
        sm=single_sm(launch),
        build=launch.get("build") or {},
        layout=launch.get("layout") or {},
        a2a=asked_a2a(launch),
    )


def given_for(launch: Json) -> Json:
    """What a decision about this launch is made for."""
    model = launch.get("model") or {}
    return {
        "architecture": model.get("architecture"),
        "model_digest": model.get("digest"),
        "a2a": asked_a2a(launch),
        "sm": single_sm(launch),
        "kernel_key": launch_key(launch),
    }


def hard_rule(launch: Json) -> str | None:
    """The code of the first of rules 3 to 6 that holds, or None."""
    return _not_ours(launch) or _choice(launch) or _unfit_sm(launch)


def could_be_steered(launch: Json) -> bool:
    """Whether this is a launch of the gate's model on CUDA whose arguments could be read."""
    return _not_ours(launch) is None and bool(launch.get("argv_read", False))


def _not_ours(launch: Json) -> str | None:
    if launch.get("platform") != "cuda":
        return "not_cuda"
    model = launch.get("model")
    if model is None:
        return "model_unknown"
    if model.get("architecture") == ARCHITECTURE and is_packed(model):
        return None
    return "not_applicable"


def is_packed(model: Json) -> bool:
    """Whether SGLang's loader would see MXFP4 in this checkpoint."""
    formats = (model.get("format_top_level"), model.get("format_group"))
    return any(WEIGHT_FORMAT in (value or "") for value in formats)


def _choice(launch: Json) -> str | None:
    if asked_a2a(launch) != "none":
        return "layout_not_covered"
    if not launch.get("argv_read", False):
        return "choice_unknown"
    return "explicit_choice" if launch.get("asked_runner") not in (None, "auto") else None


def _unfit_sm(launch: Json) -> str | None:
    sms = sms_of(launch)
    if not sms or None in sms:
        return "sm_unknown"
    if len(sms) > 1:
        return "sm_mixed"
    return None if sms[0] in TARGET_SMS else "sm_unsupported"


def safe_value(launch: Json) -> str | None:
    """The packed runner proven to start on every SM of this launch, or None if there is none."""
    sms = [sm for sm in sms_of(launch) if sm in SAFE_SMS]
    if not sms or len(sms) != len(sms_of(launch)):
        return None
    # Unread is not old: an old torch is rare, and a wrong refusal here is a server in BF16.
    torch_cuda = (launch.get("build") or {}).get("torch_cuda") or "13.0"
    knows_them = all(_knows(torch_cuda, str(sm)) for sm in sms)
    return SAFE if knows_them and _ordinary(launch) else None


def _ordinary(launch: Json) -> bool:
    """Whether this SGLang takes an explicit runner at all, with this a2a and this draft model."""
    return (
        asked_a2a(launch) == "none"
        and not launch.get("draft_asserts_auto", False)
        and (launch.get("build") or {}).get("sglang_version") in SGLANG_VERSIONS_RUN
    )


def _knows(torch_cuda: object, sm: str) -> bool:
    """Whether SGLang, on a torch built for this CUDA, recognises the GPU."""
    parts = str(torch_cuda).split(".")[:2]
    if not all(part.isascii() and part.isdigit() for part in parts):
        return False
    return tuple(int(part) for part in parts) >= FIRST_CUDA[sm.partition(".")[0]]


def starts(value: str, launch: Json) -> bool:
    """Whether SGLang is known to start with this value here: the gate appends nothing else."""
    if value == SAFE:
        return safe_value(launch) == SAFE
    sm = single_sm(launch)
    if value != TARGET or sm not in TARGET_SMS:
        return False
    torch_cuda = (launch.get("build") or {}).get("torch_cuda")
    return _ordinary(launch) and _knows(torch_cuda, str(sm))


def apply(entry: Json, launch: Json, last_appended: Json | None) -> Json:
    """Carry out one unit's override; whether it is meant for this launch is the caller's part."""
    code = str(entry["code"])
    if entry["form"] == "untouched":
        return result("untouched", None, code)
    if entry["form"] == "keep" and entry.get("value") is None:
        return _keep(launch, last_appended, code)
    value = str(entry.get("value"))
    if not launch.get("argv_read", False):
        return result("untouched", None, "choice_unknown")
    if not starts(value, launch):
        return result("untouched", None, "value_would_not_start")
    return result("append", value, code)


def _keep(launch: Json, last_appended: Json | None, code: str) -> Json:
    """Append what was appended last; the safe value if only the kernel key differs; else nothing."""
    untouched = result("untouched", None, code)
    if not last_appended or not launch.get("argv_read", False):
        return untouched
    if launch.get("nnodes", 1) > 1:
        return untouched  # each rank remembers for itself, and ranks must not differ
    if launch.get("asked_runner") not in (None, "auto"):
        return (
            untouched  # a person's own flag; where it was adopted, the controller gives the value
        )
    before, now = dict(last_appended.get("given_for") or {}), given_for(launch)
    key_before, key_now = before.pop("kernel_key", None), now.pop("kernel_key", None)
    if before != now or None in now.values():
        return untouched
    same = key_before is not None and key_before == key_now
    value = last_appended.get("value") if same else safe_value(launch)
    if value is None or not starts(value, launch):
        return untouched
    return result("append", value, code)


def decide(
    launch: Json,
    *,
    held: Json | None = None,
    last_appended: Json | None = None,
    on_doubt: str = "untouched",
    unheard_s: float | None = None,
) -> Json:
    """The local rule: what to do with this launch when the controller gave no decision for it.

    `unheard_s` is how long the controller was not heard; None, not known, ends a lease.
    """
    may_be_safe = on_doubt == "safe" or _enforced(launch, held)
    safe = safe_value(launch) if may_be_safe else None
    hard = hard_rule(launch)
    if hard in ("sm_mixed", "sm_unsupported") and safe is not None:
        return result("append", safe, str(hard))
    if hard is not None:
        return result("untouched", None, hard)
    entry = _held_entry(launch, held)
    if entry is not None:
        return _by_held(entry, launch, last_appended, unheard_s)
    if may_be_safe:
        return _safe_or_untouched(safe, "local_safe")
    return result("untouched", None, "local_untouched")


def _by_held(
    entry: Json, launch: Json, last_appended: Json | None, unheard_s: float | None
) -> Json:
    if _lease_is_over(entry, unheard_s):
        return _safe_or_untouched(safe_value(launch), "lease_expired")
    outcome = apply(entry, launch, last_appended)
    if outcome["value"] == TARGET and launch.get("nnodes", 1) > 1:
        return _safe_or_untouched(safe_value(launch), "local_several_nodes")
    return outcome


def held_target(launch: Json, held: Json | None, unheard_s: float | None) -> Json | None:
    """The decision that gives this launch the target, where the directive that is held has one."""
    entry = None if hard_rule(launch) is not None else _held_entry(launch, held)
    if entry is None or _lease_is_over(entry, unheard_s):
        return None
    return entry if apply(entry, launch, None)["value"] == TARGET else None


def _lease_is_over(entry: Json, unheard_s: float | None) -> bool:
    """A target that had not baked when the controller was heard last holds for one lease."""
    lease_s = entry.get("lease_s")
    return lease_s is not None and (unheard_s is None or unheard_s >= lease_s)


def _safe_or_untouched(safe: str | None, code: str) -> Json:
    if safe is None:
        return result("untouched", None, "local_no_safe_value")
    return result("append", safe, code)


def _enforced(launch: Json, held: Json | None) -> bool:
    """Whether the last verified fleet defaults say `enforce` for every SM present."""
    modes = (held or {}).get("modes") or {}
    sms = sms_of(launch)
    return bool(sms) and all(modes.get(sm) == "enforce" for sm in sms)


def _held_entry(launch: Json, held: Json | None) -> Json | None:
    """The unit's last decision, if it still speaks about what is being launched now.

    `keep` brings its own comparison, with what was appended last; every other form must have been
    given for exactly this architecture, model, a2a, SM and kernel key.
    """
    if held is None:
        return None
    unit = kernel_key.unit_id(str(held["node"]), launch)
    for entry in held.get("units") or ():
        if entry["unit"] != unit:
            continue
        # The first of a unit is its standing decision; what was decided for one launch follows.
        now = given_for(launch)
        if entry["form"] == "keep":
            # A kept value was worked out for the launch it was given for, not for this one.
            return {**entry, "value": None}
        return dict(entry) if None not in now.values() and entry["given_for"] == now else None
    return None
