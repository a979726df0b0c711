"""Networks of the real timm: the promises hold, and runs, sweeps and models start from a weights file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gescl import DataError, Learner, Training
from gescl.methods.gescl import GesclStrategy
from gescl.networks.cnn import build_trunk
from gescl.networks.external import load_weights

from ..conftest import stripes
from ..methods.learners import Roomy, logits, overwrite, strategy_of
from ..models.test_folders import Gescl, gescl, written

timm = pytest.importorskip("timm")
__all__ = ["gescl"]  # the fixture


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_byobnet"])
def test_the_promises_hold_also_with_squeeze_excite(name: str, tmp_path: Path) -> None:
    learner = Learner(f"timm:{name}", Roomy(), training=Training(epochs=1, lr=1e-3))
    shown = [stripes(str(k), shape=(3, 32, 32), seed=k) for k in range(2)]
    learner.learn(shown[0])
    learner.learn(shown[1])
    learner.save(tmp_path / "a.gescl")
    loaded = Learner.load(tmp_path / "a.gescl", method=Roomy)
    before = [logits(learner, task, index) for index, task in enumerate(shown)]
    assert all(torch.equal(logits(loaded, task, index), before[index]) for index, task in enumerate(shown))
    free = ~strategy_of(loaded, GesclStrategy).important
    assert 0 < int(free.sum()) < len(free)
    overwrite(loaded, free)
    assert all(torch.equal(logits(loaded, task, index), before[index]) for index, task in enumerate(shown))


def pretrained(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict) -> tuple[Any, Path]:
    """A network of timm's with its classifier, and its weights in a file; statistics are not those of a new one."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = timm.create_model("test_resnet", num_classes=5)
        model.train()(torch.randn(8, 3, 32, 32))
    file = folder / "weights.safetensors"
    save_file(change(model.state_dict()), file)
    return model.eval(), file


def prefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    kept = {name: tensor for name, tensor in state.items() if "num_batches_tracked" not in name}
    return {f"module.backbone.{name}": tensor for name, tensor in kept.items()} | {"epoch": torch.tensor(3)}


@pytest.mark.parametrize("change", [dict, prefixed], ids=["as timm saves it", "within another module"])
def test_weights_of_the_whole_network_are_mapped_to_the_trunk(change: Any, tmp_path: Path) -> None:
    model, file = pretrained(tmp_path, change)
    trunk = build_trunk("timm:test_resnet", (3, 32, 32))
    load_weights(trunk, file)
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        features = model.forward_head(model.forward_features(images), pre_logits=True)
        assert torch.equal(trunk.eval()(images), features) and features.any()


def test_for_grey_images_the_first_layer_is_what_timm_makes_of_it(tmp_path: Path) -> None:
    model, file = pretrained(tmp_path)
    trunk = build_trunk("timm:test_resnet", (1, 32, 32))
    load_weights(trunk, file)
    name = "conv1.0.weight" if "conv1.0.weight" in trunk.state_dict() else "conv1.weight"
    expected = timm.models.adapt_input_conv(1, model.state_dict()[name])
    torch.testing.assert_close(trunk.state_dict()[name], expected)


def test_weights_of_another_network_are_refused_with_what_they_hold(tmp_path: Path) -> None:
    _, file = pretrained(tmp_path)
    with pytest.raises(DataError, match=r"lack '.*': they belong to another network; theirs begin with "):
        load_weights(build_trunk("timm:test_efficientnet", (3, 32, 32)), file)


RECIPE = """
name = "pretrained"
network = "timm:test_resnet"
weights = "weights.safetensors"
[stream]
name = "digits"
tasks = 1
[training]
epochs = 1
lr = 1e-9
[method]
name = "finetune"
"""


def starts_from(file: Path, model: Any) -> bool:
    """Whether a model that hardly moved has the weights of the file."""
    own = Learner.load(file).net.trunk.state_dict()
    theirs = model.state_dict()
    names = [name for name in own if name.endswith("weight") and own[name].shape == theirs[name].shape]
    return len(names) > 5 and all(torch.allclose(own[name], theirs[name], atol=1e-5) for name in names)


def test_run_sweep_and_learn_start_from_a_weights_file(gescl: Gescl, tmp_path: Path) -> None:
    model, _ = pretrained(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE, encoding="utf-8")
    code, _, err = gescl("run", "mine.toml", "--out", "runs", "--threads", "1")
    assert code == 0, err
    folder = tmp_path / "runs" / "pretrained" / "finetune" / "seed-0"
    assert starts_from(folder / "model.gescl", model)
    assert 'weights = "weights.safetensors"' in (folder / "recipe.toml").read_text(encoding="utf-8")
    code, _, err = gescl("sweep", "mine.toml", "--method", "finetune", "--out", "swept")
    assert code == 0, err
    (swept,) = (tmp_path / "swept").rglob("model.gescl")
    assert starts_from(swept, model)
    assert json.loads(swept.with_name("result.json").read_text(encoding="utf-8"))["accuracy"]
    written(stripes("bolts", 2, shape=(3, 32, 32)), tmp_path / "bolts")
    code, _, err = gescl(
        *("learn", "own.gescl", "bolts", "--network", "timm:test_resnet", "--weights", "weights.safetensors"),
        *("--image-size", "32", "--set", "training.lr=1e-9", "--epochs", "1", "--method", "finetune"),
    )  # fmt: skip
    assert code == 0, err
    assert starts_from(tmp_path / "own.gescl", model)
    code, _, err = gescl("run", "mine.toml", "--out", "other", "--set", "weights=none.safetensors", "--threads", "1")
    assert code == 1 and "weights none.safetensors do not exist" in err
