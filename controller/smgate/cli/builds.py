"""`smgate build`: kernel keys, their evidence, and images announced before any node runs them."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final, Literal

import typer

from smgate import client
from smgate.cli import (
    asks,
    build_lines,
    exit_codes,
    failures,
    options,
    output,
    session as sessions,
    suggest,
    verbs,
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
WAITED: Final = {"qualified": exit_codes.OK, "failed": exit_codes.ENDED_BADLY}
"""How waiting for a kernel key ends, by its standing."""
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


@verbs.reads(
    NOUN,
    "why",
    examples=[
        "smgate build why 3fa91c0d2b7e4a55",
        "smgate build why 3fa91c0d2b7e4a55 --at 2027-03-01T03:12:00Z",
    ],
)
def why(key: BuildKey, at: options.At = None) -> asks.Item:
    """Say why a kernel key stands where it stands, which evidence it lacks, and who must act."""
    return asks.Item(
        path=client.path("builds", key, "why"),
        name=key,
        kind="build",
        parameters={"at": at},
        lines=build_lines.why_lines,
    )


@verbs.does(
    NOUN,
    "wait",
    examples=[
        "smgate build wait 3fa91c0d2b7e4a55",
        "smgate build wait 3fa91c0d2b7e4a55 --timeout 7200 -o jsonl",
    ],
)
def wait(
    session: sessions.Session,
    key: BuildKey,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0.1, help="Seconds after which it gives up (7)."),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, help="Seconds between looks.")
    ] = options.WATCH_INTERVAL_S,
) -> int:
    """Wait until a kernel key is qualified (0) or has failed (6): the gate of a pipeline."""
    from smgate.cli import watching

    flags = asks.WatchFlags(watch=True, interval_s=interval, timeout_s=timeout)

    def look() -> client.Answer:
        answer = session.client.get(client.path("builds"))
        return dataclasses.replace(answer, body=_of_key(answer.body, key))

    def draw(answer: client.Answer) -> None:
        output.single(session.console, answer.body, name=key, style=session.style, footer="")

    return watching.watch(
        session,
        flags,
        look=look,
        rows_of=lambda body: [body],
        table=TABLE,
        draw=draw,
        ended=lambda body: WAITED.get(str(body.get("standing"))),
    )


def _of_key(body: output.Row, key: str) -> output.Row:
    """A kernel key; one that only an announced image would make has no evidence yet."""
    known = output.items_of(body)
    announced = output.items_of({"items": body.get("announced")})
    made = [one for row in announced for one in output.items_of({"items": row.get("kernel_keys")})]
    for row in [*known, *made]:
        if row.get("key") == key:
            return row
    raise failures.CliError(
        f"There is no kernel key {key!r}, and no announced image would make it.",
        exit_code=exit_codes.NOT_FOUND,
        code="not_found",
        hint=suggest.near(key, [output.text_of(row.get("key")) for row in known]),
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


@verbs.changes(
    NOUN,
    "accept",
    "build_accept",
    examples=[
        "smgate build accept 3fa91c0d2b7e4a55 --like 81d2c0aa93be6f17 --reason 'same kernels, EP 4'"
    ],
)
def accept(
    key: BuildKey,
    like: Annotated[
        str,
        typer.Option("--like", help="A key that is qualified.", autocompletion=suggest.builds),
    ],
) -> asks.Change:
    """Accept that a kernel key is like a qualified one, without measuring it.

    They may differ in the jit-cache, the CuTe DSL and how the experts are cut over ranks.
    """
    return asks.Change(
        fields={"kernel_key": key, "like": like}, summary=f"{key} is accepted as like {like}."
    )
