"""Write tests/fixtures/sglang from SGLang's own code, the same bytes each time.

    .venv-sglang/bin/python tests/sglang/record_fixtures.py [FOLDER]
    .venv-sglang-0.5.18/bin/python tests/sglang/record_fixtures.py [FOLDER]

and so for each version from 0.5.17 on, in the environment that `ops/dev/sglang_env.sh VERSION` makes.
Each interpreter writes the files of its own SGLang version. `test_fixtures.py` records them again
and compares. What each file shows stands in the README beside them.
"""

import json
import logging
import os
import sys
from pathlib import Path

import worker_stubs

os.environ["TZ"] = "UTC"
os.environ.setdefault("COLUMNS", "200")
worker_stubs.install()

import record_answers
import record_parts
import worker_ops
from sglang.version import __version__

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "sglang"

# Memory in GiB of one rank, worked out from the layout and not measured: routed experts of
# Kimi K3 in the layout's share plus the rest of the model, an empty 268 GiB device before.
TP8_PACKED = {
    "weight": 183.112,
    "kvcache": 38.204,
    "startup_available": 31.906,
    "token_capacity": 2318848,
    "graph": {"decode": 2.113, "prefill": 0.744},
}
EP32_BF16 = {
    "weight": 183.508,
    "kvcache": 36.115,
    "startup_available": 33.377,
    "token_capacity": 2191360,
    "graph": {"decode": 2.346, "prefill": 0.761},
}
INIT_UP_TO_0_5_20 = (
    "Init torch distributed begin.",
    "Init torch distributed ends. elapsed=13.08 s, mem usage=1.20 GB",
)
INIT = ("Init parallel begin.", "Init parallel ends. elapsed=13.08 s")
FOLLOWER_READY = "Dummy health check server started in background thread at 0.0.0.0:30000"
READY = "The server is fired up and ready to roll!"


def k3(*, format_in_group=True):
    config = json.loads((FIXTURES / "k3_config.json").read_text())
    if not format_in_group:
        del config["text_config"]["quantization_config"]["config_groups"]["group_0"]["format"]
    return json.dumps(config)


def started(log, found, *, ranks=range(8)):
    """From the flags to the begin of loading, as the main process and its schedulers print it."""
    for line in found.said:
        log.say(8, line)
    log.say(9, f"server_args={record_parts.arguments_for_logging(found.resolved)}")
    log.say(21, "Using default HuggingFace chat template with detected content format: openai")
    older = __version__ in ("0.5.17", "0.5.18", "0.5.19", "0.5.20")
    begin, end = INIT_UP_TO_0_5_20 if older else INIT
    for rank in ranks:
        log.say(44, begin, prefix=f" TP{rank}")
    for rank in ranks:
        log.say(57, end, prefix=f" TP{rank}")
    for rank in ranks:
        log.say(58, "Load weight begin. avail mem=266.41 GB", prefix=f" TP{rank}")


def loaded(log, memory, *, ranks=range(8)):
    available = 266.41 - memory["weight"]
    for rank in ranks:
        log.say(
            741,
            "Load weight end. elapsed=683.17 s, type=KimiK3ForConditionalGeneration, "
            f"quant=compressed-tensors, avail mem={available:.2f} GB, "
            f"mem usage={memory['weight']:.2f} GB.",
            prefix=f" TP{rank}",
        )


def served(log, memory, *, chunk):
    log.say(
        903,
        f"max_total_num_tokens={memory['token_capacity']}, chunked_prefill_size={chunk}, "
        "max_prefill_tokens=16384, max_running_requests=64, context_len=262144, "
        f"available_gpu_mem={memory['startup_available']:.2f} GB",
        prefix=" TP0",
    )
    log.say(912, READY)


def died_of_upcast(log, *, sm, torch_cuda):
    """The packed load succeeds; some layers into the upcast the device is full."""
    rank = 3
    text = record_parts.out_of_memory(
        gpu=rank, tried_gib=4.59, total_gib=267.69, free_gib=2.81, torch_gib=262.12
    )
    frames = record_parts.upcast_traceback(text, sm=sm, torch_cuda=torch_cuda)
    log.say(702, f"Scheduler hit an exception: {frames}", prefix=f" TP{rank}", level=logging.ERROR)
    log.say(
        703,
        "Received sigquit from a child process. It usually means the child failed.",
        level=logging.ERROR,
    )


def left_behind(log, ranks):
    """The other ranks: all but the first of them loaded, and waited for the one that did not."""
    for rank in ranks:
        log.say(
            1222,
            f"Scheduler hit an exception: Traceback (most recent call last):\nValueError: TP rank "
            f"{rank} could finish the model loading, but there are other ranks that didn't finish "
            "loading. It is likely due to unexpected failures (e.g., OOM) or a slow node.\n",
            prefix=f" TP{rank}",
            level=logging.ERROR,
        )


