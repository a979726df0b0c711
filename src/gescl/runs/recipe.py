"""Recipe: stream + network + method + training, typed and validated. TOML in, TOML out.

A recipe file names a stream, a network, how to train, and settings per method:

    name = "scripts"
    network = "small"
    [stream]
    name = "scripts"
    [training]
    epochs = 15
    [method]
    name = "gescl"            # unless the command line says otherwise
    [methods.gescl]           # settings chosen for this stream
    mu_s = 20
    [variants.without-mu_s]   # named changes, for an ablation
    "method.mu_s" = 0

Reading one gives a `Recipe` for a single method, with every default filled in. Written out again, it is sufficient to
repeat the run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import tomlkit
from pydantic import BaseModel, ConfigDict

from ..errors import DataError, UsageError, unknown
from ..methods import Method, method_class, method_name
from ..networks.cnn import check_network
from ..streams import find_stream
from ..training import PRESETS, Training
from ..validation import validated

Found = TypeVar("Found")
SECTIONS = ("name", "network", "weights", "stream", "training", "method", "methods", "variants")
#: Keys that are texts, not tables.
TEXTS = ("name", "network", "weights")


class Recipe(BaseModel):
    """Everything that determines a run, apart from its seed."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    name: str
    network: str
    #: A safetensors file that the network starts from; from the current folder, if it is relative.
    weights: str | None = None
    stream: str
    stream_options: BaseModel
    training: Training
    method: Method
    variant: str | None = None

    @property
    def label(self) -> str:
        """The method's name in folders and figures, with the variant if there is one."""
        return self.method.name + (f"+{self.variant}" if self.variant else "")

    def tables(self) -> dict[str, Any]:
        """The recipe as the tables of a file, every value written out."""
        tables: dict[str, Any] = {"name": self.name, "network": self.network}
        if self.weights is not None:
            tables["weights"] = self.weights
        tables["stream"] = {"name": self.stream, **self.stream_options.model_dump(exclude_none=True)}
        tables["training"] = self.training.model_dump()
        tables["method"] = {"name": method_name(self.method), **self.method.model_dump()}
        if self.variant:
            tables["variants"] = {self.variant: {}}
        return tables

    def to_toml(self) -> str:
        return tomlkit.dumps(self.tables())


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with gescl, by name."""
    package = Path(__file__).parents[1]
    for folder in (package / "recipes", package.parents[1] / "recipes"):  # installed, or a source checkout
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return {}


def setting_label(setting: Mapping[str, Any]) -> str:
    """What a setting is called in the names of folders; those of the method by their bare names."""
    return ",".join(f"{key.removeprefix('method.')}={value}" for key, value in setting.items()).replace("/", "-")


def load_recipe(
    source: str | Path,
    *,
    method: str | None = None,
    variant: str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Recipe:
    """Read a recipe: a file, or the name of a shipped one.

    load_recipe("scripts", method="gescl", settings={"method.mu_s": 5, "training.epochs": 3})
    """
    settings = dict(settings)
    method = settings.pop("method.name", method)
    path, tables = _read(str(source))
    where = f"recipe {path.name}"
    for key in tables:
        if key not in SECTIONS:
            raise UsageError(f"{where}: {unknown('key', key, SECTIONS)}")
    tables = _choose_method(where, tables, method)
    if variant is not None:
        variants = _table(where, tables, "variants")
        if variant not in variants:
            raise UsageError(f"{where}: {unknown('variant', variant, variants)}")
        for key, value in _table(f"{where}: variants", variants, variant).items():
            _put(tables, key, value, f"{where}: variant {variant!r}")
    for key, value in settings.items():
        _put(tables, key, value, f"setting {key}")
    return _validated(where, tables, variant)


def _read(source: str) -> tuple[Path, dict[str, Any]]:
    shipped = shipped_recipes()
    path = Path(source)
    if not path.suffix and source in shipped:
        path = shipped[source]
    elif not path.is_file():
        if path.suffix == ".toml":
            raise UsageError(f"recipe file {source} does not exist")
        raise UsageError(unknown("recipe", source, shipped) + ", or give a .toml file")
    return path, read_toml(path)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist") from error
    except (ValueError, RecursionError) as error:  # TOML's and Unicode's errors are ValueErrors, too
        raise UsageError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _choose_method(where: str, tables: Mapping[str, Any], method: str | None) -> dict[str, Any]:
    """The tables with one method's settings under `method`."""
    given = _table(where, tables, "method")
    name = str(method or given.get("name", ""))
    if not name:
        raise UsageError(f"{where}: method.name is missing; set it there, or pass method=NAME")
    method_class(name)
    for other in _table(where, tables, "methods"):
        method_class(other)
    settings = _table(where, tables.get("methods", {}), name)
    own = given if given.get("name", name) == name else {}
    return {**tables, "method": {**settings, **own, "name": name}}


def _table(where: str, tables: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = tables.get(key, {})
    if not isinstance(table, dict):
        raise UsageError(f"{where}: {key} must be a table, got {table!r}")
    return dict(table)


def _put(tables: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set a value by its full name, or all of `training` by the name of a preset."""
    first, _, rest = key.partition(".")
    if first not in (*TEXTS, "stream", "training", "method"):
        raise UsageError(f"{where}: {unknown('key', first, (*TEXTS[1:], 'stream', 'training', 'method'))}")
    if key == "training" and isinstance(value, str):
        if value not in PRESETS:
            raise UsageError(f"{where}: {unknown('training', value, PRESETS)}")
        tables[key] = PRESETS[value].model_dump()
    elif not rest:
        if first not in TEXTS:
            raise UsageError(f"{where}: {first} is a table; set one of its keys, {first}.KEY")
        tables[first] = value
    elif first in TEXTS:
        raise UsageError(f"{where}: {first} is not a table")
    else:
        tables[first] = {**_table(where, tables, first), rest: value}


def _named(where: str, find: Callable[[str], Found], name: str) -> Found:
    try:
        return find(name)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _validated(where: str, tables: dict[str, Any], variant: str | None) -> Recipe:
    for key in TEXTS:
        if not isinstance(tables.get(key), str) and (key in tables or key != "weights"):
            problem = "is missing" if key not in tables else f"must be a string, got {tables[key]!r}"
            raise UsageError(f"{where}: {key} {problem}")
    if tables["name"] in ("", ".", "..") or any(slash in tables["name"] for slash in "/\\"):
        raise UsageError(
            f"{where}: name is the folder of its runs, and must not contain a slash; got {tables['name']!r}"
        )
    _named(where, check_network, tables["network"])
    stream = _table(where, tables, "stream")
    stream_name = stream.pop("name", None)
    if not isinstance(stream_name, str):
        raise UsageError(f"{where}: stream.name is missing")
    spec = _named(where, find_stream, stream_name)
    method = _table(where, tables, "method")
    method_type = method_class(str(method.pop("name")))
    return Recipe(
        name=tables["name"],
        network=tables["network"],
        weights=tables.get("weights"),
        stream=stream_name,
        stream_options=validated(spec.options, stream, f"{where}: stream."),
        training=validated(Training, _table(where, tables, "training"), f"{where}: training."),
        method=validated(method_type, method, f"{where}: method."),
        variant=variant,
    )
