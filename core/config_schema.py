"""The JSON Schema of a configuration, for editors: the sections, and the options of every installed plugin."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from interlock.core.errors import ConfigError
from interlock.core.registry import Entry, installed

_BY_PATH = {"type": "string", "pattern": ":", "description": "package.module:Class or path/file.py:Class"}


def json_schema(config: type[BaseModel]) -> dict[str, Any]:
    """The schema of a configuration's model, its stacks replaced by what is installed. Imports all of that."""
    loaded = {
        group: [(entry, _load(entry)) for entry in installed(group)] for group in ("policies", "executors", "plugins")
    }
    models = [model for found in loaded.values() for _, model in found if isinstance(model, type)]
    refs, shared = models_json_schema([(model, "validation") for model in dict.fromkeys([config, *models])])
    definitions: dict[str, Any] = dict(shared["$defs"])
    schema = definitions.pop(refs[(config, "validation")]["$ref"].rpartition("/")[2])

    def items(group: str) -> dict[str, Any]:
        known = [_item(entry, model, refs) for entry, model in loaded[group]]
        return {"anyOf": [*(one for pair in known for one in pair), _BY_PATH, _ANY_BY_PATH]}

    for key, group in (("policies", "policies"), ("plugins", "plugins")):
        definitions[key] = items(group)
        one = {"$ref": f"#/$defs/{key}"}
        schema["properties"][key] = {"anyOf": [one, {"type": "array", "items": one}]}
    schema["properties"]["executor"] = items("executors")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": definitions}


_ANY_BY_PATH = {"type": "object", "patternProperties": {":": {}}, "additionalProperties": False, "maxProperties": 1}


def _load(entry: Entry) -> type[BaseModel] | str | None:
    """The options of a plugin: their model, None if it has none, or why it cannot be imported."""
    try:
        return getattr(entry.load(), "Options", None)
    except ConfigError as error:
        return str(error)


def _item(entry: Entry, model: Any, refs: Any) -> list[dict[str, Any]]:
    """The two spellings of a plugin: its bare name, and its name with options."""
    if isinstance(model, str):
        options: dict[str, Any] = {"description": model}
    elif model is None:
        options = {"type": "object", "maxProperties": 0}
    else:
        options = refs[(model, "validation")]
    body = {"type": "object", "properties": {entry.name: {"anyOf": [options, {"type": "null"}]}}}
    return [{"const": entry.name}, {**body, "required": [entry.name], "additionalProperties": False}]
