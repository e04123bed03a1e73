"""How a unit looks as one line."""

from __future__ import annotations

from typing import Final

from smgate.cli import output


def decided(row: output.Row) -> str:
    """The decided value, short: the runner, or hands off."""
    return short(row.get("override"))


def short(override: object) -> str:
    """An override in a word or two."""
    if not isinstance(override, dict):
        return "-"
    value = override.get("value")
    if override.get("form") == "append":
        return output.text_of(value)
    return "hands off" if value is None else f"hands off ({output.text_of(value)})"


def flags(row: output.Row) -> str:
    """What stands out: the line to look at first."""
    return " ".join(words(row)) or "-"


def words(row: output.Row) -> list[str]:
    """The flags of a unit, the loudest first."""
    said = [word for word in ("exposed", "uncontrolled", "excluded", "released") if row.get(word)]
    if row.get("fallback"):
        said.insert(0, f"BF16:{output.text_of(row['fallback'])}")
    state = output.pick(row, "delivery.state")
    if state in ("refused", "awaiting_restart"):
        said.append(output.text_of(state))
    if row.get("adoption"):
        said.append(output.text_of(row["adoption"]))
    pin = row.get("pin")
    if pin:
        direction = pin.get("direction") if isinstance(pin, dict) else pin
        said.append(f"pinned-{output.text_of(direction)}")
    return said


def would(row: output.Row) -> str:
    """What observe mode keeps from happening."""
    return short(output.pick(row, "override.would"))


def runs(row: output.Row) -> str:
    """What its ranks attest: one pair if they agree, else each of them."""
    ranks = row.get("effective")
    pairs = {_pair(one) for one in ranks if isinstance(one, dict)} if ranks else set()
    return " ".join(sorted(pairs)) or "-"


def _pair(one: output.Row) -> str:
    if one.get("runner") is None:
        return "?"
    a2a = output.text_of(one.get("a2a"))
    runner = output.text_of(one["runner"])
    return runner if a2a == "none" else f"{runner}/{a2a}"


TABLE: Final = output.Table(
    noun="units",
    name="id",
    columns=(
        output.Column("UNIT", "id"),
        output.Column("SM", "sm"),
        output.Column("DECIDED", decided),
        output.Column("CODE", "override.code"),
        output.Column("TOLD", "told"),
        output.Column("RUNS", runs),
        output.Column("STATE", "states"),
        output.Column("FLAGS", flags),
        output.Column("NODES", "nodes", wide=True),
        output.Column("GATE", "gate", wide=True),
        output.Column("WOULD", would, wide=True),
        output.Column("ROLLOUT", "grant.rollout", wide=True),
        output.Column("WHY", "override.sentence", wide=True),
        output.Column("DELIVERY", "delivery.sentence", wide=True),
        output.Column("NEXT STEP", "delivery.next_step", wide=True),
    ),
)


def left_out(body: output.Row) -> list[str]:
    """That there is more than was shown."""
    count = body.get("left_out")
    if not count:
        return []
    return [f"{output.text_of(count)} earlier ones are not shown: --limit, or --since."]


HISTORY: Final = output.Table(
    noun="events of this unit",
    name="position",
    columns=(
        output.Column("POSITION", "position"),
        output.Column("AT", "at"),
        output.Column("WHAT", "type"),
        output.Column("SAYS", "says"),
        output.Column("BY", "actor", wide=True),
    ),
)