class Recorder:
    def __init__(self, folder):
        self._folder = folder
        self.written = []

    def write(self, name, content):
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.written.append(name)

    def info(self, name, arguments, memory):
        body = record_answers.server_info(arguments, memory)
        self.write(f"server_info/{name}.json", json.dumps(body))

    def http(self, name, found, memory):
        """A server that came up: its log, the same as containerd keeps it, and what it answers."""
        log = self.served(name, found, memory)
        self.write(f"logs/{name}.cri.log", log.cri())

    def served(self, name, found, memory):
        log = record_parts.Log(found.resolved)
        started(log, found)
        loaded(log, memory)
        chunk = worker_ops.resolved_values(found.resolved)["chunked_prefill_size"]
        served(log, memory, chunk=chunk)
        self.write(f"logs/{name}.log", log.text())
        self.info(name, found.resolved, memory)
        return log

    def out_of_memory(self, name, found, *, sm, torch_cuda):
        log = record_parts.Log(found.resolved)
        started(log, found)
        died_of_upcast(log, sm=sm, torch_cuda=torch_cuda)
        self.write(f"logs/{name}.log", log.text())
        self.write(f"logs/{name}.cri.log", log.cri())

    def engine(self, name, found, memory):
        """sgl.Engine, as Dynamo and Ray run it: the first of two lines is not resolved."""
        log = record_parts.Log(found.resolved)
        log.say(7, f"server_args={record_parts.arguments_for_logging(found.asked)}")
        started(log, found)
        loaded(log, memory)
        self.write(f"logs/{name}.log", log.text())

    def follower(self, name, found, memory):
        """Node rank 1: its own ranks, its own resolution, and a server that answers health alone."""
        log = record_parts.Log(found.resolved)
        started(log, found, ranks=range(8, 16))
        loaded(log, memory, ranks=range(8, 16))
        log.say(908, FOLLOWER_READY)
        self.write(f"logs/{name}.log", log.text())

    def abandoned_follower(self, name, found, memory):
        log = record_parts.Log(found.resolved)
        started(log, found, ranks=range(8, 16))
        loaded(log, memory, ranks=range(8, 16))
        left_behind(log, range(8, 16))
        self.write(f"logs/{name}.log", log.text())


TP8 = ("--tp-size", "8")
EP32 = (
    *("--tp-size", "32", "--ep-size", "32", "--nnodes", "4", "--node-rank", "0"),
    *("--dist-init-addr", "k3-b-0.k3-b:20000"),
)
TWO_NODES = ("--tp-size", "16", "--nnodes", "2", "--dist-init-addr", "k3-a-0.k3-a:20000")


def record_new(recorder):
    rubin = {"sm": "10.7", "torch_cuda": "13.0"}
    with record_parts.model_folder(record_parts.MODEL, k3()):
        recorder.http("0.5.23-target", record_parts.launch(flags=TP8, **rubin), TP8_PACKED)
        recorder.engine("0.5.23-engine", record_parts.launch(flags=TP8, **rubin), TP8_PACKED)
        safe = (*TP8, "--moe-runner-backend", "marlin")
        recorder.http("0.5.23-marlin", record_parts.launch(flags=safe, **rubin), TP8_PACKED)
        second = (*TWO_NODES, "--node-rank", "1")
        found = record_parts.launch(flags=second, **rubin)
        recorder.follower("0.5.23-follower", found, TP8_PACKED)
        recorder.abandoned_follower("0.5.23-follower-abandoned", found, TP8_PACKED)
    odd = record_parts.REQUANTIZED
    with record_parts.model_folder(odd, k3(format_in_group=False)):
        recorder.out_of_memory(
            "0.5.23-oom", record_parts.launch(model=odd, flags=TP8, **rubin), **rubin
        )
        recorder.http(
            "0.5.23-bf16-ep32", record_parts.launch(model=odd, flags=EP32, **rubin), EP32_BF16
        )


def record_0_5_18(recorder):
    with record_parts.model_folder(record_parts.MODEL, k3()):
        blackwell = {"sm": "10.0", "torch_cuda": "13.0"}
        recorder.http("0.5.18-target", record_parts.launch(flags=TP8, **blackwell), TP8_PACKED)
        rubin = {"sm": "10.7", "torch_cuda": "13.0"}
        recorder.out_of_memory("0.5.18-oom", record_parts.launch(flags=TP8, **rubin), **rubin)
        safe = (*TP8, "--moe-runner-backend", "marlin")
        recorder.http("0.5.18-marlin", record_parts.launch(flags=safe, **rubin), TP8_PACKED)


def record_marlin(recorder):
    safe = (*TP8, "--moe-runner-backend", "marlin")
    found = record_parts.launch(flags=safe, sm="10.7", torch_cuda="13.0")
    recorder.info(f"{__version__}-marlin", found.resolved, TP8_PACKED)


def record_between(recorder):
    with record_parts.model_folder(record_parts.MODEL, k3()):
        found = record_parts.launch(flags=TP8, sm="10.7", torch_cuda="13.0")
        recorder.served(f"{__version__}-target", found, TP8_PACKED)
        record_marlin(recorder)


def record_0_5_17(recorder):
    """The target needs a pool of cubins there that this machine has not."""
    with record_parts.model_folder(record_parts.MODEL, k3()):
        found = record_parts.launch(flags=EP32, sm="10.7", torch_cuda="13.0")
        recorder.served(f"{__version__}-bf16-ep32", found, EP32_BF16)
        record_marlin(recorder)


RECORDED = {
    "0.5.17": record_0_5_17,
    "0.5.18": record_0_5_18,
    "0.5.19": record_between,
    "0.5.20": record_between,
    "0.5.21": record_between,
    "0.5.22": record_between,
    "0.5.23": record_new,
}


def main(folder=FIXTURES):
    record = RECORDED.get(__version__)
    if record is None:
        print(f"nothing is recorded of SGLang {__version__}", file=sys.stderr)
        return 2
    recorder = Recorder(Path(folder).resolve())
    recorder.write(f"parsers/{__version__}.json", json.dumps(record_answers.parser()) + "\n")
    record(recorder)
    print("\n".join(recorder.written))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
