"""The fused MoE, after the docstrings of FlashInfer 0.7.2.post1, one expert at a time."""

import torch

from flashinfer import autotuner, ending, quantization

BLOCK_OF_ROWS = [
    0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
    4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31,
]  # fmt: skip
"""Where each of 32 rows goes, with an epilogue tile of 128 rows."""

last_outputs = []
decoded = {}


def get_w2_permute_indices_with_cache(
    _cache_permute_indices, dst_w2_weight, epilogue_tile_m, num_elts_per_sf=None
):
    assert epilogue_tile_m == 128
    old = torch.arange(dst_w2_weight.shape[0])
    order = torch.empty_like(old)
    order[old // 32 * 32 + torch.tensor(BLOCK_OF_ROWS)[old % 32]] = old
    return order


def trtllm_fp4_block_scale_routed_moe(
    topk_ids,
    routing_bias,
    hidden_states,
    hidden_states_scale,
    gemm1_weights,
    gemm1_weights_scale,
    gemm1_bias,
    gemm1_alpha,
    gemm1_beta,
    gemm1_clamp_limit,
    gemm2_weights,
    gemm2_weights_scale,
    gemm2_bias,
    output1_scale_scalar,
    output1_scale_gate_scalar,
    output2_scale_scalar,
    num_experts,
    top_k,
    n_group,
    topk_group,
    intermediate_size,
    local_expert_offset,
    local_num_experts,
    routed_scaling_factor,
    routing_method_type=0,
    do_finalize=True,
    enable_pdl=None,
    activation_type=3,
    per_token_scale=None,
    output=None,
    tune_max_num_tokens=8192,
):
    fault = quantization.fault()
    ending.at_call(fault)
    tokens = hidden_states.shape[0]
    assert (routing_method_type, activation_type) == (5, 10)
    assert do_finalize
    assert intermediate_size * 2 == gemm1_weights.shape[1]
    assert tune_max_num_tokens >= tokens
    if fault == "not_written" or output is None:
        return [torch.empty_like(output)]
    ids, weights = split(topk_ids)
    weights_of = unprepared(gemm1_weights, gemm1_weights_scale, gemm2_weights, gemm2_weights_scale)
    hidden = quantization.from_mxfp8(hidden_states, hidden_states_scale.view(torch.uint8))
    result = torch.zeros(tokens, gemm2_weights.shape[1])
    for expert in range(local_num_experts):
        token, slot = torch.where(ids == expert + local_expert_offset)
        w13, w2 = weights_of[(expert + (fault == "off_by_one")) % local_num_experts]
        both = hidden[token] @ w13.T
        inner = quantization.mxfp8(activation(fault, both, gemm1_alpha[0], gemm1_beta[0]))
        inner = quantization.from_mxfp8(*inner)
        part = (inner @ w2.T).bfloat16().float() * weights[token, slot].float().unsqueeze(1)
        result.index_add_(0, token, part)
    output.copy_(spoiled(fault, result))
    last_outputs[:] = [output.clone()]
    return [output]


def split(topk_ids):
    if isinstance(topk_ids, tuple):
        return topk_ids
    return topk_ids >> 16, (topk_ids & 0xFFFF).to(torch.int16).view(torch.bfloat16)


def activation(fault, both, alpha, beta):
    up, gate = both[:, 0::2], both[:, 1::2]
    if fault == "swiglu" or (fault == "swiglu_when_tuned" and autotuner.seen["tuned"]):
        return up * gate * torch.sigmoid(gate)
    if fault == "swapped":
        up, gate = gate, up
    return beta * torch.tanh(up / beta) * alpha * torch.tanh(gate / alpha) * torch.sigmoid(gate)


def unprepared(w13, w13_scales, w2, w2_scales):
    """Each expert's weights in float32 with the shuffle and the scale layout taken back."""
    key = (w13.data_ptr(), w2.data_ptr())
    if key not in decoded:
        decoded[key] = [
            (plain(*first), plain(*second))
            for first, second in zip(
                zip(w13, w13_scales, strict=True), zip(w2, w2_scales, strict=True), strict=True
            )
        ]
    return decoded[key]


def plain(packed, scales):
    rows = packed.shape[0]
    scales = quantization.linear(scales.contiguous().view(torch.uint8), rows, scales.shape[1])
    table = torch.tensor(quantization.FP4 + [-value for value in quantization.FP4])
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).int()
    values = quantization.from_mxfp8(table[codes], scales)
    order = get_w2_permute_indices_with_cache({}, packed, 128)
    back = torch.empty_like(values)
    back[order] = values
    return back


def spoiled(fault, result):
    tokens = result.shape[0]
    if fault == "zeros":
        return torch.zeros_like(result)
    if fault == "nan_in_many_tokens" and tokens >= 6144:
        result[::100] = float("nan")
    if fault == "stale" and last_outputs and last_outputs[0].shape == result.shape:
        return last_outputs[0]
    if fault == "ten_percent":
        return result * 1.1
    if fault == "one_wrong_token" and tokens >= 6144:
        result[7] = result[8]
    if fault == "not_repeatable":
        return result * (1 + 2e-3 * torch.rand(result.shape))
    return result
