"""The JSON Schema of the scenario format, made from the classes that read it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from smgate.domain import commands
from smgate.scenario import document

SCHEMA_ID: Final = "https://json-schema.org/draft/2020-12/schema"


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Every object with named properties refuses others, as the reader does."""
    if schema.get("type") == "object" and "properties" in schema:
        schema["additionalProperties"] = False
    for value in list(schema.values()):
        if isinstance(value, dict):
            _closed(value)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    _closed(item)
    return schema


def scenario_schema() -> dict[str, Any]:
    """The schema as a JSON-able value with stable content."""
    kinds = [document.Document, document.Step, *commands.NAMES.values()]
    (doc, step, *shapes), defs = msgspec.json.schema_components(
        kinds, ref_template="#/$defs/{name}"
    )
    choices = []
    for name, shape in zip(commands.NAMES, shapes, strict=True):
        key = shape["$ref"].rpartition("/")[2]
        definition = _closed(defs[key])
        definition["properties"]["type"] = {"const": name}
        definition["required"] = sorted({*definition.get("required", []), "type"})
        choices.append({"$ref": f"#/$defs/{key}"})
    defs["Command"] = {"oneOf": choices}
    top = defs[doc["$ref"].rpartition("/")[2]]
    top["properties"]["steps"] = {"type": "array", "items": step}
    item = defs[step["$ref"].rpartition("/")[2]]
    item["properties"]["command"] = {"$ref": "#/$defs/Command"}
    for optional in ("node", "by", "connect", "disconnect", "controller", "look", "note", "facts"):
        item["properties"][optional].pop("default", None)
    return {
        "$schema": SCHEMA_ID,
        "title": "smgate scenario",
        **doc,
        "$defs": {name: _closed(defs[name]) for name in sorted(defs)},
    }
