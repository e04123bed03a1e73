"""How a kernel key reads to a person: where it stands, whose move it is, and the evidence."""

from __future__ import annotations

from smgate.cli import moves, output


def why_lines(body: output.Row) -> list[str]:
    """`build why`: which evidence, from which GPU sets, what is missing, and who must act."""
    told = [*_heading(body), *_moves(body), *_lacks(body), *_asked(body)]
    told += [*_nearest(body), *_results(body), *_unproven(body), *_made_of(body)]
    units = body.get("units")
    told += ["", f"units that launched it: {output.text_of(units)}"]
    if body.get("note"):
        told += ["", output.text_of(body["note"])]
    return told


def _heading(body: output.Row) -> list[str]:
    fields = body.get("fields")
    text = output.text_of
    parts = [f"kernel key {text(body.get('kernel_key'))}", text(body.get("standing"))]
    since, until = body.get("since"), body.get("until")
    if since is not None:
        parts[-1] += f" since {text(since)}"
    if until is not None:
        parts[-1] += f", its evidence counts until {text(until)}"
    if isinstance(fields, dict):
        parts.append(f"SM {text(fields.get('sm'))}, a2a {text(fields.get('a2a'))}")
    if body.get("accepted_like"):
        parts.append(f"accepted as like {text(body['accepted_like'])}")
    return [
        " | ".join(parts),
        f"as of position {text(body.get('as_of_position'))}, {text(body.get('now'))}",
    ]


def _moves(body: output.Row) -> list[str]:
    found = output.rows_in(body.get("moves"))
    return ["", "Whose move it is", *moves.lines(found)] if found else []


def _lacks(body: output.Row) -> list[str]:
    lacks = output.rows_in(body.get("pool_lacks"))
    if not lacks:
        return []
    told = ["", "It can never qualify as things stand"]
    for one in lacks:
        told.append(f"  - {output.text_of(one.get('sentence'))}")
        told.append(f"    -> {output.text_of(one.get('next_step'))}")
    return told


def _asked(body: output.Row) -> list[str]:
    asked = output.rows_in(body.get("asked"))
    if not asked:
        return []
    keys = ("node", "purpose", "state", "since", "until", "finished")
    rows = [[output.text_of(one.get(key)) for key in keys] for one in asked]
    header = ["NODE", "TO", "STATE", "SINCE", "UNTIL", "FINISHED"]
    return ["", "Asked to measure it", *output.aligned([header, *rows], indent="  ")]


def _nearest(body: output.Row) -> list[str]:
    near = body.get("nearest_qualified")
    if not isinstance(near, dict):
        return []
    name = output.text_of(near.get("kernel_key"))
    told = ["", f"Nearest qualified key: {name}, which differs in"]
    differs = near.get("differs")
    rows = [
        [output.text_of(field), output.text_of(one.get("this")), output.text_of(one.get("that"))]
        for field, one in (differs.items() if isinstance(differs, dict) else ())
        if isinstance(one, dict)
    ]
    told += output.aligned([["FIELD", "HERE", "THERE"], *rows], indent="  ")
    if near.get("may_be_accepted"):
        told.append(
            f"  -> smgate build accept {output.text_of(body.get('kernel_key'))} --like {name}"
        )
    else:
        told.append("  It cannot be accepted as like that one: these fields bring other kernels.")
    return told


def _results(body: output.Row) -> list[str]:
    text = output.text_of
    passed, needed = body.get("pool_gpu_sets_passed"), body.get("pool_gpu_sets_needed")
    domains = body.get("domains_passed")
    count = len(domains) if isinstance(domains, list) else 0
    told = [
        "",
        f"Evidence: {text(passed)} of {text(needed)} GPU sets of the pool passed "
        f"{text(body.get('required_checks'))}, in {count} of {text(body.get('domains_needed'))} "
        "domains",
    ]
    rows = [
        [
            text(one.get("node")),
            text(one.get("rack") or one.get("chassis")),
            text(one.get("pool")),
            text(one.get("at")),
            _checks(one),
            text(one.get("counts")),
            _remarks(one),
            _gpu_set(one.get("gpus")),
        ]
        for one in output.rows_in(body.get("results"))
    ]
    header = ["NODE", "DOMAIN", "POOL", "AT", "CHECKS", "COUNTS", "REMARK", "GPUS"]
    return [*told, *(output.aligned([header, *rows], indent="  ") if rows else [])]


def _gpu_set(gpus: object) -> str:
    """The first GPU, and how many more: -o json has them all."""
    names = gpus if isinstance(gpus, list) else []
    return output.text_of(names[:1]) + (f" +{len(names) - 1}" if len(names) > 1 else "")


def _checks(one: output.Row) -> str:
    checks, reasons = one.get("checks"), one.get("reasons")
    if not isinstance(checks, dict):
        return "-"
    said = []
    for name, outcome in checks.items():
        why = reasons.get(name) if isinstance(reasons, dict) and outcome != "passed" else None
        said.append(f"{name} {outcome}" + (f" ({why})" if why else ""))
    return output.text_of(said)


def _remarks(one: output.Row) -> str:
    flaky = one.get("flaky")
    said = [f"flaky: {output.text_of(flaky)}"] if flaky else []
    said += ["the node's own fault"] if one.get("node_fault") else []
    said += ["confirmed by a person"] if one.get("confirmed") else []
    return "; ".join(said) or "-"


def _unproven(body: output.Row) -> list[str]:
    unproven = output.rows_in(body.get("unproven"))
    told = ["", "Counts for nothing"] if unproven else []
    for one in unproven:
        told.append(f"  - {output.text_of(one.get('sentence'))}")
        told.append(f"    -> {output.text_of(one.get('next_step'))}")
    return told


def _made_of(body: output.Row) -> list[str]:
    told = []
    for title, name in (("Made of", "fields"), ("Beside it, not part of the key", "beside")):
        values = body.get(name)
        if isinstance(values, dict) and values:
            told += ["", title, *output.key_lines(values, indent="  ")]
    return told
