"""The model file: what may happen to it, and what it may do to us."""

from __future__ import annotations

import copy
import errno
import json
import os
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from gescl import DataError, Finetune, Gescl, GesclError, Learner, Training, UsageError
from gescl.errors import UnavailableError
from gescl.methods import Method, Strategy, TaskContext
from gescl.model_file import alone_with
from gescl.networks.multihead import MultiHeadNet
from gescl.recognition import FEATURES
from gescl.store import backup_of, read_tensors, write_tensors

from .conftest import stripes
from .networks.residual import Residual, residual

QUICK = Training(epochs=1, lr=2e-3, batch_size=32)
SHAPE = (1, 8, 8)
# GESCL_MUTANTS=10000 pytest tests/test_model_file.py -k mutated
MUTANTS = int(os.environ.get("GESCL_MUTANTS", "400"))


@cache
def _learned() -> Learner:
    learner = Learner("small", Gescl(), training=QUICK)
    learner.learn(stripes("a", 3, shape=SHAPE))
    learner.learn(stripes("b", 2, shape=SHAPE, seed=1))
    return learner


@pytest.fixture
def model(tmp_path: Path) -> Path:
    _learned().save(tmp_path / "model.gescl")
    return tmp_path / "model.gescl"


def changed(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None]) -> Path:
    """The file with header or tensors changed, and a checksum that fits."""
    tensors, header = read_tensors(path)
    change(header, tensors)
    write_tensors(path.with_name("changed.gescl"), tensors, header)
    return path.with_name("changed.gescl")


