"""Block quantisers and the 128x4 layout of scales, by its formula."""

import torch

from flashinfer.tllm_enums import SfLayout

FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def fault():
    import flashinfer

    return flashinfer.FAULT


def layout_128x4(scales):
    """Offset of (row, column): tile * 512 + (row % 32) * 16 + (row // 32 % 4) * 4 + column % 4."""
    rows, columns = scales.shape
    tall, wide = -(-rows // 128) * 128, -(-columns // 4) * 4
    row = torch.arange(rows).unsqueeze(1)
    column = torch.arange(columns).unsqueeze(0)
    tile = (row // 128) * (wide // 4) + column // 4
    offset = tile * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + column % 4
    flat = torch.zeros(tall * wide, dtype=scales.dtype)
    flat[offset.flatten()] = scales.flatten()
    return flat


def linear(flat, rows, columns):
    places = layout_128x4(torch.arange(rows * columns).view(rows, columns) + 1)
    back = torch.empty(rows * columns, dtype=flat.dtype)
    kept = places > 0
    back[places[kept] - 1] = flat.flatten()[kept]
    return back.view(rows, columns)


def block_scale(values, largest):
    """Exponents of the smallest powers of two under which no value is above `largest`."""
    size = values.double().abs().amax(-1).clamp_min(2.0**-120)
    return torch.ceil(torch.log2(size / largest))


def mxfp8(values):
    parts = values.double().unflatten(-1, (-1, 32))
    exponent = block_scale(parts, 448.0)
    quantized = (parts / torch.exp2(exponent).unsqueeze(-1)).to(torch.float8_e4m3fn)
    return quantized.flatten(-2), (exponent + 127).to(torch.uint8)


def from_mxfp8(quantized, scales):
    parts = quantized.float().unflatten(-1, (-1, 32))
    return (parts * torch.exp2(scales.float() - 127).unsqueeze(-1)).flatten(-2)


def mxfp8_quantize(
    input,
    is_sf_swizzled_layout=True,
    alignment=32,
    enable_pdl=None,
    backend="cuda",
    sf_swizzle_layout=None,
):
    if sf_swizzle_layout is None:
        sf_swizzle_layout = (
            SfLayout.layout_128x4 if is_sf_swizzled_layout else SfLayout.layout_linear
        )
    padded = -(-input.shape[-1] // alignment) * alignment
    values, scales = mxfp8(torch.nn.functional.pad(input, (0, padded - input.shape[-1])))
    if fault() == "quantizer_truncates":
        values = (values.float() * 0.94).to(torch.float8_e4m3fn)
    return values, laid(scales, sf_swizzle_layout)


def laid(scales, layout):
    """Scales in the layout that was asked for; with the fault, in the other one."""
    swizzled = layout_128x4(scales)
    if fault() == "quantizer_confuses_layouts":
        if layout == SfLayout.layout_linear:
            return swizzled[: scales.numel()]
        swizzled[: scales.numel()] = scales.flatten()
        return swizzled
    return swizzled if layout == SfLayout.layout_128x4 else scales.flatten()


def mxfp4_quantize(a, backend="cuda", enable_pdl=None, sfLayout=SfLayout.layout_128x4):  # noqa: N803
    parts = a.double().unflatten(-1, (-1, 32))
    exponent = block_scale(parts, 6.0)
    scaled = parts / torch.exp2(exponent).unsqueeze(-1)
    table = torch.tensor(FP4, dtype=torch.float64)
    distance = (scaled.abs().unsqueeze(-1) - table).abs()
    even_first = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    code = even_first[distance[..., even_first].argmin(-1)]
    code = (code + 8 * (scaled < 0)).flatten(-2).to(torch.uint8)
    packed = code[..., 0::2] | code[..., 1::2] << 4
    return packed, laid((exponent + 127).to(torch.uint8), sfLayout)


def nvfp4_block_scale_interleave(unswizzled_sf):
    if fault() == "scales_not_interleaved":
        return unswizzled_sf.flatten()
    return layout_128x4(unswizzled_sf)
