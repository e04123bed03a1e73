"""Every code of the barrier has its row in `ops/barrier.md`, and every row is a code."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "agents/smgate_agent/launch"
CODE = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
OF_THE_AGREEMENT = ("unit_disagreed_here",)


def codes():
    """What is assigned or passed as a code in the barrier's modules, and what hinders."""
    found = set()
    for name in ("barrier.py", "guard.py"):
        for node in ast.walk(ast.parse((LAUNCH / name).read_text())):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [ast.unparse(one) for one in targets]
                if any(re.search(r"\bcode\b|\bopens\b|DISAGREED", one) for one in names):
                    found |= texts(node.value)
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("conclude", "end_launch")
            ):
                found |= texts(node.args[0])
    tree = ast.parse((LAUNCH / "barrier_rule.py").read_text())
    (rule,) = [one for one in tree.body if getattr(one, "name", "") == "hindrance"]
    for node in ast.walk(rule):
        if isinstance(node, ast.Return) and node.value is not None:
            found |= texts(node.value)
        if isinstance(node, ast.Dict):
            found |= {one.value for one in node.keys}
    return found


def texts(node):
    values = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    return {one for one in values if isinstance(one, str) and CODE.fullmatch(one)}


def test_every_code_has_a_row_and_every_row_is_a_code():
    page = (ROOT / "ops/barrier.md").read_text()
    rows = {
        code
        for line in page.splitlines()
        if line.startswith("| `")
        for code in re.findall(r"`([a-z0-9_]+)`", line.split("|")[1])
    }
    assert len(codes()) > 15
    assert rows == codes()
