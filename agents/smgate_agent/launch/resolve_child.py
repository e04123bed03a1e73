"""Asks SGLang's own parser and resolution what a launch would become, and starts nothing.

A script passed to SGLang's own interpreter with `-c`: it imports nothing of the gate and prints one
marked line. Its argument is the launch's command line behind `sglang serve`, as JSON. Since 0.5.19
resolution is a call of its own; before, a `ServerArgs` resolves itself while it is made.
"""

import json
import os
import sys

MARK = "smgate-result "
STDOUT, STDERR = 1, 2
OF_THE_GATE = (
    *("gated_launch_port", "host", "dp_size", "enable_dp_attention"),
    *("elastic_ep_backend", "use_ray"),
)
"""What says whether the ranks could all wait at SGLang's own launch gate."""


def resolved(argv: "list[str]") -> "dict[str, object]":
    """The pair this command line resolves to, on this machine, and what is about SGLang's gate."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    arguments = prepare_server_args(argv)
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
    has_record = hasattr(arguments, "resolved_dict")
    values = arguments.resolved_dict() if has_record else vars(arguments)
    pair = {"runner": values["moe_runner_backend"], "a2a": values["moe_a2a_backend"]}
    return {**pair, **{name: values.get(name) for name in OF_THE_GATE}}


def main() -> None:
    """Print the pair as one marked line; what SGLang prints goes to stderr."""
    answer = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    sys.path[:] = [folder for folder in sys.path if folder]
    argv = json.loads(sys.argv[1])
    sys.argv[1:] = []
    # Nothing is fetched from a hub: the launch itself will do that, and this one is in its way.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # argparse asks for the terminal's size once per flag, 500 times a parse.
    os.environ.update(COLUMNS="200", LINES="50")
    os.write(answer, ("\n" + MARK + json.dumps(resolved(argv)) + "\n").encode())
    os._exit(0)  # threads that imports started do not keep this child


if __name__ == "__main__":
    main()
