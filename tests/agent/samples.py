"""Small bodies and log lines in the shapes SGLang prints, with secrets planted in them."""

SECRET = "sk-PLANTED-7f3a"

ARGS_REPR = (
    "[2026-11-02 10:00:00] server_args=ServerArgs(model_path='/models/k3', tokenizer_path=None, "
    "api_key='sk-PLANTED-7f3a, moe_runner_backend=\\'marlin\\'', moe_runner_backend='auto', "
    "moe_a2a_backend='none', lora_paths=[LoRARef(lora_id='x', moe_runner_backend='triton')], "
    "tp_size=8, ep_size=1, pp_size=1, dp_size=1, nnodes=1, node_rank=0, "
    "enable_dp_attention=False, watchdog_timeout=300.0, mode=<Mode.A: 'a'>, admin_api_key=None)"
)

ARGS_DICT = (
    "[2026-11-02 10:00:00] server_args={'model_path': '/models/k3', 'api_key': "
    "\"sk-PLANTED-7f3a'}{, 'moe_runner_backend': 'marlin'\", 'moe_runner_backend': '%s', "
    "'moe_a2a_backend': 'none', 'extra': {'moe_runner_backend': 'triton', 'tp_size': 99}, "
    "'tp_size': 8, 'ep_size': 1, 'pp_size': 1, 'dp_size': 1, 'nnodes': 1, 'node_rank': 0, "
    "'enable_dp_attention': False, 'ssl_keyfile_password': 'sk-PLANTED-7f3a', 'ratio': 1e-06}"
)

INIT_OLD = "[2026-11-02 10:00:05 TP0] Init torch distributed begin."
INIT = "[2026-11-02 10:00:05 TP0] Init parallel begin."
LOAD_BEGIN = "[2026-11-02 10:00:09 TP0] Load weight begin. avail mem=266.10 GB"
LOAD_END = (
    "[2026-11-02 10:09:00 TP0] Load weight end. elapsed=531.20 s, "
    "type=KimiK3ForConditionalGeneration, quant=compressed-tensors, avail mem=79.02 GB, "
    "mem usage=187.08 GB."
)
DRAFT_LOAD_END = (
    "[2026-11-02 10:10:00 TP0] Load weight end. elapsed=3.20 s, type=KimiK3DraftModel, "
    "avail mem=77.02 GB, mem usage=2.00 GB."
)
READY = "[2026-11-02 10:12:00] The server is fired up and ready to roll!"
FOLLOWER_READY = (
    "[2026-11-02 10:12:00] Dummy health check server started in background thread at 0.0.0.0:30000"
)
SIGQUIT = "[2026-11-02 10:08:03] Received sigquit from a child process. It usually means the child failed."


def crash(
    *frames: str,
    error: str = "torch.OutOfMemoryError: CUDA out of memory. Tried to "
    "allocate 4.59 GiB. GPU 0 has a total capacity of 268.00 GiB",
) -> list[str]:
    """A scheduler's last words, with these functions on its stack."""
    lines = [
        "[2026-11-02 10:08:00 TP0] Scheduler hit an exception: Traceback (most recent call last):"
    ]
    for number, name in enumerate(frames):
        lines.append(
            f'  File "/sgl/srt/layers/quantization/mxfp4.py", line {1115 + number}, in {name}'
        )
        lines.append("    w13_weight = upcast(layer)")
    lines.append(error)
    return lines


UPCAST_CRASH = crash("process_weights_after_loading", "upcast_from_mxfp")
OTHER_CRASH = crash("process_weights_after_loading")

SERVER_INFO = (
    b'{"model_path":"/models/k3","api_key":"sk-PLANTED-7f3a","moe_runner_backend":"auto",'
    b'"moe_a2a_backend":"none","tp_size":8,"ep_size":1,"pp_size":1,"dp_size":1,"nnodes":1,'
    b'"node_rank":0,"enable_dp_attention":false,"launch_command":"sglang serve --api-key '
    b'sk-PLANTED-7f3a --moe-runner-backend marlin","max_total_num_tokens":1024,'
    b'"internal_states":[{"memory_usage":{"weight":647.123,"kvcache":20.5,"token_capacity":9,'
    b'"graph":{"decode":1.0}},"env_vars":{"HF_TOKEN":"sk-PLANTED-7f3a"}}],"version":"0.5.23",'
    b'"frontend":"python"}'
)
MODEL_INFO = (
    b'{"model_path":"/models/k3","architectures":["KimiK3ForConditionalGeneration"],'
    b'"model_type":"kimi_k3"}'
)

K3_CONFIG = {
    "architectures": ["KimiK3ForConditionalGeneration"],
    "text_config": {"quantization_config": {"format": "mxfp4-pack-quantized"}},
}