def put(key: str, value: Any) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    def change(header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        where: Any = header
        *path, last = key.split(".")
        for part in path:
            where = where[int(part) if part.isdigit() else part]
        where[last] = value

    return change


def tensor(name: str, value: Tensor | None) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    def change(header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("format", 3), "format 3, this version of gescl reads up to 2.*update gescl"),
        (put("format", "1"), "format must be a whole number"),
        (put("network", "../../home/me/net.py"), "unknown network"),
        (put("network", "os:system"), "your own network os:system"),
        (put("network", "resnet18"), "tensor net.trunk"),
        (put("own_network", True), "your own network small"),
        (put("shape", [1, 100_000, 100_000]), "shape.1 must be ≤ 1024"),
        (put("shape", [1, 16, 16]), r"tensor net.heads.0.weight is 3×64 \(float32\), expected 3×256"),
        (put("shape", [3, 8, 8]), "tensor net"),
        (put("method.name", "__import__"), "unknown method"),
        (put("method.mu_s", -1), "method.mu_s must be ≥ 0"),
        (put("method.evil", 1), "unknown key 'evil'"),
        (put("training.epochs", 0), "training.epochs must be > 0"),
        (put("tasks", []), "tasks must have names"),
        (put("tasks.0.name", "b"), "tasks must have names of their own"),
        (put("tasks.0.name", "../../etc/cron.d/x"), "without a slash"),
        (put("tasks.0.classes", ["x"]), "two classes"),
        (put("tasks.0.classes", ["x"] * 5), "tensor net.heads.0"),
        (put("tasks.0.temperature", 0), "positive temperature"),
        (put("tasks.1.accuracy", [1.0]), "2 accuracies"),
        (put("surprise", 1), "unknown key 'surprise'"),
        (tensor("net.trunk.conv1.weight", torch.zeros(16, 1, 5, 5)), "16×1×5×5.*expected 16×1×3×3"),
        (tensor("net.trunk.conv1.bias", torch.zeros(16, dtype=torch.int8)), r"int8.*expected 16 \(float32\)"),
        (tensor("net.trunk.conv1.bias", None), "net.trunk.conv1.bias is missing"),
        (tensor("net.trunk.conv1.bias", torch.full((16,), float("nan"))), "holds NaN"),
        (tensor("net.std", torch.zeros(1, 1, 1, 1)), "std must be positive"),
        (tensor("method.important", torch.zeros(3, dtype=torch.bool)), "method.important"),
        (tensor("task.gates.0", torch.zeros(3)), "task.gates"),
        (tensor("evil", torch.zeros(3)), "tensor evil is unknown"),
        (tensor("recognition.means.1", None), "recognition.means.1 is missing"),
        (tensor("recognition.means.0", torch.zeros(3, 4)), "recognition.means.0 is 3×4"),
        (tensor("recognition.freedom", torch.tensor(-1.0)), "recognition.freedom"),
        (tensor("recognition.calibration", torch.full((3,), 1e9)), "recognition.calibration"),
        (tensor("recognition.scatter", torch.full((FEATURES * (FEATURES + 1) // 2,), -1.0)), "not a sum of squares"),
    ],
)
def test_a_hostile_or_damaged_model_is_refused_by_what_is_wrong(
    model: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None], words: str
) -> None:
    with pytest.raises(GesclError, match=words):
        Learner.load(changed(model, change))


def test_one_flipped_bit_is_noticed(model: Path) -> None:
    content = bytearray(model.read_bytes())
    content[-5] ^= 1
    model.write_bytes(content)
    with pytest.raises(DataError, match="checksum"):
        Learner.load(model)


# What the interpreter would report if a file made it run something; switched on only while files are loaded.
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "socket.connect")
watching: list[str] = []
armed = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if armed and (event in FORBIDDEN or (event == "open" and isinstance(arguments[1], str) and "w" in arguments[1])):
        watching.append(f"{event} {arguments}")


NASTY: list[Any] = [
    None, True, -1, 0, 1, 2**70, -(2**70), 1e308, float("inf"), float("nan"), "", "a", "../../x", "os:system", "\x00",
    "__class__", [], {}, [[]], [None], {"name": "gescl"}, "x" * 5000, [1] * 300, "9" * 5000,
]  # fmt: skip


def mutant(draw: random.Random, whole: bytes, header: str, tensors: dict[str, Tensor], path: Path) -> None:
    """Write one damaged file: bytes changed at random, or header or tensors changed and the checksum made to fit."""
    if draw.random() < 0.4:
        content = bytearray(whole)
        for _ in range(draw.choice([1, 1, 3, 30])):
            start = draw.randrange(len(content) if draw.random() < 0.5 else min(4000, len(content)))
            length = draw.choice([1, 1, 8, 200])
            content[start : start + length] = draw.choice([b"", draw.randbytes(length), b"\0" * length, b"{" * length])
        path.write_bytes(content if draw.random() < 0.8 else content[: draw.randrange(len(content))])
        return
    changed_header, changed_tensors = json.loads(header), dict(tensors)
    for _ in range(draw.choice([1, 1, 2, 4])):
        if draw.random() < 0.75:
            vandalise(draw, changed_header)
        else:
            name = draw.choice(sorted(changed_tensors))
            old = changed_tensors.pop(name)
            shape = draw.choice([list(old.shape), [*old.shape, 1], [0], [], [2, 3], list(old.shape)[::-1]])
            kind = draw.choice([old.dtype, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
            if draw.random() < 0.8:
                changed_tensors[draw.choice([name, name, name + "x", "x"])] = torch.randn(shape).to(kind)
    write_tensors(path, changed_tensors, changed_header)


def vandalise(draw: random.Random, table: Any) -> None:
    """Change one place of a header, at any depth."""
    while True:
        keys = list(table) if isinstance(table, dict) else list(range(len(table)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(table[key], dict | list) and table[key] and draw.random() < 0.75:
            table = table[key]
            continue
        if draw.random() < 0.25:
            del table[key]
        else:
            table[key] = copy.deepcopy(draw.choice(NASTY))  # it may be changed in turn
        return


def test_mutated_files_give_the_clear_error_or_a_working_model_and_run_nothing(model: Path) -> None:
    global armed
    whole = model.read_bytes()
    with safe_open(model, framework="pt") as file:
        header = file.metadata()["gescl"]
    tensors, _ = read_tensors(model)
    draw, path, messages = random.Random(0), model.with_name("mutant.gescl"), list[str]()
    torch.manual_seed(0)
    sys.addaudithook(_watch)
    images = np.zeros((2, *SHAPE), np.uint8)
    for _ in range(MUTANTS):
        mutant(draw, whole, header, tensors, path)
        try:
            armed = True
            learner = Learner.load(path)
        except GesclError as error:
            messages.append(str(error))
            continue
        finally:
            armed = False
        # The change was of something harmless: a class's name, a seed, a number of seconds.
        for name, record in zip(learner.tasks, learner.records, strict=True):
            assert learner.predict(images, name).probabilities.shape == (2, len(record.classes))
    assert not watching
    assert all("mutant.gescl" in message for message in messages)
    assert len(messages) > 0.5 * MUTANTS


@pytest.mark.parametrize(("network", "device"), [("small", "cuda:99"), ("small", "nowhere"), ("timm:resnet18", "cpu")])
def test_what_this_machine_lacks_is_not_called_damage(
    model: Path, network: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    path = changed(model, put("network", network))
    with pytest.raises(UnavailableError) as caught:
        Learner.load(path, device=device)
    assert "damaged" not in str(caught.value)


def test_loading_leaves_the_process_generator_alone(model: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    Learner.load(model)
    assert torch.equal(torch.rand(4), expected)


# Networks of one's own ----------------------------------------------------------------------------------------------


def test_a_model_of_ones_own_class_needs_that_class_and_its_structure(tmp_path: Path) -> None:
    learner = Learner(residual(), Finetune(), training=QUICK)
    learner.learn(stripes("a"))
    learner.save(tmp_path / "own.gescl")
    with pytest.raises(
        UsageError, match=r"your own network .*:Residual: load it with network=.*:Residual, or a trunk of it"
    ):
        Learner.load(tmp_path / "own.gescl")
    loaded = Learner.load(tmp_path / "own.gescl", network=Residual())
    images = stripes("a").train.images
    assert torch.equal(loaded.predict(images, "a").probabilities, learner.predict(images, "a").probabilities)
    with pytest.raises(UsageError, match=r"a model of the network .*:Residual, not of small"):
        Learner.load(tmp_path / "own.gescl", network="small")
    with pytest.raises(UsageError, match=r"does not fit the network given, or is damaged: tensor net\.trunk"):
        Learner.load(tmp_path / "own.gescl", network=nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()))


def test_a_network_given_by_name_must_be_the_models(tmp_path: Path) -> None:
    learner = Learner("paper3", Finetune(), training=QUICK)
    learner.learn(stripes("a"))
    learner.save(tmp_path / "model.gescl")
    with pytest.raises(UsageError, match=r"model\.gescl is a model of the network paper3, not of ags6"):
        Learner.load(tmp_path / "model.gescl", network="ags6")
    loaded = Learner.load(tmp_path / "model.gescl", network="paper3")
    assert loaded.network == "paper3"
    images = stripes("a").train.images
    assert torch.equal(loaded.predict(images, "a").probabilities, learner.predict(images, "a").probabilities)


# Writing ------------------------------------------------------------------------------------------------------------


def test_saving_again_keeps_the_generation_before(model: Path) -> None:
    first = model.read_bytes()
    learner = Learner.load(model)
    learner.learn(stripes("c", 2, shape=SHAPE, seed=2))
    learner.save(model)
    assert backup_of(model).read_bytes() == first
    assert Learner.load(model).tasks == ["a", "b", "c"]
    assert Learner.load(backup_of(model)).tasks == ["a", "b"]
    learner.save(model)
    assert Learner.load(backup_of(model)).tasks == ["a", "b", "c"]
    assert sorted(p.name for p in model.parent.iterdir()) == ["model.gescl", "model.gescl.bak"]


def test_a_file_has_the_rights_that_it_had_or_that_the_user_gives_to_new_ones(tmp_path: Path) -> None:
    learner, path, before = _learned(), tmp_path / "model.gescl", os.umask(0o027)
    try:
        learner.save(path)
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o600)
        learner.save(path)
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_a_failure_at_any_moment_of_saving_leaves_the_old_model(
    model: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before, learner = model.read_bytes(), _learned()

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    place, name = {"write": (Path, "open"), "fsync": (os, "fsync"), "replace": (Path, "replace")}[moment]
    monkeypatch.setattr(place, name, full)
    with pytest.raises(DataError, match=r"cannot write .*No space left"):
        learner.save(model)
    monkeypatch.undo()
    assert model.read_bytes() == before


def test_of_two_that_learn_into_one_model_the_second_is_refused(model: Path) -> None:
    (model.parent / f".{model.name}.0a1b2c3d").write_text("left behind by a process that was killed")
    with alone_with(model):
        assert not list(model.parent.glob(f".{model.name}.*"))
        with pytest.raises(DataError, match=r"another process is learning into .*model\.gescl"), alone_with(model):
            pass
    with alone_with(model):
        pass


def test_an_error_of_what_is_done_under_the_lock_is_not_called_one_of_the_lock(model: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space left") as caught, alone_with(model):
        raise error
    assert caught.value is error
    with alone_with(model):  # it was released
        pass


def test_a_model_that_cannot_be_locked_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"cannot lock .*model\.gescl: "), alone_with(tmp_path / "file" / "model.gescl"):
        pass


class Mine(Finetune):
    name: ClassVar[str] = "mine"


def test_a_model_of_ones_own_method_is_loaded_by_its_class(tmp_path: Path) -> None:
    path = tmp_path / "mine.gescl"
    learner = Learner("small", Mine(), training=Training(epochs=1))
    learner.learn(stripes("a", 2, shape=SHAPE))
    learner.save(path)
    with pytest.raises(UsageError, match=r"your own method .*:Mine: load it with method=, its class") as refused:
        Learner.load(path)
    assert "damaged" not in str(refused.value)
    with pytest.raises(UsageError, match=r"a model of the method '.*:Mine', not of 'finetune'"):
        Learner.load(path, method=Finetune)
    assert isinstance(Learner.load(path, method=Mine).method, Mine)


class Anchors(Method):
    """Remembers something more after every task."""

    name: ClassVar[str] = "anchors"

    def strategy(self, net: MultiHeadNet) -> AnchorsStrategy:
        return AnchorsStrategy(self, net)


class AnchorsStrategy(Strategy[Anchors]):
    def __init__(self, method: Anchors, net: MultiHeadNet) -> None:
        super().__init__(method, net)
        self.anchors: dict[str, Tensor] = {}

    def end_task(self, context: TaskContext) -> None:
        self.anchors[str(context.index)] = torch.full((3,), float(context.index))

    def state(self) -> dict[str, Tensor]:
        return dict(self.anchors)

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.anchors = dict(state)


def test_a_state_that_grows_is_the_methods_own_affair(tmp_path: Path) -> None:
    learner = Learner("small", Anchors(), training=Training(epochs=1))
    for k in range(2):
        learner.learn(stripes(str(k), 2, shape=SHAPE, seed=k))
    learner.save(tmp_path / "model.gescl")
    state = Learner.load(tmp_path / "model.gescl", method=Anchors).strategy.state()
    assert {name: tensor.tolist() for name, tensor in state.items()} == {"0": [0.0] * 3, "1": [1.0] * 3}


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(8)]
    for path in paths:
        write_tensors(path, {"ä": torch.ones(2), "b": torch.zeros(3)}, {"text": "ü\n"})
    assert len({path.read_bytes() for path in paths}) == 1
    assert read_tensors(paths[0])[1] == {"text": "ü\n"}
