"""Networks, methods and streams that are not gescl's: named in recipes and models, plugged in by packages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from gescl import Learner, UsageError, load_recipe, load_stream
from gescl.methods import method_class, method_name
from gescl.networks.cnn import build_trunk
from gescl.runs.experiment import Experiment
from gescl.store import write_tensors

OWN = """
from __future__ import annotations
from typing import ClassVar
import torch
from torch import nn
from gescl import Task
from gescl.methods import Ewc
from gescl.streams import StreamOptions, StreamSpec, TaskStream
from gescl.streams.task import TaskSource

def tiny():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

def wide():
    return nn.Sequential(nn.Conv2d(1, 9, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

def of_channels(channels):
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

class Firm(Ewc):
    name: ClassVar[str] = "firm"
    lam: float = 7.0

def _task(name, seed):
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (40, 1, 16, 16), generator=draw, dtype=torch.uint8)
    labels = torch.arange(40) % 2
    return Task.from_arrays(name, images, labels, images, labels, classes=["a", "b"])

def _load(options, seed, data):
    return TaskStream("noise", [TaskSource(n, lambda n=n: _task(n, ord(n))) for n in "xy"]).first(options.tasks)

NOISE = StreamSpec(StreamOptions, _load, "noise")
"""
RECIPE = """
name = "mine"
network = "own_code:tiny"
[stream]
name = "own_code:NOISE"
[training]
epochs = 1
[method]
name = "own_code:Firm"
lam = 9.0
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_code.py").write_text(OWN)
    (tmp_path / "mine.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    return tmp_path


def gescl(*arguments: str) -> None:
    command = [sys.executable, "-m", "gescl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_recipe_names_a_network_a_method_and_a_stream_of_ones_own(folder: Path) -> None:
    recipe = load_recipe("mine.toml")
    assert recipe.method.name == "firm" and recipe.method.model_dump()["lam"] == 9
    (folder / "again.toml").write_text(recipe.to_toml())
    assert load_recipe("again.toml") == recipe, "what is written out can be read again"
    stopped = Experiment(recipe, 0, folder / "runs")
    next(stopped.tasks())
    result = Experiment(load_recipe("mine.toml"), 0, folder / "runs").run(resume=True)
    assert result.method == "firm" and result.tasks == ["x", "y"]
    whole = Experiment(recipe, 0, folder / "whole").run()
    assert whole.accuracy == result.accuracy


def test_run_and_sweep_take_names_of_ones_own_in_processes_of_their_own(folder: Path) -> None:
    gescl("sweep", "mine.toml", "--method", "own_code:Firm", "--seed", "0", "--seed", "1", "--jobs", "2")
    assert (folder / "sweeps" / "mine" / "firm" / "seed-1" / "result.json").is_file()
    quick = ("--set", "training.epochs=1", "--set", "stream.tasks=1")
    gescl("run", "digits", "--set", "network=own_code:of_channels", "--method", "finetune", *quick)


def test_a_model_remembers_the_name_of_its_network() -> None:
    learner = Learner("own_code:tiny", "finetune", training={"epochs": 1})
    learner.learn(load_stream("own_code:NOISE")[0])
    learner.save("mine.gescl")
    with pytest.raises(UsageError, match="your own network own_code:tiny: load it with network=own_code:tiny"):
        Learner.load("mine.gescl")
    loaded = Learner.load("mine.gescl", network="own_code:tiny")
    assert loaded.network == "own_code:tiny"
    for ours, theirs in zip(learner.net.parameters(), loaded.net.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert Learner.load("mine.gescl", network="own_code:of_channels").network == "own_code:of_channels", "it fits"
    with pytest.raises(UsageError, match="does not fit the network given"):
        Learner.load("mine.gescl", network="own_code:wide")
    with pytest.raises(UsageError, match="is a model of the network own_code:tiny, not of small"):
        Learner.load("mine.gescl", network="small")


@pytest.mark.parametrize(
    "change", [{"network": "trap:spring", "own_network": False}, {"method": {"name": "trap:Spring"}}]
)
def test_code_that_a_model_file_names_is_not_run(folder: Path, change: dict[str, object]) -> None:
    learner = Learner("small", "finetune", training={"epochs": 1})
    learner.learn(load_stream("own_code:NOISE")[0])
    learner.save("model.gescl")
    (folder / "trap.py").write_text("open('sprung', 'w').close()\ndef spring(): ...\nSpring = 1\n")
    with safe_open("model.gescl", "pt") as file:
        header = json.loads(file.metadata()["gescl"])
    write_tensors(folder / "model.gescl", safetensors.torch.load_file("model.gescl"), {**header, **change})
    with pytest.raises(UsageError, match="your own"):
        Learner.load("model.gescl")
    assert not (folder / "sprung").exists()


def test_what_a_package_plugs_in_is_found_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = folder / "plug-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[gescl.methods]\nfirm = own_code:Firm\n[gescl.networks]\ntiny = own_code:tiny\n"
        "[gescl.streams]\nnoise = own_code:NOISE\n"
    )
    monkeypatch.syspath_prepend(folder)
    assert method_name(method_class("firm")) == "firm"
    assert sum(p.numel() for p in build_trunk("tiny", (1, 8, 8)).parameters()) == 40
    assert load_stream("noise").names == ("x", "y")
    learner = Learner("tiny", "firm", training={"epochs": 1})
    learner.learn(load_stream("noise")[0])
    learner.save("mine.gescl")
    assert Learner.load("mine.gescl").method.name == "firm", "what is installed may be loaded by name"
    with pytest.raises(UsageError, match="unknown method 'frim'; did you mean 'firm'"):
        method_class("frim")


@pytest.mark.parametrize(
    ("find", "name", "message"),
    [
        (method_class, "own_code:tiny", "it is no subclass of gescl.Method"),
        (method_class, "own_code.py:Firm", "write own_code:Firm"),
        (method_class, "nowhere:Firm", "ModuleNotFoundError: No module named 'nowhere'"),
        (method_class, "own_code:Frim", "own_code has no 'Frim'"),
        (load_stream, "own_code:tiny", "it is no gescl.streams.StreamSpec"),
        (lambda name: build_trunk(name, (1, 8, 8)), "own_code:__name__", "no function that returns a network"),
        (lambda name: build_trunk(name, (1, 8, 8)), "own_code:Firm", "it returns a Firm, not an nn.Module"),
    ],
)
def test_what_is_not_what_it_should_be_is_refused(find: Callable[[str], object], name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find(name)
