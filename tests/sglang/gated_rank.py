"""One rank with SGLang's own launch gate, torch's own gloo world, and nothing else of a server.

Run by SGLang's interpreter, as the command behind smgate's gate or by itself. uvicorn and fastapi are
taken from OTHER_SITE: the environment of these tests has SGLang without its web server.
"""

import importlib.util
import json
import os
import pathlib
import sys
import sysconfig
import time
import types


def option(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def note(event, **more):
    with open(os.environ["EVENTS"], "a") as stream:
        stream.write(json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n")


sys.path[:] = [folder for folder in sys.path if folder != os.environ.get("PYTHONPATH")]
sys.path.append(os.environ["OTHER_SITE"])

note("started", argv=sys.argv[1:])

import torch
import torch.distributed as dist

DISTRIBUTED = "sglang.srt.distributed"


def gate_of_sglang():
    """The module itself, without the package around it, whose import takes 20 seconds."""
    folder = pathlib.Path(sysconfig.get_path("purelib"), *DISTRIBUTED.split("."))
    around = {
        f"{DISTRIBUTED}.parallel_state": {"get_world_group": None},
        "sglang.srt.observability.trace": {"fastapi_telemetry_disabled_kwargs": dict},
    }
    for name, values in around.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(values)
    spec = importlib.util.spec_from_file_location("gated_launch", folder / "gated_launch.py")
    module = importlib.util.module_from_spec(spec)
    for parent in ("sglang", "sglang.srt", DISTRIBUTED, "sglang.srt.observability"):
        sys.modules[parent] = types.ModuleType(parent)
    spec.loader.exec_module(module)
    return module


gated_launch = gate_of_sglang()


def main():
    rank, nnodes = int(option("--node-rank")), int(option("--nnodes"))
    address = f"tcp://{option('--dist-init-addr')}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=nnodes)
    world = types.SimpleNamespace(
        rank=rank, rank_in_group=rank, world_size=nnodes, ranks=list(range(nnodes)),
        cpu_group=dist.group.WORLD,
    )  # fmt: skip
    gated_launch.get_world_group = lambda: world
    port = option("--gated-launch-port")
    note("joined", gated=port is not None)
    gated_launch.maybe_wait_for_gated_launch(
        host=option("--host", "127.0.0.1"), port=None if port is None else int(port)
    )
    if port is not None:
        note("activated")
    memory = torch.ones(1)
    dist.all_reduce(memory, op=dist.ReduceOp.MIN)  # as SGLang goes on, with its free memory
    note("served")
    while not os.path.exists(os.environ["STOP"]):
        time.sleep(0.1)


main()
