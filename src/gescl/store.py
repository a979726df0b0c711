"""Files that are either whole or not there: atomic writes, safetensors and JSON, nothing pickled."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from .errors import DataError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one move: a crash or a full disk leaves what was there before, and no temporary file."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Any) -> None:
    """Tensors with a JSON header, as one safetensors file."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, safetensors.torch.save(contiguous, {"gescl": json.dumps(header, ensure_ascii=False)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """What `write_tensors` wrote; a missing or damaged file is refused."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["gescl"])
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 (not a dict)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (safetensors.SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a file of gescl's, or is damaged: {error}") from error


def append_line(path: Path, content: Any) -> None:
    """Add one JSON line to a log."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content, allow_nan=False, ensure_ascii=False) + "\n")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
