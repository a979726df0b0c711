"""Settings and tensors from outside: validated, or refused with a message for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from torch import Tensor

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
    "finite_number": "must be finite",
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


def flat(table: Any, prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by their full names: {"training.epochs": 5, …}."""
    if not isinstance(table, dict):
        return {prefix: table}
    return {
        name: value
        for key, inner in table.items()
        for name, value in flat(inner, f"{prefix}.{key}" if prefix else key).items()
    }


def check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], prefix: str) -> None:
    """Refuse tensors that do not have the expected names, shapes and types, naming the first that differs."""
    for name in sorted(found.keys() ^ expected.keys()):
        raise UsageError(f"tensor {prefix}{name} is {'missing' if name in expected else 'not expected'}")
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            raise UsageError(f"tensor {prefix}{name} is {_kind(found[name])}, expected {_kind(tensor)}")


def _kind(tensor: Tensor) -> str:
    return f"{'×'.join(map(str, tensor.shape)) or 'one number'} ({str(tensor.dtype).removeprefix('torch.')})"


def _complaint(model: type[BaseModel], error: Any, prefix: str, word: str) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{prefix.rstrip('.: ')}: {unknown(word, key, model.model_fields)}"
    if error["type"] == "missing":
        return f"{prefix}{key} is missing"
    rule = RULES.get(error["type"], "is wrong: " + error["msg"].removeprefix("Value error, "))
    return f"{prefix}{key} {rule.format(**error.get('ctx', {}))}, got {json.dumps(error['input'], default=str)}"
