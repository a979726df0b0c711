"""How a task is learned: against a loop written by hand, by its schedule, and by what it asks of the device."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gescl import DataError, Frozen, Joint, Learner, Task, Training, UsageError, training
from gescl.checkpoints import SavedState
from gescl.errors import DivergedError
from gescl.maths import metric_prox
from gescl.methods import METHODS, Batch, Finetune, Method, Strategy, TaskContext, filterwise
from gescl.networks.cnn import build_trunk
from gescl.networks.feature_cache import FixedPrefix
from gescl.networks.multihead import MultiHeadNet
from gescl.records import Epoch
from gescl.streams.task import Split
from gescl.training import learn_task, validate

from .conftest import stripes
from .oracles import training as oracle

MEAN, STD = (120.0, 130.0, 125.0), (60.0, 70.0, 65.0)
SHAPE = (3, 16, 16)


def made_task(name: str, seed: int = 1, train: int = 33, val: int = 14) -> Task:
    """Colours in noise, a third of the labels wrong: validation is best somewhere in the middle of training."""
    draw = torch.Generator().manual_seed(seed)
    colours = torch.randn(3, 3, 1, 1, generator=draw)

    def split(count: int) -> Split:
        labels = torch.randint(0, 3, (count,), generator=draw)
        pixels = 128 + 50 * (colours[labels] + torch.randn(count, *SHAPE, generator=draw))
        wrong = torch.rand(count, generator=draw) < 0.35
        return Split(pixels.clamp(0, 255).to(torch.uint8), torch.where(wrong, (labels + 1) % 3, labels))

    return Task(name, ("a", "b", "c"), split(train), split(val))


def made_trunk(kind: str) -> nn.Module:
    torch.manual_seed(0)
    # A bias before batch-norm has a gradient of zero: Adam would make a step out of its rounding errors.
    conv, relu = nn.Conv2d(3, 6, 3, stride=2, bias=kind != "batch-norm"), nn.ReLU()
    flat = nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
    if kind == "batch-norm":
        return nn.Sequential(conv, nn.BatchNorm2d(6), relu, flat)
    if kind == "dropout":
        return nn.Sequential(conv, relu, flat, nn.Dropout(0.4), nn.Linear(54, 12), nn.ReLU(), nn.Dropout(0.2))
    return nn.Sequential(conv, relu, flat)


def made_net(kind: str = "plain", heads: int = 1) -> MultiHeadNet:
    net = MultiHeadNet(made_trunk(kind), SHAPE, torch.tensor(MEAN), torch.tensor(STD))
    for _ in range(heads):
        net.add_head(3)
    return net


class Pair:
    """A network for `learn_task`, and the same one for the oracle."""

    def __init__(self, kind: str, method: Method, seed: int = 3) -> None:
        self.net, self.trunk, self.seed = made_net(kind, heads=0), made_trunk(kind), seed
        self.heads: list[nn.Linear] = []
        self.strategy: Strategy[Any] = method.strategy(self.net)

    def learn(
        self,
        *tasks: Task,
        fixed_trunk: bool = False,
        penalty: Callable[[Tensor], Tensor] | None = None,
        **settings: Any,
    ) -> list[Epoch]:
        """Both learn the last of the tasks, shown together with the others, and must agree in everything."""
        index, earlier = len(self.heads), tasks[:-1]
        self.heads.append(copy.deepcopy(self.net.add_head(3)))
        how = Training(**settings)
        epochs = list(learn_task(self.net, self.strategy, tasks[-1], how, seed=self.seed, earlier=earlier))
        parts = [
            oracle.Part(head, *(oracle.Images(s.images.numpy(), s.labels.tolist()) for s in (task.train, task.val)))
            for head, task in zip(self.heads[-len(tasks) :], tasks, strict=True)
        ]
        expected = oracle.learn(
            self.trunk,
            parts,
            oracle.Settings(**{key: value for key, value in settings.items() if key != "feature_cache_mb"}),
            mean=MEAN,
            std=STD,
            seed=self.seed,
            index=index,
            fixed_trunk=fixed_trunk,
            penalty=penalty,
        )
        assert [(e.epoch, e.best) for e in epochs] == [(row.epoch, row.best) for row in expected]
        for name in ("lr", "loss", "val_loss", "val_accuracy"):
            found, wanted = [getattr(e, name) for e in epochs], [getattr(row, name) for row in expected]
            assert found == pytest.approx(wanted, rel=1e-4), name
        for ours, theirs in ((self.net.trunk, self.trunk), (self.net.heads, nn.ModuleList(self.heads))):
            torch.testing.assert_close(
                dict(ours.state_dict()), dict(theirs.state_dict()), rtol=1e-4, atol=1e-5, check_stride=False
            )
        assert not self.net.training, "a learned network is in eval mode"
        assert {(e.task, e.index) for e in epochs} == {(tasks[-1].name, index)}
        assert {e.images for e in epochs} == {sum(len(task.train) for task in tasks)}
        assert all(e.images_per_second == e.images / e.seconds for e in epochs)
        return epochs


RATES = {"adam": 0.03, "sgd": 0.1}
AUGMENTED: dict[str, Any] = {"flip": True, "shift": 3}


@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("kind", ["plain", "batch-norm", "dropout"])
def test_a_task_is_learned_as_by_a_loop_written_by_hand(kind: str, optimizer: str, schedule: str) -> None:
    augmented: dict[str, Any] = AUGMENTED if (optimizer == "sgd") == (schedule == "plateau") else {}
    settings: dict[str, Any] = {
        "optimizer": optimizer,
        "lr": RATES[optimizer],
        "schedule": schedule,
        "patience": 2,
        **augmented,
    }
    epochs = Pair(kind, Finetune()).learn(made_task("a"), batch_size=16, epochs=7, **settings)
    assert len(epochs) == 7, "33 images in batches of 16: the last one is of 17"


def test_the_best_epochs_weights_and_batch_norm_statistics_are_restored() -> None:
    epochs = Pair("batch-norm", Finetune()).learn(made_task("a"), optimizer="sgd", lr=0.1, batch_size=16, epochs=7)
    assert epochs[2].best and not epochs[-1].best, "the test means nothing otherwise"


@pytest.mark.parametrize("augmentation", [{"flip": True}, {"shift": 1}, {"shift": 5}])
def test_flip_and_shift_work_alone_and_only_in_training(augmentation: dict[str, Any]) -> None:
    Pair("plain", Finetune()).learn(made_task("a"), lr=0.02, batch_size=7, epochs=3, **augmentation)


def test_a_plateau_cuts_the_rate_again_and_again_and_ends_the_task_below_the_least_rate() -> None:
    settings: dict[str, Any] = {
        "lr": 0.1,
        "lr_factor": 4.0,
        "min_lr": 1e-3,
        "patience": 2,
        "batch_size": 11,
        "epochs": 40,
    }
    epochs = Pair("batch-norm", Finetune()).learn(made_task("a"), **settings)
    runs = [len(list(same)) for _, same in groupby(epoch.lr for epoch in epochs)]
    assert len(runs) == 4 and min(runs) >= 2 and len(epochs) < 40, f"epochs per rate: {runs}"


@pytest.mark.parametrize("kind", ["batch-norm", "dropout"])
def test_a_second_task_goes_on_from_the_first_with_a_schedule_and_draws_of_its_own(kind: str) -> None:
    pair = Pair(kind, Finetune())
    for task in (made_task("a"), made_task("b", 2, train=24)):
        epochs = pair.learn(task, lr=0.02, schedule="cosine", batch_size=16, epochs=4)
        assert epochs[0].lr == 0.02


def test_another_seed_is_another_order() -> None:
    orders = [Pair("plain", Finetune(), seed).learn(made_task("a"), lr=0.02, batch_size=8, epochs=1) for seed in (0, 1)]
    assert orders[0][0].loss != orders[1][0].loss


def test_tasks_shown_together_are_learned_each_with_its_own_head() -> None:
    pair = Pair("batch-norm", Joint())
    tasks = made_task("a"), made_task("b", 2, train=20, val=9)
    pair.learn(tasks[0], lr=0.02, batch_size=16, epochs=2)
    pair.learn(*tasks, lr=0.02, batch_size=13, epochs=4, **AUGMENTED)


@pytest.mark.parametrize("options", [{}, {"feature_cache_mb": 0}, {"flip": True}, {"shift": 2}])
def test_a_fixed_trunk_learns_the_same_whether_its_features_are_kept_or_not(options: dict[str, Any]) -> None:
    pair = Pair("dropout", Frozen())
    pair.learn(made_task("a"), lr=0.02, batch_size=16, epochs=2)
    passes: list[int] = []
    pair.net.trunk.get_submodule("0").register_forward_hook(lambda *_: passes.append(1))
    pair.learn(made_task("b", 2), fixed_trunk=True, lr=0.02, batch_size=16, epochs=4, **options)
    assert (len(passes) < 4) == (not options), "only features that do not change are kept"


@pytest.mark.parametrize(("per_image", "kept"), [(2**20 // (33 + 14), True), (2**20 // (33 + 14) + 1, False)])
def test_features_are_kept_only_where_those_of_all_images_fit(
    per_image: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FixedPrefix, "bytes_per_image", lambda self: per_image)
    pair = Pair("plain", Frozen())
    pair.learn(made_task("a"), lr=0.02, batch_size=16, epochs=1)
    passes: list[int] = []
    pair.net.trunk.get_submodule("0").register_forward_hook(lambda *_: passes.append(1))
    pair.learn(made_task("b", 2), fixed_trunk=True, lr=0.02, batch_size=16, epochs=3, feature_cache_mb=1)
    assert (len(passes) < 3) == kept


def test_a_penalty_is_trained_on_and_is_not_part_of_the_loss_that_is_reported() -> None:
    def penalty(features: Tensor) -> Tensor:
        return 0.3 * features.square().mean()

    class Penalised(Strategy[Method]):
        def penalty(self, context: TaskContext, batch: Batch) -> Tensor:
            return penalty(batch.features)

    pair = Pair("plain", Finetune())
    pair.strategy = Penalised(Finetune(), pair.net)
    pair.learn(made_task("a"), penalty=penalty, lr=0.02, batch_size=16, epochs=3)


def rates(monkeypatch: pytest.MonkeyPatch, val_losses: list[float], **settings: Any) -> list[float]:
    """The rate of each epoch, if validation came to these losses."""
    losses = iter(val_losses)
    monkeypatch.setattr(training, "validate", lambda *_, **__: (next(losses), 0.5))
    how = Training(**{"lr": 1.0, "lr_factor": 10, "min_lr": 5e-3, "patience": 2, "epochs": len(val_losses), **settings})
    net = made_net()
    epochs = learn_task(net, Finetune().strategy(net), made_task("a", train=4), how, seed=0)
    return [epoch.lr for epoch in epochs]


@pytest.mark.parametrize(
    ("val_losses", "settings", "expected"),
    [
        # Two epochs that are not better: a cut, and the count begins again. An epoch as good as the best is not better.
        ([5, 6, 5, 6, 6, 4, 6, 6, 1, 1], {}, [1, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.01]),
        ([5, 6, 4, 6, 3, 6, 6, 6], {}, [1, 1, 1, 1, 1, 1, 1, 0.1]),
        ([5, 6, 6, 6], {"patience": 1}, [1, 1, 0.1, 0.01]),
        ([5, 6, 6, 6], {"patience": 3}, [1, 1, 1, 1]),
        ([5, 5 - 1e-7, 5 - 2e-7, 5 - 3e-7], {"patience": 1}, [1, 1, 1, 1]),
        # A task ends below the least rate, not at it, whatever dividing rounds to.
        ([5] * 9, {"lr": 0.03, "lr_factor": 3, "min_lr": 0.01, "patience": 1}, [0.03, 0.03, 0.01]),
        ([5] * 9, {"lr": 4e-9, "lr_factor": 2, "min_lr": 1.5e-9, "patience": 1}, [4e-9, 4e-9, 2e-9]),
        # A cosine asks neither for validation nor for the least rate.
        ([5] * 4, {"schedule": "cosine", "min_lr": 0.9}, [1, (2 + math.sqrt(2)) / 4, 0.5, (2 - math.sqrt(2)) / 4]),
        ([5], {"schedule": "cosine"}, [1]),
    ],
)  # fmt: skip
def test_rates_follow_the_schedule(
    val_losses: list[float], settings: dict[str, Any], expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rates(monkeypatch, val_losses, **settings) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("val_loss", [math.nan, math.inf])
def test_a_validation_loss_that_is_no_number_is_an_error(val_loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        DataError, match=r"'a': the loss is no longer a finite number in epoch 2; a smaller .* than 0\.1 "
    ):
        rates(monkeypatch, [1.0, val_loss], lr=0.1)


def test_a_training_loss_that_is_no_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    words = r"finite number in epoch 2, step 1, where the output of layer heads\.0 .* a smaller .* than 1e\+30 "
    with pytest.raises(DivergedError, match=words):
        rates(monkeypatch, [1.0] * 9, lr=1e30, optimizer="sgd", patience=9)


class Poisoned(Strategy[Method]):
    """Spoils a weight in a step of the task, as long as the rate is above a limit."""

    def __init__(self, net: MultiHeadNet, step: int, limit: float) -> None:
        super().__init__(Finetune(), net)
        self.step, self.limit = step, limit

    def after_step(self, context: TaskContext) -> None:
        if context.step == self.step and context.lr > self.limit:
            next(self.net.trunk.parameters()).data[0] = math.nan


def test_the_first_layer_that_is_not_finite_is_named_with_its_step() -> None:
    net = made_net()
    training = Training(epochs=3, batch_size=11)  # three steps per epoch
    words = (
        r"'a': the loss is no longer a finite number in epoch 2, step 2, where the weights of layer 0 were the first"
    )
    with pytest.raises(DivergedError, match=words):
        list(learn_task(net, Poisoned(net, 5, 0.0), made_task("a"), training, seed=0))


@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
def test_an_epoch_that_diverges_is_repeated_with_a_third_of_the_rate(
    schedule: Any, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(epochs=4, batch_size=11, lr=0.02, schedule=schedule, on_nan="retry", patience=9)
    net, states = made_net(), list[SavedState]()
    list(learn_task(net, Poisoned(net, 0, 0), made_task("a"), training, seed=0, on_state=states.append))
    net = made_net()
    epochs = list(learn_task(net, Poisoned(net, 5, 0.003), made_task("a"), training, seed=0))
    assert [epoch.retries for epoch in epochs] == [0, 2, 0, 0]
    assert caplog.text.count("the epoch is repeated with a learning rate of") == 2
    # The same as going on from the first epoch with a ninth of the rate.
    header = copy.deepcopy(states[0].header)
    header["lr"] = [rate / 9 for rate in header["lr"]]
    if schedule == "cosine":
        header["schedule"]["base_lrs"] = [0.02 / 9]
    net, other = made_net(), SavedState(states[0].tensors, header)
    expected = list(learn_task(net, Poisoned(net, 0, 0), made_task("a"), training, seed=0, resume=other))
    assert [(e.lr, e.loss, e.val_loss) for e in epochs] == [(e.lr, e.loss, e.val_loss) for e in expected]


def test_three_retries_are_enough() -> None:
    net = made_net()
    training = Training(epochs=3, batch_size=11, on_nan="retry")
    with pytest.raises(DivergedError, match=r"than 3\.7037e-05 .* 3 retries with a third of the rate each"):
        list(learn_task(net, Poisoned(net, 5, 0.0), made_task("a"), training, seed=0))


@pytest.mark.parametrize(
    ("val_losses", "warned"),
    [
        ([1.0, 0.9, 99.0, 100.0, 500.0], ["3"]),
        ([0.9, 0.002, 0.3, 1.0], []),
        ([0.9, 0.002, 0.3, 1.2], ["4"]),
        ([300.0, 400.0], ["1"]),
        ([5.0, 6.0, 7.0], []),
    ],
)
def test_a_validation_loss_that_explodes_is_reported_once(
    val_losses: list[float], warned: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rates(monkeypatch, val_losses, patience=9)
    assert [record.getMessage().split("epoch ")[1].split(":")[0] for record in caplog.records] == warned


def test_validation_weighs_every_image_alike_in_eval_mode_whatever_the_batches() -> None:
    net = made_net("dropout", heads=2).train()
    splits = [(0, made_task("a", val=10).val), (1, made_task("b", 2, val=3).val)]
    found = [validate(net, splits, batch_size=size) for size in (1, 4, 1024)]
    assert not net.training
    losses, right = [], []
    for head, split in splits:
        for image, label in zip(split.images, split.labels.tolist(), strict=True):
            scores = net(image[None], head).detach().log_softmax(1)[0]
            losses.append(-float(scores[label]))
            right.append(int(scores.argmax()) == label)
    for each in found:
        assert each == pytest.approx((sum(losses) / 13, sum(right) / 13), rel=1e-5)


def test_epochs_are_trained_when_they_are_asked_for() -> None:
    net = made_net()
    epochs = learn_task(net, Finetune().strategy(net), made_task("a"), Training(epochs=3), seed=0)
    before = copy.deepcopy(net.state_dict())
    for _ in range(3):
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
        next(epochs)
        before = copy.deepcopy(net.state_dict())
    assert list(epochs) == []


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
    # Letting filters go, once per task, waits as often as there are filters to go.
    settings = {"release": 0} if "release" in METHODS[method].model_fields else {}
    strategy = METHODS[method](**settings).strategy(net)
    # SGD, because Adam reads its own step counters, which are on the CPU whatever the device.
    training = Training(optimizer="sgd", lr=1e-5, batch_size=batch_size, flip=True, shift=1, epochs=2)
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
def test_no_step_waits_for_the_device(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (filterwise, metric_prox):
        monkeypatch.setattr(module, "reads_at_once", lambda tensor: False)  # as on a GPU
    tasks = [stripes("a", 2, shape=(3, 8, 8)), stripes("b", 2, shape=(3, 8, 8), seed=1)]
    few, many = waits(method, tasks, 72), waits(method, tasks, 12)
    assert few == many, f"2 and 12 steps: {few}, {many}"
    assert few.get("_local_scalar_dense", 0) <= 3, "per epoch the mean loss, and both numbers of the validation"


@pytest.mark.parametrize("method", [Finetune(), Frozen()])
def test_no_gradient_outlives_an_epoch(method: Method) -> None:
    net = made_net(heads=0)
    strategy = method.strategy(net)
    for task in (made_task("a"), made_task("b", 2)):
        net.add_head(3)
        for _ in learn_task(net, strategy, task, Training(epochs=2, batch_size=12, feature_cache_mb=0), seed=0):
            assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())


def test_the_seconds_of_an_epoch_are_those_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]

    def validated(*_: Any, **__: Any) -> tuple[float, float]:
        clock[0] += 100
        return 1.0, 0.5

    class Slow(Strategy[Method]):
        def after_step(self, context: TaskContext) -> None:
            clock[0] += 2

        def end_epoch(self, context: TaskContext) -> None:
            clock[0] += 5

    monkeypatch.setattr(training, "validate", validated)
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    net = made_net()
    for epoch in learn_task(net, Slow(Finetune(), net), made_task("a"), Training(epochs=2, batch_size=16), seed=0):
        clock[0] += 1000
        assert epoch.seconds == 9, "two steps and the end of the epoch"
        assert epoch.images_per_second == 33 / 9


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


@pytest.mark.parametrize("shape", [(3, 8, 10), (3, 10, 8)])
def test_a_shift_out_of_the_picture_is_refused(shape: tuple[int, int, int]) -> None:
    task, size = stripes("a", 2, shape=shape), f"{shape[1]}×{shape[2]}"
    with pytest.raises(UsageError, match=rf"training\.shift = 8 would move images of {size} pixels out of sight"):
        Learner("small", "finetune", training=Training(epochs=1, shift=8)).learn(task)
    Learner("small", "finetune", training=Training(epochs=1, shift=7)).learn(task)


def test_few_images_get_more_epochs_until_there_are_enough_steps() -> None:
    training = Training(epochs=4, min_steps=100, batch_size=32)
    assert [training.for_images(count).epochs for count in (10, 33, 800, 801, 9999)] == [100, 50, 4, 4, 4]
    assert Training(epochs=4).for_images(1).epochs == 4
    learner = Learner("small", training=Training(epochs=2, min_steps=5, batch_size=32))
    learner.learn(stripes("a", 2, shape=(1, 8, 8)))  # 144 to train on: five steps per epoch
    assert learner.records[0].epochs == 2
    learner.training = training.model_copy(update={"min_steps": 11, "epochs": 1})
    learner.learn(stripes("b", 2, shape=(1, 8, 8)))
    assert learner.records[1].epochs == 3 and learner.training.epochs == 1
