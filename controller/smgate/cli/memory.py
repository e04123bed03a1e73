"""`smgate memory`: what a model's weights take, and whether a BF16 fallback would crash or hide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from smgate.cli import exit_codes, failures, memory_lines, output, session as sessions, verbs

NOUN: Final = verbs.noun("memory", "What a model's weights take on a GPU; no server, no network.")
CONFIG_BYTES_MAX: Final = 1 << 20


@verbs.does(
    NOUN,
    "estimate",
    remote=False,
    examples=[
        "smgate memory estimate --model-config config.json --tp 8",
        "smgate memory estimate --model-config config.json --tp 32 --a2a deepep -o json",
    ],
)
def estimate(
    session: sessions.Session,
    model_config: Annotated[
        str, typer.Option(help="The model's config.json, or its folder, or - for standard input.")
    ],
    tp: Annotated[int, typer.Option(help="--tp-size of the launch.")] = 8,
    ep: Annotated[int, typer.Option(help="--ep-size; an a2a backend makes it TP.")] = 1,
    pp: Annotated[int, typer.Option(help="--pp-size.")] = 1,
    a2a: Annotated[str, typer.Option(help="--moe-a2a-backend.")] = "none",
    dp_attention: Annotated[
        int, typer.Option(help="--dp-size, where --enable-dp-attention is given.")
    ] = 1,
    redundant_experts: Annotated[int, typer.Option(help="--ep-num-redundant-experts.")] = 0,
    gpu_memory_gib: Annotated[
        float, typer.Option(help="Capacity as PyTorch reports it; what is sold as 288 GB has 268.")
    ] = 268,
    context_gib: Annotated[
        float, typer.Option(help="Taken beside PyTorch: CUDA context, communication buffers.")
    ] = 0.6,
    mem_fraction: Annotated[float, typer.Option(help="--mem-fraction-static.")] = 0.85,
) -> int:
    """Say how many bytes a model takes per GPU, and what a BF16 fallback would do there."""
    from fractions import Fraction

    from smgate.domain import errors
    from smgate.domain.memory import estimate as estimates, parts

    config = _config(session, model_config)
    try:
        found = estimates.estimate(
            config,
            asked=parts.Parallel(
                tp=tp,
                ep=ep,
                pp=pp,
                a2a=a2a,
                dp_attention=dp_attention,
                redundant_experts=redundant_experts,
            ),
            gpu=estimates.Gpu(
                memory_bytes=int(gpu_memory_gib * estimates.GIB),
                context_bytes=int(context_gib * estimates.GIB),
                mem_fraction=Fraction(str(mem_fraction)),
            ),
        )
    except (errors.RejectedError, ValueError, OverflowError) as error:
        code = error.code if isinstance(error, errors.RejectedError) else "bad_gpu"
        hint = error.next_step if isinstance(error, errors.RejectedError) else ""
        raise failures.usage(str(error), code=code, hint=hint) from error
    output.single(
        session.console,
        memory_lines.document(found),
        name=found.architecture,
        style=session.style,
        footer="",
        lines=memory_lines.lines,
    )
    return exit_codes.OK


def _config(session: sessions.Session, given: str) -> dict[str, Any]:
    import json

    try:
        if given == "-":
            text = session.console.asked.read(CONFIG_BYTES_MAX + 1)
        else:
            path = Path(given)
            path = path / "config.json" if path.is_dir() else path
            with path.open(encoding="utf-8") as file:
                text = file.read(CONFIG_BYTES_MAX + 1)
        config = json.loads(text) if len(text) <= CONFIG_BYTES_MAX else None
    except (OSError, ValueError, RecursionError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise failures.usage(f"{given} cannot be read.", cause=cause or "") from error
    if not isinstance(config, dict):
        raise failures.usage(f"{given} is no model's config.json.", code="bad_model_config")
    return config
