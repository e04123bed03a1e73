"""Every reason that a check can give has its row in `ops/checks.md`, and every row is a reason."""

import ast
import pathlib
import re

import pytest

from smgate_agent.launch import shapes
from smgate_agent.probe import artifact

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE = ROOT / "agents/smgate_agent/probe"
PAGE = (ROOT / "ops/checks.md").read_text()
SOURCES = {
    "inventory": ("inventory",),
    "artifact": ("artifact",),
    "memory": ("memory", "driver"),
    "marlin": ("marlin", "sglang_layer", "driver", "judge"),
}
"""The modules that a check's reasons stand in."""
KERNEL_CHECKS = {"quantize": ("quantize",), "moe_mxfp4": ("moe_mxfp4", "trial", "judge")}
OF_BOTH = ("hardware", "kernel", "workload", "reference", "driver", "ending")
AROUND = ("launch/checks.py", "probe/runner.py")
OUTCOMES = {"passed", "failed", "error", "skipped", "timeout"}


def listed(check):
    """The codes in the first column of a check's table."""
    (text,) = [
        part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:] if part.startswith(check)
    ]
    rows = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([^`]+)`", row)}


def parts(node):
    """Texts that an expression may come to; of one put together, what stands before the colon."""
    for item in ast.walk(node):
        if isinstance(item, ast.JoinedStr):
            first = item.values[0]
            if isinstance(first, ast.Constant):
                yield first.value.partition(":")[0]
        elif isinstance(item, ast.Constant) and isinstance(item.value, str):
            yield item.value


def written(modules):
    """The text of these modules. An import from the future stands only at the beginning of one."""
    texts = [(PROBE / f"{name}.py").read_text() for name in modules]
    return "\n".join(text.replace("from __future__ import annotations", "") for text in texts)


def name_of(function):
    return getattr(function, "attr", getattr(function, "id", None))


def given(check):
    """The codes a check's module can give, by reading it."""
    found = set()
    for node in ast.walk(ast.parse(written(SOURCES[check]))):
        if isinstance(node, ast.Call) and name_of(node.func) in ("result", "EndedError"):
            found.update(text for argument in node.args[1:2] for text in parts(argument))
        elif isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
            whole = node.value
            if not isinstance(whole, ast.Call):
                found.update(parts(whole))
    codes = {text for text in found if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+|env", text)}
    return codes - OUTCOMES


def raised(modules):
    """The codes that the modules of a kernel check give, with `TYPE` for an error's name."""
    for node in ast.walk(ast.parse(written(modules))):
        if isinstance(node, ast.Call):
            name, arguments = name_of(node.func), node.args
            if name == "named":
                yield f"{arguments[0].value}_raised_TYPE"
            elif name in ("EndedError", "__init__"):
                yield from (text for argument in arguments[1:2] for text in parts(argument))
            elif name == "WrongError":
                yield from (text for argument in arguments[:1] for text in parts(argument))
        elif isinstance(node, ast.Return) and not isinstance(node.value, (ast.Call, type(None))):
            yield from parts(node.value)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if name_of(target) == "reason" and not isinstance(node.value, ast.Call):
                yield from parts(node.value)
            elif name_of(target) in ("within", "changes"):
                yield from (key.value for key in node.value.keys)
            elif name_of(target) == "RAISED":
                yield from (row.elts[2].value for row in node.value.elts)


def kernel_codes(check):
    """Those of `raised` that are codes; the two formats stand before what is wrong with one."""
    codes = {text for text in raised((*KERNEL_CHECKS[check], *OF_BOTH)) if "_" in text}
    codes = {code for code in codes if re.fullmatch(r"[a-z][a-z0-9_]*(TYPE)?", code)}
    of_a_format = {"size_wrong", "scales_wrong", "values_wrong"} & codes
    formats = {f"{name}_{code}" for name in ("mxfp8", "mxfp4") for code in of_a_format}
    return (codes - of_a_format) | formats


@pytest.mark.parametrize("check", KERNEL_CHECKS)
def test_the_page_has_the_reasons_of_a_kernel_check_and_no_others(check):
    assert kernel_codes(check) == listed(check) | listed("Kernel checks")
    assert len(listed(check)) > 7


def expanded(code):
    """One that is put together of two words stands in the page as the words it can come to."""
    return {"env": {f"env:{'NAME'}"}}.get(code, {code})


@pytest.mark.parametrize("check", SOURCES)
def test_the_page_has_every_reason(check):
    missing = {code for code in given(check) if not expanded(code) & listed(check)}
    assert missing == set()
    assert len(given(check)) > 8


def test_the_page_has_what_is_said_of_any_check():
    """And every row of it is said: by the gate, or by the probe around the check."""
    lines = [line for path in AROUND for line in (PROBE.parent / path).read_text().splitlines()]
    told = [line for line in lines if "reason" in line or "_nothing(" in line]
    said = {
        code for line in told for code in re.findall(r'"([a-z]+(?:_[a-z]+)+|deadline)_?["{]', line)
    }
    assert said == {re.sub(r"_(N|TYPE)$", "", code) for code in listed("Any check")}


@pytest.mark.parametrize("check", SOURCES)
def test_every_row_is_a_reason(check):
    text = written(SOURCES[check])
    for code in listed(check):
        stem = re.sub(r"_(not_here|missing)$", "", code).removesuffix("_fc1").removesuffix("_fc2")
        assert f'"{code}' in text or f'"{stem}' in text or code == "env:NAME", code
        assert code == "env:NAME" or shapes.fits(shapes.CODE, code)


def test_the_variables_are_the_launch_gates_but_for_the_one_that_names_a_store():
    from smgate_agent.launch import plan

    assert set(plan.DISQUALIFYING_ENV) - set(artifact.DISQUALIFYING_ENV) == {"FLASHINFER_CUBIN_DIR"}
    assert set(artifact.DISQUALIFYING_ENV) < set(plan.DISQUALIFYING_ENV)
