"""Records what the launch gate and its checks find on this machine's GPUs.

    PYTHONPATH=.:agents python3 -m tests.hardware.record FILE

Runs in the Python that has torch and flashinfer and needs nothing else: no SGLang, no network. The
file is kept beside this module, and the tests hold that the product still reads it. `checks_built` are
the same checks once the quantisers have been compiled.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from smgate_agent import probe
from smgate_agent.launch import checks, plan, state
from smgate_agent.launch.children import Children

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tests" / "fixtures" / "sglang" / "k3_config.json"
SERVER = """import sys, time
print(time.monotonic_ns(), *sys.argv[1:])
"""
KEPT = ("check", "outcome", "reason", "negative_control", "numbers", "probe_version")
"""The rest of a result is the launch's."""
STARTS = 5
CHECKS_S = 600.0


def main(argv: list[str]) -> int:
    """Write the recording."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = _prepare(folder)
        recording: Json = {
            "python": sys.version.split()[0],
            "nvidia_smi": _nvidia_smi(),
            "gate": _starts(folder, command),
            **_checks(folder, command, "checks_cold"),
            "quantisers": _quantisers(),
            **_checks(folder, command, "checks_built"),
        }
    Path(argv[0]).write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n")
    return 0


def _prepare(folder: Path) -> list[str]:
    """K3's config.json, and in SGLang's place a module that says when it was started and how."""
    model, package = folder / "k3", folder / "sglang"
    model.mkdir()
    package.mkdir()
    (model / "config.json").write_text(CONFIG.read_text())
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(SERVER)
    sizes = ["--tp-size", "8", "--ep-size", "1"]
    return [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), *sizes]


def _nvidia_smi() -> list[str]:
    fields = "name,uuid,driver_version,compute_cap,memory.total,mig.mode.current"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()


def _starts(folder: Path, command: list[str]) -> Json:
    """Milliseconds to the server's first line: bare and through the gate, in turns."""
    archive = folder / "gate.pyz"
    build = [sys.executable, ROOT / "ops/dev/build_gate.py", archive]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    gate = [sys.executable, str(archive), "launch", "--state-dir", str(folder / "state"), "--"]
    found: dict[str, list[float]] = {"bare": [], "gate": []}
    said = ""
    for _ in range(STARTS):
        for name, argv in (("bare", command), ("gate", [*gate, *command])):
            began = time.monotonic_ns()
            ended = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "PYTHONPATH": str(folder)},
            )
            found[name].append((int(ended.stdout.split()[0]) - began) / 1e6)
            said = ended.stderr.strip() or said
    medians = {f"{name}_ms": round(statistics.median(values)) for name, values in found.items()}
    return {**medians, "runs": found, "said": said.splitlines()[-1:]}


def _checks(folder: Path, command: list[str], title: str) -> Json:
    """Every check as the gate runs it, on its reading of the launch."""
    edge = plan.Edge(
        launch_id="launch-recorded",
        environ=dict(os.environ),
        unit_name=None,
        restarter="external",
        children=Children(),
        store=state.Store(folder / "state"),
        timeout_s=60.0,
        resolve_s=0.0,
    )
    reading = plan.read(command, edge)
    found = []
    for name in probe.CHECKS:
        began = time.monotonic()
        (fact,) = checks.run(
            [name],
            reading.launch,
            command=reading.command,
            children=edge.children,
            until=began + CHECKS_S,
        )
        kept = {name: fact[name] for name in KEPT}
        found.append({**kept, "took_s": round(time.monotonic() - began, 1)})
    return {"launch": reading.launch, title: found}


def _quantisers() -> list[Json]:
    child = [sys.executable, "-m", "tests.hardware.quantisers"]
    ended = subprocess.run(child, capture_output=True, text=True, check=False, cwd=ROOT)
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
