"""One process of SGLang's own code, asked over JSON lines. Run by SGLang's interpreter, never by pytest.

    .venv-sglang/bin/python tests/sglang/worker.py

One request per line on stdin, one answer per line on stdout; everything SGLang prints or logs goes
to stderr. A request is an object with `op` and the fields below; the answer is `{"ok": ...}`, or
`{"failed": {"type": ..., "text": ...}}` when the worker itself could not do what was asked. What
SGLang refuses is no failure of the worker: it is an `error` inside `ok`.

A machine is `sm` ("10.7") and `torch_cuda` ("12.8", or null for a torch without CUDA). What SGLang
then believes (`is_sm100` and the rest) is computed by SGLang's own functions from a torch that
reports that capability and that CUDA version; see `worker_machine.py`.

hello          {} -> {sglang, torch, python, flashinfer}
facts          {sm, torch_cuda} -> {fact: value}
resolve_argv   {argv, sm, torch_cuda, env?} -> the whole of what a launch resolves to:
               {"runner": ..., "a2a": ..., "fields": {name: value of a few more}, "log": [lines]} or
               {"error": {"stage": "parse"|"resolve", "type": ..., "text": ...}, "log": [lines]}.
               `argv` is what stands after `sglang serve`, `--config FILE` included; `env` is set
               for this case alone. A fresh ServerArgs each time, about 0.03 s after the first.
resolve_many   {cases: [the fields of resolve_argv]} -> [answers], without their log lines
create_runner  {runner, a2a, sm, torch_cuda} -> Mxfp4MoEMethod and its create_moe_runner:
               {"runner": the MoeRunner's backend, or null where none is made} or {"error": {...}}
create_many    {cases: [...]} -> [answers of create_runner]
weights        {runner, a2a, sm, torch_cuda, experts, hidden, intermediate} -> weights created,
               filled and processed: dtypes and bytes before and after, and the upcasts made
parameters     {runner, a2a, sm, torch_cuda, experts, hidden, intermediate, with_bias} -> what
               create_weights makes: {name: {dtype, bytes, shape}}, on the meta device
parameters_many {cases: [...]} -> [answers of parameters]
loader         {quantization_config} -> {"sees_mxfp4": bool}: CompressedTensorsConfig's own answer
marlin_check   {sm, torch_cuda, launch} -> the probe's check `marlin`, in this process; sm null: no GPU
marlin_judged  {outputs: [names]} -> what that check says of right and wrong outputs
choices        {} -> {"runner": [...], "a2a": [...]}: what the argument parser accepts
"""

import json
import os
import sys
import traceback

import worker_stubs

# Argparse asks for the terminal's size once per flag, 500 times a parse.
os.environ.setdefault("COLUMNS", "200")
os.environ.setdefault("LINES", "50")
# SGLang logs to stdout as well: the protocol keeps the real stdout to itself.
_ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

worker_stubs.install()

import worker_ops


def main() -> int:
    for line in sys.stdin:
        try:
            request = json.loads(line)
            operation = worker_ops.OPERATIONS[request.pop("op")]
            answer = {"ok": operation(**request)}
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": {"type": type(error).__name__, "text": str(error)}}
        _ANSWERS.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
