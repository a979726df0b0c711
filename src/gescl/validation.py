"""Settings from outside as typed models, and what is wrong with them in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import UsageError, unknown

Model = TypeVar("Model", bound=BaseModel)

# What a value must be, by pydantic's name for the mistake.
RULES = {
    "greater_than": "must be > {gt:g}",
    "greater_than_equal": "must be ≥ {ge:g}",
    "less_than": "must be < {lt:g}",
    "less_than_equal": "must be ≤ {le:g}",
    "literal_error": "must be {expected}",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
}


def validated(model: type[Model], table: Mapping[str, Any], prefix: str, *, word: str = "key") -> Model:
    """A model from settings, or an error that names the key behind its prefix, the value and what is allowed.

    validated(Training, {"epochs": -3}, "recipe mine.toml: training.")
    # recipe mine.toml: training.epochs must be > 0, got -3
    """
    try:
        # As JSON, because its strict rules are a file's: no text for a number, but a list for a tuple.
        return model.model_validate_json(json.dumps(table, default=str), strict=True)
    except ValidationError as error:
        raise UsageError("\n".join(_complaint(model, e, prefix, word) for e in error.errors())) from None


def _complaint(model: type[BaseModel], error: Any, prefix: str, word: str) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{prefix.rstrip('.: ')}: {unknown(word, key, model.model_fields)}"
    if error["type"] == "missing":
        return f"{prefix}{key} is missing"
    rule = RULES.get(error["type"], "is wrong: " + error["msg"].removeprefix("Value error, "))
    return f"{prefix}{key} {rule.format(**error.get('ctx', {}))}, got {json.dumps(error['input'], default=str)}"
