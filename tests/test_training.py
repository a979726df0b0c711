"""The loop itself: what it asks of the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gescl import Learner, Task, Training, UsageError
from gescl.methods import METHODS, Finetune, Method, Strategy, TaskContext
from gescl.networks.cnn import build_trunk
from gescl.networks.multihead import MultiHeadNet
from gescl.training import learn_task

from .conftest import stripes

# What makes Python wait for a GPU: a number read back, or a result whose size only the device knows.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.count: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            self.count[name] = self.count.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def waits(method: str, tasks: list[Task], batch_size: int) -> dict[str, int]:
    """Waits in an epoch of the second task, with its validation."""
    net = MultiHeadNet(build_trunk("small", tasks[0].shape), tasks[0].shape, torch.zeros(3), torch.ones(3))
    strategy = METHODS[method]().strategy(net)
    # SGD, because Adam reads its own step counters, which are on the CPU whatever the device.
    training = Training(optimizer="sgd", batch_size=batch_size, flip=True, shift=1, epochs=2)
    count: dict[str, int] = {}
    for index, task in enumerate(tasks):
        net.add_head(len(task.classes))
        epochs = learn_task(net, strategy, task, training, seed=0, earlier=tasks[:index])
        next(epochs)  # with it the task begins
        with Waits() as found:
            next(epochs)
        count = found.count
        assert list(epochs) == [], "the task is ended"
    return count


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_step_waits_for_the_device(method: str) -> None:
    tasks = [stripes("a", 2, shape=(3, 8, 8)), stripes("b", 2, shape=(3, 8, 8), seed=1)]
    few, many = waits(method, tasks, 72), waits(method, tasks, 12)
    assert few == many, f"2 and 12 steps: {few}, {many}"
    assert few.get("_local_scalar_dense", 0) <= 3, "per epoch the mean loss, and both numbers of the validation"


def test_no_gradient_outlives_an_epoch() -> None:
    task = stripes("a", 2, shape=(3, 8, 8))
    net = MultiHeadNet(build_trunk("small", task.shape), task.shape, torch.zeros(3), torch.ones(3))
    net.add_head(2)
    next(learn_task(net, Finetune().strategy(net), task, Training(batch_size=12), seed=0))
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize(
    ("batch_size", "epochs", "expected"),
    [
        (48, 2, [0.0, 0.5, 1.0, 0.0, 0.5, 1.0]),
        (72, 1, [0.0, 1.0]),
        (1000, 3, [0.0, 0.5, 1.0]),
        (1000, 10, [*(k / 7 for k in range(8)), 0.0, 1 / 7]),
        (1000, 1, [0.0]),
    ],
)
def test_progress_goes_to_one_also_where_an_epoch_is_a_single_batch(
    batch_size: int, epochs: int, expected: list[float]
) -> None:
    task = stripes("a", 2, shape=(3, 8, 8))
    net = MultiHeadNet(build_trunk("small", task.shape), task.shape, torch.zeros(3), torch.ones(3))
    net.add_head(2)
    seen: list[float] = []

    class Watching(Strategy[Method]):
        def begin_step(self, context: TaskContext, progress: float) -> None:
            seen.append(progress)

    training = Training(epochs=epochs, batch_size=batch_size, patience=epochs)
    assert len(list(learn_task(net, Watching(Finetune(), net), task, training, seed=0))) == epochs
    assert seen == expected


def test_a_shift_out_of_the_picture_is_refused() -> None:
    learner = Learner("small", "finetune", training=Training(epochs=1, shift=8))
    with pytest.raises(UsageError, match=r"training\.shift = 8 would move images of 8×8 pixels out of sight"):
        learner.learn(stripes("a", 2, shape=(3, 8, 8)))
