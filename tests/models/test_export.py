"""A learned task as a network of its own: smaller, and the same."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from gescl import Gescl, Hat, Learner, Task, Training, UsageError
from gescl.models.export import compact, cost, export_onnx, task_net

from ..conftest import stripes
from ..methods.learners import Roomy, logits
from ..networks.filters.test_graph import Tangle
from ..networks.residual import residual
from ..networks.zoo import SHAPE, drawn

ROOMY = Roomy()
QUICK = Training(epochs=2, lr=3e-3, batch_size=16)


def tasks(shape: tuple[int, int, int] = SHAPE) -> list[Task]:
    return [stripes("a", shape=shape), stripes("b", 3, shape=shape, seed=1)]


def learned(network: nn.Module | str, method: Gescl | Hat = ROOMY, shape: tuple[int, int, int] = SHAPE) -> Learner:
    learner = Learner(network, method, training=QUICK)
    for task in tasks(shape):
        learner.learn(task)
    return learner


def assert_smaller_and_the_same(learner: Learner, shown: list[Task]) -> None:
    small = compact(learner)
    sample = torch.zeros(1, *learner.net.shape, dtype=torch.uint8)
    whole = cost(learner.net, sample, 0)
    shrunk = cost(small, sample, 0)
    assert shrunk.parameters < 0.9 * whole.parameters and shrunk.macs < 0.9 * whole.macs
    for index, task in enumerate(shown):
        assert task.test is not None
        expected = logits(learner, task, index)
        alone = task_net(learner, task.name)
        full = task_net(learner, task.name, compact=False)
        assert cost(alone, sample).parameters <= shrunk.parameters
        with torch.no_grad():
            for result in (small(task.test.images, index), alone(task.test.images), full(task.test.images)):
                assert torch.allclose(result, expected, atol=1e-5)
    assert torch.equal(logits(learner, shown[0], 0), logits(learner, shown[0], 0)), "the learner is as it was"


@pytest.mark.parametrize("name", ["ags6", "resnet18", "mobilenet", "densenet", "squeezed", "group-normed"])
def test_a_compact_network_has_equal_logits_and_fewer_weights(name: str) -> None:
    assert_smaller_and_the_same(learned(drawn(name)), tasks())


def test_groups_concatenations_and_flatten_by_view_are_compacted_too() -> None:
    torch.manual_seed(0)
    shape = (3, 8, 8)
    learner = learned(Tangle(), Gescl(mu_p=0, release=0), shape=shape)
    graph = learner.net.graph
    second_group = torch.cat([torch.arange(layer.size) >= 4 for layer in graph.layers])
    graph.erase(second_group & (torch.arange(graph.size) < graph.layers[-1].slice.start))
    assert_smaller_and_the_same(learner, tasks(shape))


def test_gates_of_a_task_are_compacted_with_it() -> None:
    learner = learned(residual(), Hat(lam=2.0))
    assert any((gate == 0).any() for gate in learner.net.gates.values())
    assert_smaller_and_the_same(learner, tasks())


def test_only_the_tasks_asked_for_are_kept() -> None:
    learner = learned("small")
    small = compact(learner, ["b"])
    task = tasks()[1]
    assert task.test is not None and len(small.heads) == 1
    with torch.no_grad():
        assert torch.allclose(small(task.test.images, 0), logits(learner, task, 1), atol=1e-5)
    with pytest.raises(UsageError, match="unknown task 'c'"):
        compact(learner, ["c"])


@pytest.mark.parametrize("compacted", [False, True])
def test_an_onnx_file_says_of_image_bytes_what_the_learner_says(tmp_path: Path, compacted: bool) -> None:
    runtime = pytest.importorskip("onnxruntime")
    learner = learned(residual())
    path = tmp_path / "b.onnx"
    export_onnx(learner, "b", path, compact=compacted)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    notes = session.get_modelmeta().custom_metadata_map
    height, width = json.loads(notes["gescl.image_size"])
    classes = json.loads(notes["gescl.classes"])
    test = tasks()[1].test
    assert test is not None
    shown = []
    for pixels in test.images[:5].permute(0, 2, 3, 1).numpy():
        photo = io.BytesIO()
        Image.fromarray(pixels).save(photo, "PNG")
        shown.append(np.asarray(Image.open(photo).convert("RGB").resize((width, height))))
    (probabilities,) = session.run(None, {"images": np.stack(shown)})
    expected = learner.predict(test.images[:5], "b")
    assert np.abs(probabilities - expected.probabilities.numpy()).max() < 1e-4
    assert [classes[k] for k in probabilities.argmax(1)] == expected.labels
    (one,) = session.run(None, {"images": np.stack(shown[:1])})
    assert np.allclose(one, probabilities[:1], atol=1e-5)


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[onnx\]'"):
        export_onnx(learned("small"), "a", tmp_path / "a.onnx")


def test_the_model_itself_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model.gescl").write_text("dear")
    with pytest.raises(UsageError, match=r"name ends in \.onnx, got .*model\.gescl"):
        export_onnx(learned("small"), "a", tmp_path / "model.gescl")
    assert (tmp_path / "model.gescl").read_text() == "dear"
