"""The JSON Schema of the scenario format, made from the classes that read it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from smgate.domain import commands
from smgate.scenario import document
from smgate.service import strict

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


def _bounded(schema: object, name: str = "") -> None:
    """The bounds that the reader puts on what the types leave open: see `service.strict`."""
    if isinstance(schema, list):
        for item in schema:
            _bounded(item, name)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "string" and not {"pattern", "enum"} & set(schema):
        schema.setdefault("maxLength", strict.REASON_MAX if name == "reason" else strict.TEXT_MAX)
        schema["pattern"] = document.PRINTABLE
    elif schema.get("type") in ("integer", "number"):
        schema.setdefault("minimum", -strict.INT_MAX)
        schema.setdefault("maximum", strict.INT_MAX)
    elif schema.get("type") == "array":
        schema.setdefault("maxItems", strict.ITEMS_MAX)
    elif schema.get("type") == "object" and "properties" not in schema:
        schema.setdefault("maxProperties", strict.ITEMS_MAX)
        schema.setdefault(
            "propertyNames", {"maxLength": strict.TEXT_MAX, "pattern": document.PRINTABLE}
        )
    for key, value in schema.items():
        if key == "properties":
            for field, shape in value.items():
                _bounded(shape, field)
        elif key not in ("default", "const", "enum", "required", "propertyNames"):
            _bounded(value, name)


def scenario_schema() -> dict[str, Any]:
    """The schema as a JSON-able value with stable content."""
    steps = {step.__name__: step for kinds in document.KINDS_OF.values() for step in kinds.values()}
    kinds = [document.Document, *steps.values(), *commands.NAMES.values()]
    (top_ref, *shapes), defs = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    step_refs = dict(zip(steps, shapes, strict=False))
    command_refs = shapes[len(steps) :]
    for command_name, ref in zip(commands.NAMES, command_refs, strict=True):
        shape = _of(defs, ref)
        shape["properties"]["type"] = {"const": command_name}
        shape["required"] = sorted({*shape.get("required", []), "type"})
    top = _of(defs, top_ref)
    for shape in defs.values():
        if shape is not top:
            _bounded(_closed(shape))
    for kind in ("CommandStep", "AgreedCommandStep"):
        _of(defs, step_refs[kind])["properties"]["command"] = {"$ref": "#/$defs/Command"}
    _of(defs, step_refs["LookStep"])["properties"]["look"] = {"const": True}
    _of(defs, step_refs["FactsStep"])["properties"]["facts"]["minItems"] = 1
    del defs["Document"]
    defs["Command"] = {"oneOf": command_refs}
    for version, kinds_of in document.KINDS_OF.items():
        defs[f"Step{version}"] = {"oneOf": [step_refs[one.__name__] for one in kinds_of.values()]}
        defs[f"Document{version}"] = _versioned(top, version)
    return {
        "$schema": SCHEMA_ID,
        "title": "smgate scenario",
        "description": "See tests/simulation/README.md. Besides this, the steps stand in the order "
        "of their times, and `start` is a real date.",
        "oneOf": [{"$ref": f"#/$defs/Document{version}"} for version in document.KINDS_OF],
        "$defs": {name: _closed(defs[name]) for name in sorted(defs)},
    }


def _versioned(top: dict[str, Any], version: int) -> dict[str, Any]:
    steps = {"type": "array", "items": {"$ref": f"#/$defs/Step{version}"}}
    fields = {**top["properties"], "scenario": {"const": version}, "steps": steps}
    return {**top, "properties": fields}


def _of(defs: dict[str, Any], ref: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = defs[ref["$ref"].rpartition("/")[2]]
    return found
