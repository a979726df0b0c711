"""Every kind of file that gescl reads: how a bad one is made, and how it is read."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import struct
import tarfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.io import savemat

from gescl import GesclError, Learner, Training, load_recipe
from gescl.checkpoints import Checkpoints, SavedState
from gescl.cli.options import parse_settings
from gescl.methods import Gescl
from gescl.runs.experiment import _lines_of
from gescl.runs.recipe import shipped_recipes
from gescl.runs.result import read_result
from gescl.store import read_tensors, write_tensors
from gescl.streams import cifar, mnist, svhn
from gescl.streams.files.cache import cached
from gescl.streams.files.download import _unpack
from gescl.streams.files.images import decode_into
from gescl.streams.files.memory_map import New, mapped
from gescl.streams.files.pickles import unpickled
from gescl.sweeps.grid import read_grid
from gescl.training import learn_task

from ..conftest import stripes
from ..streams.tiny import by_python_2, by_python_3, random_pixels, with_bytes
from ..test_model_file import mutant, vandalise
from .mutations import changed, reworded


@dataclass(frozen=True)
class Kind:
    """A kind of file: how a bad one is written, and how it is read; what comes back must pass `check`."""

    write: Callable[[random.Random, Path], Path]
    read: Callable[[Path], object]
    check: Callable[[Any], bool] = lambda found: True


def _bytes(name: str, seeds: list[bytes]) -> Callable[[random.Random, Path], Path]:
    def write(draw: random.Random, folder: Path) -> Path:
        (folder / name).write_bytes(changed(draw.choice(seeds), draw))
        return folder / name

    return write


def _text(name: str, seeds: list[str]) -> Callable[[random.Random, Path], Path]:
    def write(draw: random.Random, folder: Path) -> Path:
        (folder / name).write_bytes(reworded(draw.choice(seeds), draw))
        return folder / name

    return write


def kinds(scratch: Path) -> dict[str, Kind]:
    """Every kind of file that gescl reads."""
    recipes = [path.read_text() for path in shipped_recipes().values()]
    grid = "[[gescl]]\nmu_s = [5, 20]\nmu_p = {low = 0.1, high = 1.0, log = true}\n[ewc]\nlam = [1, 2]\n"
    settings = ["training.lr=0.1", "method.mu_s=5", "stream.tasks=3", "network=small"]
    events = '{"event": "epoch", "task": "a"}\n' * 3
    task = stripes("a", 2, shape=(3, 8, 8))
    training = Training(epochs=2, batch_size=64, checkpoint_seconds=0)
    learner = Learner("small", Gescl(), training=training, seed=1)
    learner.learn(task, checkpoint=scratch / "checkpoint")
    shutil.copy(scratch / "checkpoint", scratch / "state")  # saving removes it
    learner.save(scratch / "model")
    blank = Learner("small", Gescl(), training=training, seed=1)
    return {
        "recipe": Kind(_text("r.toml", recipes), lambda path: load_recipe(path).to_toml()),
        "grid": Kind(_text("g.toml", [grid]), lambda path: read_grid(path, ["gescl", "ewc"], 4, 0)),
        "setting": Kind(_text("s", settings), _settings),
        "model": Kind(_tensors(scratch / "model"), Learner.load),
        "checkpoint": Kind(_tensors(scratch / "state"), partial(_continue, blank, task, training)),
        "cache of tensors": _cache_of_tensors(scratch),
        "cache of images": _cache_of_images(scratch),
        "result": _result(scratch),
        "log": Kind(_text("events.jsonl", [events]), lambda path: [*_lines_of(["a"], path)]),
        "pickle": Kind(_bytes("p", _pickles()), _read_pickle),
        "mat": Kind(_bytes("x.mat", _mats(scratch)), svhn._read),
        "idx": Kind(_idx, lambda path: mnist._read(path, path.with_name("labels"))),
        "image": Kind(_bytes("picture", _images()), _decode),
        "archive": Kind(_archive, _unpacked, lambda outside: outside == []),
    }


def _settings(path: Path) -> object:
    return load_recipe("digits", settings=parse_settings([path.read_text(errors="surrogateescape")]))


def _tensors(whole: Path) -> Callable[[random.Random, Path], Path]:
    content = whole.read_bytes()
    tensors, header = read_tensors(whole)

    def write(draw: random.Random, folder: Path) -> Path:
        mutant(draw, content, json.dumps(header), tensors, folder / "tensors")
        return folder / "tensors"

    return write


def _continue(learner: Learner, task: Any, training: Training, path: Path) -> None:
    """Continue from a checkpoint, after which no epoch is left unless it says so."""
    state = Checkpoints(path, read_tensors(path)[1].get("fingerprint"), 60).read()
    if isinstance(state, SavedState):
        learner._start(task)
        learner.net.add_head(2)
        for number, _ in enumerate(learn_task(learner.net, learner.strategy, task, training, seed=1, resume=state)):
            if number > 3:
                break


def _cache_of_tensors(scratch: Path) -> Kind:
    content = torch.arange(6.0)
    write_tensors(scratch / "cache.safetensors", {"a": content}, {})

    def read(path: Path) -> bool:
        os.environ["GESCL_CACHE"] = str(path.parent)
        with suppress(StopIteration):
            name = next(path.parent.glob("k-*"))
            path.replace(name)
        return torch.equal(cached("k", "key", lambda: {"a": content})["a"], content)

    write = _bytes("cache", [(scratch / "cache.safetensors").read_bytes()])
    return Kind(write, read, bool)


def _cache_of_images(scratch: Path) -> Kind:
    def make(new: New) -> None:
        new("images", (5, 3, 4), np.uint8)[...] = np.arange(60).reshape(5, 3, 4)

    def get(folder: Path) -> bool:
        os.environ["GESCL_CACHE"] = str(folder)
        return bool((mapped("set", 1, 1, ["images"], make)["images"].ravel() == np.arange(60)).all())

    def write(draw: random.Random, folder: Path) -> Path:
        get(folder)
        files = [path for path in (folder / "images").rglob("*") if path.is_file() and path.stat().st_size]
        file = draw.choice(sorted(files))
        file.write_bytes(changed(file.read_bytes(), draw))
        return folder

    return Kind(write, get, bool)


def _result(scratch: Path) -> Kind:
    whole = {
        **{"format": 1, "recipe": "r", "method": "m", "seed": 0, "tasks": ["a", "b"], "accuracy": [[0.5], [0.5, 1.0]]},
        **{
            "epochs": [1, 2],
            "validation": {"accuracy": [[0.5], [0.5, 1.0]], "images": [3, 4]},
            "hardware": {"cpu": "x"},
        },
    }

    def write(draw: random.Random, folder: Path) -> Path:
        content = json.loads(json.dumps(whole))
        for _ in range(draw.choice([1, 2, 5])):
            vandalise(draw, content)
        text = json.dumps(content)
        (folder / "result.json").write_bytes(text.encode() if draw.random() < 0.7 else reworded(text, draw))
        return folder / "result.json"

    return Kind(write, read_result)


class _Command:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def _pickles() -> list[bytes]:
    content = {"data": random_pixels(2, 3072), "labels": [3, 0], "label_names": ["a"], "n": None}
    hostile = {"data": _Command(), "labels": [1]}
    return [
        by_python_2()(content),
        with_bytes(2)(content),
        by_python_3(content),
        by_python_3(hostile),
        with_bytes(0)(content),
    ]


def _read_pickle(path: Path) -> None:
    unpickled(path)
    cifar._part(path, "labels")


def _mats(scratch: Path) -> list[bytes]:
    pixels, labels = random_pixels(32, 32, 3, 2), np.array([[1], [10]], np.uint8)
    found = []
    for compressed in (False, True):
        savemat(scratch / "x.mat", {"X": pixels, "y": labels}, do_compression=compressed)
        found.append((scratch / "x.mat").read_bytes())
    return found


def _idx(draw: random.Random, folder: Path) -> Path:
    images = struct.pack(">4I", 0x803, 2, 28, 28) + bytes(2 * 28 * 28)
    labels = struct.pack(">2I", 0x801, 2) + bytes([1, 2])
    for name, content in (("images", images), ("labels", labels)):
        inside = changed(content, draw) if draw.random() < 0.6 else content
        packed = gzip.compress(inside, mtime=0)
        (folder / name).write_bytes(changed(packed, draw) if draw.random() < 0.3 else packed)
    return folder / "images"


def _images() -> list[bytes]:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mode in ("RGB", "L", "RGBA", "P", "I;16", "F", "1"):
            picture = Image.fromarray(random_pixels(9, 7)).convert("L" if mode.startswith("I") else mode)
            for kind in (
                "PNG",
                "JPEG",
                "GIF",
                "BMP",
                "TIFF",
                "WEBP",
                "PPM",
                "ICO",
                "TGA",
                "PCX",
                "DDS",
                "ICNS",
                "JPEG2000",
            ):
                file = io.BytesIO()
                with suppress(OSError, KeyError, ValueError):
                    picture.save(file, kind)
                    found.append(file.getvalue())
    return found


def _decode(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decode_into(np.empty((1, 3, 16, 16), np.uint8), [path], lambda count: None, workers=1)


def _archive(draw: random.Random, folder: Path) -> Path:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz" if draw.random() < 0.3 else "w") as tar:
        for name in ("set/a", draw.choice(["../evil", "/tmp/gescl-evil", "set/../../evil", "set/b", "set"]), "set/b"):
            entry = tarfile.TarInfo(name)
            entry.type = draw.choice(
                [tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
            )
            entry.linkname = draw.choice(["../evil", "/etc/passwd", "set/a"])
            entry.size = 4 if entry.type == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(b"abcd"))
    (folder / "x.tar").write_bytes(changed(file.getvalue(), draw) if draw.random() < 0.7 else file.getvalue())
    return folder / "x.tar"


def _unpacked(path: Path) -> list[str]:
    """What was written outside the data folder."""
    data = path.parent / "deep" / "data"
    data.mkdir(parents=True, exist_ok=True)
    with suppress(GesclError):
        _unpack(path, data, ["set/a", "set/b"])
    outside = [str(p) for p in path.parent.rglob("*") if data not in p.parents and p not in (data, data.parent, path)]
    return outside + [str(p) for p in (Path("/tmp/gescl-evil"),) if p.exists()]
