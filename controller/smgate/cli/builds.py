"""`smgate build`: kernel keys, their evidence, and images announced before any node runs them."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final, Literal

import typer

from smgate import client
from smgate.cli import (
    asks,
    failures,
    output,
    session as sessions,
    suggest,
    verbs,
    why as telling,
)

NOUN: Final = verbs.noun("build", "Kernel keys, their standing and their evidence.")
TABLE: Final = output.Table(
    noun="builds",
    name="key",
    columns=(
        output.Column("KEY", "key"),
        output.Column("SM", "sm"),
        output.Column("STANDING", "standing"),
        output.Column("SGLANG", "build.sglang_version"),
        output.Column("FLASHINFER", "build.flashinfer_version"),
        output.Column("DRIVER", "build.driver_version"),
        output.Column("GPU SETS", lambda row: len(row.get("gpu_sets") or ())),
        output.Column("WANTED", lambda row: len(row.get("wanted") or ())),
        output.Column("GRANTED", "granted_units"),
        output.Column("A2A", "a2a", wide=True),
        output.Column("LAYOUT", "layout", wide=True),
        output.Column("QUALIFIED", "qualified_at", wide=True),
    ),
)
Ruling = Literal["node-fault", "confirmed", "cleared"]
BuildKey = Annotated[str, typer.Argument(help="A kernel key.", autocompletion=suggest.builds)]


def _announced(body: output.Row) -> list[str]:
    rows = output.items_of({"items": body.get("announced")})
    return [f"announced: {output.text_of(row.get('name'))}: {_expanded(row)}" for row in rows]


def _expanded(row: output.Row) -> str:
    """The kernel keys an image would make in this fleet, those that need evidence first."""
    keys = output.items_of({"items": row.get("kernel_keys")})
    if not keys:
        return "no kernel key yet: no launch of a candidate SM was seen to expand it by"
    shown = sorted(keys, key=lambda one: one.get("standing") == "qualified")
    return ", ".join(
        f"{output.text_of(one.get('key'))} {output.text_of(one.get('standing'))}" for one in shown
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Announcement:
    """The file of `build announce -f`."""

    packages: dict[str, str]


@verbs.reads(NOUN, "ls", watch=True, examples=["smgate build ls", "smgate build ls -o jsonl"])
def ls() -> asks.Listing:
    """List the kernel keys and where each stands."""
    return asks.Listing(path=client.path("builds"), table=TABLE, notes=_announced)


@verbs.reads(NOUN, "show", watch=True, examples=["smgate build show 3fa91c0d2b7e4a55"])
def show(key: BuildKey) -> asks.Item:
    """Show one kernel key: what it is made of, what was checked on which GPUs."""
    return asks.Item(path=client.path("builds", key), name=key, kind="build", table=TABLE)


@verbs.reads(NOUN, "why", examples=["smgate build why 3fa91c0d2b7e4a55"])
def why(key: BuildKey) -> asks.Item:
    """Say why a kernel key stands where it stands, and which evidence it lacks."""
    return asks.Item(
        path=client.path("builds", key, "why"), name=key, kind="build", lines=telling.plain_lines
    )


@verbs.changes(
    NOUN,
    "announce",
    "build_announce",
    examples=[
        "smgate build announce sglang:v0.5.23-cu130 --package sglang_version=0.5.23 "
        "--package flashinfer_version=0.7.2 --package torch_cuda=13.0 --reason 'release 14'",
        "smgate build announce sglang:v0.5.23-cu130 -f packages.yaml --reason 'release 14'",
    ],
)
def announce(
    session: sessions.Session,
    name: Annotated[str, typer.Argument(help="A name for the build, such as its image.")],
    package: Annotated[
        list[str] | None,
        typer.Option("--package", help="NAME=VERSION, once for each package."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", help="YAML or JSON with packages: {NAME: VERSION}."),
    ] = None,
) -> asks.Change:
    """Say which packages an image has before any node runs it, so that it can be checked first."""
    packages: dict[str, str] = {}
    if file is not None:
        from smgate.cli import files

        packages |= files.load(file, Announcement, asked=session.console.asked)["packages"]
    for text in package or ():
        key, equals, version = text.partition("=")
        if not (key and equals and version):
            raise failures.usage(
                f"--package {text!r} is not NAME=VERSION.",
                hint="For example: --package flashinfer_version=0.7.2",
            )
        if packages.get(key, version) != version:
            raise failures.usage(f"The package {key} is given twice, differently.")
        packages[key] = version
    if not packages:
        raise failures.usage("No package is given.", hint="Give --package NAME=VERSION, or -f.")
    return asks.Change(
        fields={"name": name, "packages": packages}, summary=f"Build {name} is announced."
    )


@verbs.changes(
    NOUN,
    "rule",
    "build_rule",
    examples=[
        "smgate build rule 3fa91c0d2b7e4a55 --node pool-4 --as node-fault --reason 'bad HBM, RMA'",
        "smgate build rule 3fa91c0d2b7e4a55 --gpus GPU-0001,GPU-0002 --as confirmed --reason 'seen'",
    ],
)
def rule(
    key: BuildKey,
    ruling: Annotated[
        Ruling,
        typer.Option(
            "--as",
            help="node-fault: the node's own; confirmed: the build's; cleared: measure it anew.",
        ),
    ],
    node: Annotated[
        str | None,
        typer.Option("--node", help="The node with the result.", autocompletion=suggest.nodes),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="Its GPU UUIDs, with commas between.")
    ] = None,
) -> asks.Change:
    """Rule on a failed or flaky result: the node's own fault, the build's, or to be measured anew."""
    if (node is None) == (gpus is None):
        raise failures.usage("Give either --node or --gpus.")
    fields: dict[str, object] = {"kernel_key": key, "ruling": ruling.replace("-", "_")}
    if node is not None:
        fields["node"] = node
    else:
        fields["gpu_uuids"] = [uuid for uuid in (gpus or "").split(",") if uuid]
    return asks.Change(
        fields=fields, summary=f"The result of {node or gpus} for {key} is ruled {ruling}."
    )
