"""What a server of the SGLang that runs this answers on `/server_info`, by that version's own functions.

The endpoint and the scheduler's readback are taken out of their files and run alone, with the imports and values
that they use: the files themselves import what a machine without a GPU lacks. Only the server
they report on is told to them. Nothing falls back to anything: what cannot run is an error.
"""

import ast
import asyncio
import importlib.util
import inspect
import types
from pathlib import Path

import worker_ops
from sglang.srt import server_args
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import publish
from sglang.version import __version__

STARTUP_TIME_S = 912.4
RESOLUTION = ("resolve_once", "resolved_dict")
ENDPOINT = "sglang.srt.entrypoints.http_server"
MANAGER = "sglang.srt.managers.tokenizer_manager"
SCHEDULER = "sglang.srt.managers.scheduler"
READBACK = "sglang.srt.managers.scheduler_components.internal_state"


def server_info(arguments, memory):
    """The body of GET /server_info."""
    publish(arguments, role="tokenizer")
    scheduler = _scheduler(arguments, memory)

    async def get_internal_state():
        return [_internal_state(scheduler)]

    manager = types.SimpleNamespace(
        server_args=arguments, startup_time=STARTUP_TIME_S, get_internal_state=get_internal_state
    )
    if __version__ == "0.5.17":
        own = {"_config_updates": [], **vars(arguments)}
        manager.resolved_config_dict = _method(
            MANAGER, "TokenizerManager", "resolved_config_dict", own
        )
    told = _method(SCHEDULER, "Scheduler", "get_init_info", vars(scheduler))()
    served = types.SimpleNamespace(tokenizer_manager=manager, scheduler_info=told)
    return asyncio.run(_function(ENDPOINT, "server_info", _global_state=served)())


def parser():
    """What the launch gate's question uses: the functions' parameters, and how a launch is resolved."""
    resolves = {name: hasattr(server_args.ServerArgs, name) for name in RESOLUTION}
    asked = server_args.prepare_server_args
    return {
        "prepare_server_args": list(inspect.signature(asked).parameters),
        "load_plugins": list(inspect.signature(load_plugins).parameters),
        **resolves,
    }


def _internal_state(scheduler):
    """Since 0.5.22 an object of its own answers; before, the scheduler does.

    Told are the envelope that carries the answer, and that no step times are kept, as by default.
    """
    told = {"GetInternalStateReqOutput": types.SimpleNamespace, "RECORD_STEP_TIME": False}
    if importlib.util.find_spec(READBACK) is None:
        own, owner, module = vars(scheduler), "Scheduler", SCHEDULER
    else:
        own, owner, module = (
            {"scheduler": scheduler, "record_step_time": False},
            "SchedulerInternalStateController",
            READBACK,
        )
    return _method(module, owner, "get_internal_state", own, **told)(None).internal_state


def _scheduler(arguments, memory):
    """A scheduler that serves Kimi K3 without a draft model, as far as it is looked at."""
    named = types.SimpleNamespace
    pool = named(mem_usage=memory["kvcache"])
    return named(
        startup_time=STARTUP_TIME_S,
        max_running_requests=64,
        metrics_reporter=named(last_gen_throughput=412.7),
        draft_worker=None,
        tp_worker=named(
            model_runner=named(weight_load_mem_usage=memory["weight"]),
            graph_memory_usage=memory["graph"],
        ),
        token_to_kv_pool_allocator=named(get_kvcache=lambda: pool),
        startup_available_gpu_memory_gb=memory["startup_available"],
        max_total_num_tokens=memory["token_capacity"],
        max_req_input_len=262138,
        page_size=worker_ops.resolved_values(arguments)["page_size"],
        swa_tokens_per_layer=None,
        enable_hierarchical_cache=False,
        spec_algorithm=named(is_none=lambda: True, is_dspark=lambda: False),
        rust_server=None,
    )


def _function(module, name, **told):
    tree = _tree(module)
    return _run(tree, _named(tree, name), told)


def _method(module, owner, name, own, **told):
    """A method of an object that has these fields, and those methods that this one calls."""
    tree = _tree(module)
    kind = _named(tree, owner)
    methods = {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}
    reached = [name]
    for called in reached:
        for node in ast.walk(methods[called]):
            if isinstance(node, ast.Attribute) and node.attr in methods.keys() - set(reached):
                reached.append(node.attr)
    kind.body = [methods[called] for called in reached]
    kind.bases, kind.keywords = [], []
    made = _run(tree, kind, told)()
    vars(made).update(own)
    return getattr(made, name)


def _tree(module):
    return ast.parse(Path(importlib.util.find_spec(module).origin).read_text())


def _named(tree, name):
    (found,) = [node for node in tree.body if getattr(node, "name", None) == name]
    return found


def _run(tree, wanted, told):
    """What this definition makes. Types that it only writes down are not needed to run it."""
    for node in ast.walk(wanted):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.decorator_list, node.returns = [], None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant("")
    used = _names(wanted) - told.keys()
    values = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if node.targets[0].id in used
    ]
    used |= {name for value in values for name in _names(value)}
    imports = [
        ast.Import([alias])
        if isinstance(node, ast.Import)
        else ast.ImportFrom(node.module, [alias], node.level)
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (alias.asname or alias.name) in used
    ]
    space = dict(told)
    alone = ast.fix_missing_locations(ast.Module([*imports, *values, wanted], []))
    exec(compile(alone, wanted.name, "exec"), space)
    return space[wanted.name]


def _names(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
