"""What every method must do, whatever it does: one parametrised file for those there are and those to come."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gescl import Learner, Task, Training, load_recipe, load_stream
from gescl.methods import METHODS
from gescl.networks.filters.operations import ANY_NETWORK

from .conftest import stripes
from .networks.residual import Residual, residual


@dataclass(frozen=True)
class Run:
    """Three tasks of digits, and the file that was saved after two of them."""

    name: str
    learner: Learner
    file: Path


@cache
def tasks() -> list[Task]:
    return list(load_stream("digits", tasks=3))


def beginner(name: str) -> Learner:
    return Learner("small", METHODS[name](), training=Training(epochs=4, lr=3e-3, batch_size=32))


@pytest.fixture(scope="module", params=METHODS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.set_num_threads(1)  # as in the tests themselves: the number of threads changes bits
    learner, file = beginner(request.param), tmp_path_factory.mktemp("run") / "model.gescl"
    for task in tasks()[:2]:
        learner.learn(task)
    learner.save(file)
    learner.learn(tasks()[2])
    return Run(request.param, learner, file)


def all_tensors(learner: Learner) -> dict[str, Tensor]:
    return {**learner.net.state_dict(), **learner.net.task_state(), **learner.strategy.state()}


def assert_same(one: Learner, other: Learner) -> None:
    ours, theirs = all_tensors(one), all_tensors(other)
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        assert torch.equal(tensor, theirs[key]), key
    assert one.accuracy == other.accuracy


def test_it_learns_digits_and_beats_chance(run: Run) -> None:
    accuracy = run.learner.accuracy
    assert [len(row) for row in accuracy] == [1, 2, 3]
    assert accuracy[0][0] is not None and accuracy[0][0] > 0.9
    assert run.learner.average_accuracy is not None and run.learner.average_accuracy > 0.65, "chance is 0.5"


def test_two_runs_are_equal_bit_by_bit(run: Run) -> None:
    torch.manual_seed(17)  # what else goes on in the process must not matter
    again = beginner(run.name)
    for task in tasks():
        again.learn(task)
    assert_same(again, run.learner)


def test_going_on_from_a_file_equals_going_on_in_memory(run: Run) -> None:
    loaded = Learner.load(run.file)
    assert loaded.method == METHODS[run.name]()
    loaded.learn(tasks()[2], earlier=tasks()[:2])  # which the accuracies need; only `joint` trains on them
    assert_same(loaded, run.learner)


def test_a_task_that_fails_at_its_very_end_leaves_everything_as_it_was(run: Run) -> None:
    learner = Learner.load(run.file)
    before = {key: tensor.clone() for key, tensor in all_tensors(learner).items()}
    end_task = learner.strategy.end_task

    def fail(context: Any) -> None:
        end_task(context)
        raise KeyboardInterrupt

    learner.strategy.end_task = fail  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        learner.learn(tasks()[2], earlier=tasks()[:2])
    del learner.strategy.end_task
    now = all_tensors(learner)
    assert now.keys() == before.keys() and all(torch.equal(now[key], tensor) for key, tensor in before.items())
    learner.learn(tasks()[2], earlier=tasks()[:2])
    assert_same(learner, run.learner)


@pytest.mark.parametrize("forgotten", [0, 1, 2])
def test_forgetting_a_task_changes_no_answer_of_the_others(run: Run, forgotten: int, tmp_path: Path) -> None:
    name, *others = sorted(tasks(), key=lambda task: task.name != tasks()[forgotten].name)
    noise = torch.randint(0, 256, (50, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = torch.cat([noise, *(task.train.images for task in tasks())])
    run.learner.save(tmp_path / "model.gescl")
    learner = Learner.load(tmp_path / "model.gescl")
    before = {task.name: learner.predict(images, task.name).probabilities for task in others}
    learner.forget(name.name)
    assert learner.tasks == [task.name for task in others]
    learner.save(tmp_path / "model.gescl")
    for remaining in (learner, Learner.load(tmp_path / "model.gescl")):
        for task, answers in before.items():
            assert torch.equal(remaining.predict(images, task).probabilities, answers)
    kept = [k for k in range(3) if k != forgotten]
    assert learner.accuracy == [[run.learner.accuracy[row][k] for k in kept if k <= row] for row in kept]
    learner.learn(name, earlier=others)  # there is a way back
    assert learner.tasks == [*(task.name for task in others), name.name]


def test_it_reports_what_it_carries_and_what_it_has_taken(run: Run) -> None:
    learner = run.learner
    carried = [*learner.strategy.state().values(), *learner.net.task_state().values()]
    assert learner.state_bytes == sum(tensor.numpy().nbytes for tensor in carried)
    capacity, record = learner.capacity(), learner.records[-1]
    if capacity is None:
        assert record.free_filters is None and record.important_filters is None
    else:
        for layer in learner.net.graph.layers:
            assert capacity.free[layer.name] + capacity.important[layer.name] == layer.size
        assert record.free_filters == capacity.free and record.important_filters == capacity.important
    for vector in learner.strategy.filters().values():
        assert vector.shape == (learner.net.graph.size,)


@pytest.mark.parametrize("name", METHODS)
def test_its_settings_are_documented_and_survive_a_recipe(name: str, tmp_path: Path) -> None:
    method = METHODS[name]
    assert method.name == name and method.__doc__
    assert all(field.description for field in method.model_fields.values())
    recipe = load_recipe("digits", method=name)
    (tmp_path / "again.toml").write_text(recipe.to_toml())
    assert load_recipe(tmp_path / "again.toml").method == recipe.method


@pytest.mark.parametrize("name", METHODS)
def test_it_works_with_batch_norm_residual_adds_and_depthwise_convolutions(name: str, tmp_path: Path) -> None:
    trunk = residual()
    learner = Learner(trunk, METHODS[name](), training=Training(epochs=4, lr=3e-3, batch_size=16))
    learner.learn(stripes("a"))
    assert_end_of_task_leaves_statistics_alone(learner, trunk, stripes("b", 3, seed=1))
    assert [row[-1] is not None and row[-1] > 0.45 for row in learner.accuracy] == [True, True], "chance: 1/4 and 1/3"
    learner.save(tmp_path / "model.gescl")
    loaded = Learner.load(tmp_path / "model.gescl", network=Residual())
    images = stripes("a").train.images
    for task in ("a", "b"):
        assert torch.equal(learner.predict(images, task).probabilities, loaded.predict(images, task).probabilities)
    for forgotten, other in (("a", "b"), ("b", "a")):
        again = Learner.load(tmp_path / "model.gescl", network=Residual())
        again.forget(forgotten)
        assert torch.equal(learner.predict(images, other).probabilities, again.predict(images, other).probabilities)


def assert_end_of_task_leaves_statistics_alone(learner: Learner, trunk: Residual, task: Task) -> None:
    """Measuring importance must not move running statistics, except of filters that were redrawn."""
    compared: list[str] = []
    end_task = learner.strategy.end_task

    def watch(context: Any) -> None:
        before = {key: buffer.clone() for key, buffer in trunk.named_buffers()}
        end_task(context)
        learner.net.select(context.index)
        filters = learner.strategy.filters()
        for module, channels in learner.net.graph.norms:
            kept = ~filters["redrawn"][channels] if "redrawn" in filters else torch.ones(len(channels)).bool()
            for key, buffer in trunk.named_buffers():
                if any(buffer is own for own in module.buffers()):
                    same = buffer == before[key]
                    assert same[kept].all() if buffer.ndim else same, key
                    compared.append(key)

    learner.strategy.end_task = watch  # type: ignore[method-assign]
    learner.learn(task)
    del learner.strategy.end_task
    assert len(compared) == 9


def test_methods_that_the_refusal_of_a_network_names_take_it(digits: list[Task]) -> None:
    """A softmax over channels is refused by what works on filters; the error says which methods do not."""
    named = ANY_NETWORK.rpartition(": ")[2].split(", ")
    assert named
    for method in named:
        network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softmax(dim=1), nn.Flatten())
        learner = Learner(network, method, training=Training(epochs=1))
        for task in digits[:2]:
            learner.learn(task)
