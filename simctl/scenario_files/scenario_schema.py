"""The JSON Schema of scenario files, for editors: `simctl run --schema`. The options are those of the commands themselves."""

from __future__ import annotations

import json
from typing import Any

import click

from simctl.options.file_options import options_by_name, parser_of
from simctl.scenario_files.scenario import ANSWERED, KEYS

INTEGER = ["integer"]
RANGE = {
    "type": "object",
    "required": ["low", "high"],
    "additionalProperties": False,
    "properties": {"low": {"type": "number"}, "high": {"type": "number"}, "scale": {"enum": ["linear", "log"]}},
}
TYPES = {"integer": INTEGER, "integer range": INTEGER, "float": ["number", "string"], "float range": ["number"]}


def schema() -> dict[str, Any]:
    """Schema of scenario files. It is no stricter than `simctl run`, which also checks what values mean."""
    properties = {
        "question": {"type": "string", "pattern": r"\?\s*$", "description": "One question; it ends in a question mark."},
        "command": {"enum": list(ANSWERED), "description": "The command that answers it."},
        "options": {"type": "object", "description": "Options of the command, without the dashes in front."},
        "sweep": {
            "type": "object",
            "description": "Options with a list of values each; every combination is run. With samples, ranges, too.",
        },
        "samples": {
            "type": "integer",
            "minimum": 1,
            "description": "Cells drawn as a Latin hypercube over the sweep, not every combination.",
        },
        "report": {"type": "array", "items": {"type": "string"}, "description": "Figures to print, by their dotted names in --json."},
    }
    assert tuple(properties) == KEYS
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "simctl scenario",
        "type": "object",
        "required": ["question", "command"],
        "additionalProperties": False,
        "properties": properties,
        "definitions": {"range": RANGE},
        "allOf": [{"if": {"properties": {"command": {"const": name}}, "required": ["command"]}, "then": _of(name)} for name in ANSWERED],
    }


def text() -> str:
    """As it is published in scenarios/scenario.schema.json."""
    return json.dumps(schema(), indent=1) + "\n"


def _of(name: str) -> dict[str, Any]:
    known = options_by_name(parser_of(name))
    options = {each: {**_value(option), "description": _help(option)} for each, option in known.items()}
    sweep = {each: _axis(_value(option)) for each, option in known.items()}
    part = {"type": "object", "additionalProperties": False}
    return {"properties": {"options": {**part, "properties": options}, "sweep": {**part, "properties": sweep}}}


def _axis(value: dict[str, Any]) -> dict[str, Any]:
    """A list of values; of numbers also a range."""
    listed = {"type": "array", "minItems": 1, "items": value}
    kinds = [value.get("type", []), *(each.get("type", []) for each in value.get("anyOf", []))]
    numbers = any(word in kind for kind in kinds for word in ("integer", "number"))
    return {"anyOf": [listed, {"$ref": "#/definitions/range"}]} if numbers else listed


def _value(option: click.Option) -> dict[str, Any]:
    if option.is_flag:
        return {"type": "boolean"}
    kind = option.type
    if isinstance(kind, click.Choice) and not option.multiple:
        return {"enum": [str(each) for each in kind.choices]}
    types = TYPES.get(kind.name, ["string", "number"])
    one: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    if isinstance(kind, click.IntRange | click.FloatRange):
        one |= {word: end for word, end in (("minimum", kind.min), ("maximum", kind.max)) if end is not None}
    if types == ["string", "number"] or option.multiple:
        return {"anyOf": [one, {"type": "array", "minItems": 1, "items": one}]}
    return one


def _help(option: click.Option) -> str:
    return " ".join((option.help or "").split())
