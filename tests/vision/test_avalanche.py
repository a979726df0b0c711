"""The plugins in the real Avalanche do what the learner does: same masks, weights and accuracies on the same batches.

Run by `make test-vision`, in an environment of its own.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("avalanche")

from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.scenarios.supervised import with_classes_timeline
from avalanche.benchmarks.scenarios.task_aware import with_task_labels
from avalanche.benchmarks.utils.classification_dataset import (
    _make_taskaware_tensor_classification_dataset as tensor_dataset,
)
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.models import MultiHeadClassifier, MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.supervised import Naive

from gescl import AgsCl, Gescl, GesclDistill, Hat, Learner, Method, Task, Training, UsageError, load_stream
from gescl.avalanche import AgsPlugin, GesclPlugin, HatPlugin, MethodPlugin
from gescl.methods import Strategy
from gescl.networks.cnn import build_trunk
from gescl.randomness import seeded
from tests.docs.blocks import ROOT, blocks, run

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")
EPOCHS, SIZE, LR = 5, 12, 0.1


def tasks() -> list[Task]:
    """Two writing systems, their training images in a random order: neither side shuffles them again."""
    found = load_stream("scripts", tasks=2, train_per_class=20, test_per_class=5)
    order = torch.randperm(len(found[0].train), generator=torch.Generator().manual_seed(0))
    return [replace(task, train=task.train[order]) for task in found]


def trunk(*, norm: bool) -> nn.Module:
    torch.manual_seed(3)
    second: list[nn.Module] = [nn.BatchNorm2d(12)] if norm else []
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), *second, nn.ReLU(), nn.Flatten()
    )


class Model(MultiTaskModule):  # type: ignore[misc]
    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body = body
        self.answers = MultiHeadClassifier(features, 10, masking=False)

    def forward(self, x: Tensor, task_labels: Tensor) -> Tensor:
        logits: Tensor = self.answers(self.body(x), task_labels)
        return logits


class SameHeads(SupervisedPlugin):  # type: ignore[misc]
    """Draws heads as the learner does. Comes before the plugin of the method."""

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        number = strategy.experience.current_experience
        head = strategy.model.answers.classifiers[str(number)].classifier
        with seeded(0, number, "head"), torch.no_grad():
            drawn = nn.Linear(head.in_features, head.out_features)
            head.weight.copy_(drawn.weight)
            head.bias.copy_(drawn.bias)


def benchmark(shown: list[Task], normalise: Any, *kinds: str) -> Any:
    def datasets(kind: str) -> list[Any]:
        splits = [getattr(task, kind) for task in shown]
        return [
            tensor_dataset(normalise(split.images).contiguous(), split.labels, task_labels=number)
            for number, split in enumerate(splits)
        ]

    return with_task_labels(with_classes_timeline(benchmark_from_datasets(**{kind: datasets(kind) for kind in kinds})))


def by_avalanche(plugin: MethodPlugin, body: nn.Module, made: Any, features: int) -> tuple[Model, list[list[float]]]:
    torch.manual_seed(0)
    model = Model(body.to(memory_format=torch.channels_last), features)  # type: ignore[call-overload]  # as a learner's
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=SIZE,
        train_epochs=EPOCHS,
        eval_mb_size=64,
        plugins=[SameHeads(), plugin],
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
    )
    matrix = []
    for number, experience in enumerate(made.train_stream):
        strategy.train(experience, shuffle=False)
        found = strategy.eval(made.test_stream[: number + 1])
        matrix.append([value for name, value in sorted(found.items()) if name.startswith("Top1_Acc_Exp/")])
    return model, matrix


DISTILL = GesclDistill(mu_p=0, release=0)
CASES: dict[str, tuple[Method, Any]] = {
    "gescl": (Gescl(mu_s=0.3, mu_p=0.02), lambda v: GesclPlugin(mu_s=0.3, mu_p=0.02, trunk="body", validation=v)),
    "ags-cl": (AgsCl(lam=5, mu=0.5), lambda v: AgsPlugin(lam=5, mu=0.5, trunk="body")),
    "hat": (Hat(lam=0.1, s_max=50), lambda v: HatPlugin(lam=0.1, s_max=50, trunk="body")),
    # Recorded in the learner, asked for in the plugin: on some CPUs the last bits of answers decide what is freed.
    "gescl-distill": (DISTILL, lambda v: MethodPlugin(DISTILL, trunk="body", validation=v)),
}  # fmt: skip


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch-norm"])
@pytest.mark.parametrize("name", CASES)
def test_masks_weights_and_accuracies_are_the_learners(name: str, norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    method, plugged = CASES[name]
    strategies: list[Any] = [Strategy]
    for strategy in strategies:  # grows while it is gone through
        strategies += strategy.__subclasses__()
        if "settled" in strategy.__dict__:  # the learner goes back to its best epoch, Avalanche ends with the last
            monkeypatch.setattr(strategy, "settled", lambda self, context: context.progress >= 1)
    shown = tasks()
    settings = Training(epochs=EPOCHS, batch_size=SIZE, lr=LR, optimizer="sgd", momentum=0, patience=EPOCHS)
    learner = Learner(trunk(norm=norm), method, training=settings)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randperm", lambda count, generator=None: torch.arange(count))
        for task in shown:
            learner.learn(task)
    made = benchmark(shown, copy.deepcopy(learner.net).normalise, "train", "test", "val")
    plugin = plugged(made.streams["val"])
    model, matrix = by_avalanche(plugin, trunk(norm=norm), made, learner.net.features)
    assert plugin.attached is not None and plugin.learned == [0, 1]
    capacity = plugin.attached.strategy.capacity()
    assert capacity == learner.capacity() and capacity is not None and sum(capacity.important.values()) > 0
    for (where, ours), theirs in zip(learner.net.trunk.named_parameters(), model.body.parameters(), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5, msg=f"{where} differs")
    for where, tensor in learner.strategy.state().items():
        torch.testing.assert_close(plugin.attached.strategy.state()[where], tensor, rtol=1e-3, atol=1e-5)
    assert matrix == [[pytest.approx(value) for value in row] for row in learner.accuracy]
    started = next(trunk(norm=norm).parameters())
    assert not torch.allclose(started, next(model.body.parameters()), atol=1e-4), "it has learned something"
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_what_cannot_be_plugged_in_is_refused() -> None:
    shown = tasks()[:1]
    made = benchmark(shown, lambda images: images / 255, "train", "test")
    with pytest.raises(
        UsageError, match="Model has no 'trunk'; name its part from images to flat features, trunk=…, of"
    ):
        by_avalanche(GesclPlugin(), trunk(norm=False), made, 300)
    plugin = GesclPlugin(trunk="body")
    model, _ = by_avalanche(plugin, build_trunk("small", (1, 28, 28)), made, 576)
    again = Naive(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=LR), plugins=[plugin])
    with pytest.raises(UsageError, match="task 0 has been learned already"):
        again.train(made.train_stream[0])


def test_the_page_runs_as_printed() -> None:
    names: dict[str, Any] = {}
    for block in blocks(ROOT / "docs" / "avalanche.md"):
        if block.language == "python":
            run(block, names, lambda *arguments: (0, "", ""))
    assert sum(names["plugin"].attached.strategy.capacity().important.values()) > 0
