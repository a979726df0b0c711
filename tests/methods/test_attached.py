"""A method in somebody else's loop does what it does in ours: the same masks and weights on the same batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gescl import Ewc, Finetune, Frozen, Gescl, GesclDistill, Hat, Joint, Learner, Lwf, Mas, Training, UsageError
from gescl.batches import Batches
from gescl.methods import METHODS, Method, Strategy
from gescl.methods.attached import Attached
from gescl.randomness import generator, seeded

from ..conftest import stripes

EPOCHS, SIZE = 4, 16
TASKS = [stripes(name, seed=seed) for seed, name in enumerate("ab")]


def trunk(*, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(3)
    second: list[nn.Module] = [nn.BatchNorm2d(12)] if norm else []
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3), *second, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )


class Mine(nn.Module):
    """A model as a user may have it, with names of its own."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.answers = nn.ModuleList()

    def forward(self, images: Tensor, task: int) -> Tensor:
        answer: Tensor = self.answers[task](self.body(images))
        return answer


def by_learner(method: Method, body: nn.Module) -> Learner:
    learner = Learner(body, method, training=Training(epochs=EPOCHS, batch_size=SIZE, lr=5e-3, patience=EPOCHS))
    for task in TASKS:
        learner.learn(task)
    return learner


def by_own_loop(method: Method, body: nn.Module, like: Learner) -> tuple[Mine, Attached]:
    """The loop of a user, on the images and in the order of the learner's."""
    normalise = copy.deepcopy(like.net).normalise
    body = body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it
    model = Mine(body)
    attached: Attached | None = None
    for number, task in enumerate(TASKS):
        with seeded(0, number, "head"):  # as the learner draws it
            head = nn.Linear(like.net.features, len(task.classes))
        model.answers.append(head)
        optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=5e-3)
        if attached is None:
            attached = method.attach(
                model, normalise(task.train.images[:4]), optimizer, trunk=model.body, heads=model.answers
            )
        batches = Batches([(number, task.train)], SIZE, torch.device("cpu"), flip=False, shift=0)
        loader, validation = (partial(shuffled, part, normalise, number) for part in (task.train, task.val))
        attached.begin_task(
            steps=EPOCHS * len(batches),
            epochs=EPOCHS,
            loader=Again(loader),
            validation=Again(validation),
            optimizer=optimizer,
        )
        for epoch in range(1, EPOCHS + 1):
            model.train()
            for _, ((_, part),), _ in batches.shuffled(generator(0, number, epoch, "order of images")):
                logits = model(normalise(part.images), number)
                loss = F.cross_entropy(logits, part.labels) + attached.penalty()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch's
                optimizer.step()
                attached.after_step()
            attached.end_epoch()
        attached.end_task(Again(loader))
    assert attached is not None
    return model, attached


class Again:
    """An iterable that can be gone through as often as one likes, as a DataLoader can."""

    def __init__(self, iterate: Any) -> None:
        self.iterate = iterate

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.iterate()  # type: ignore[no-any-return]


def shuffled(split: Any, normalise: Any, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """In the order in which the learner estimates batch-norm statistics; nothing else depends on it."""
    order = torch.randperm(len(split), generator=generator(0, number, "batch-norm statistics"))
    for index in torch.split(order, SIZE):
        yield normalise(split.images[index]), split.labels[index]


SETTINGS: dict[str, Method] = {
    "gescl": Gescl(mu_s=0.3, mu_p=0.02),
    "gescl-distill": GesclDistill(mu_s=0.01, mu_p=0.02),
    "ewc": Ewc(lam=100, fisher="empirical"),  # sampled labels are drawn batch by batch
    "lwf": Lwf(lam=2),
    "hat": Hat(lam=0.1, s_max=50),
}


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch-norm"])
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.sees_earlier])
def test_the_own_loop_gives_what_the_learner_gives(name: str, norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    method = SETTINGS.get(name) or METHODS[name]()
    # The learner goes back to its best epoch; a loop of one's own ends with the last.
    for strategy in _strategies():
        if "settled" in strategy.__dict__:
            monkeypatch.setattr(strategy, "settled", lambda self, context: context.progress >= 1)
    learner = by_learner(method, trunk(norm=norm))
    model, attached = by_own_loop(method, trunk(norm=norm), learner)
    for (where, ours), theirs in zip(learner.net.trunk.named_parameters(), model.body.parameters(), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5, msg=f"{where} differs")
    for where, tensor in learner.strategy.state().items():
        torch.testing.assert_close(attached.strategy.state()[where], tensor, rtol=1e-3, atol=1e-5)
    assert attached.strategy.capacity() == learner.strategy.capacity()
    assert {p for group in attached.optimizer.param_groups for p in group["params"]} == {
        *model.body.parameters(), *model.answers[1].parameters()
    }  # fmt: skip
    for number, task in enumerate(TASKS):
        assert task.test is not None
        with attached.task(number), torch.no_grad():
            model.eval()
            found = model(learner.net.normalise(task.test.images), number)
        probabilities = learner.predict(task.test.images, task.name).probabilities
        temperature = learner.records[number].temperature
        torch.testing.assert_close((found / temperature).softmax(1), probabilities, rtol=1e-3, atol=1e-4)


def _strategies() -> list[Any]:
    found: list[Any] = [Strategy]
    for strategy in found:  # grows while it is gone through
        found += strategy.__subclasses__()
    return found


def one_step(attached: Attached, model: Mine, optimizer: torch.optim.Optimizer, number: int) -> None:
    part = TASKS[number].train[slice(0, 8)]
    model.train()
    loss = F.cross_entropy(model(part.images.float() / 255, number), part.labels) + attached.penalty()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    optimizer.step()


def made(method: Method, **options: Any) -> tuple[Attached, Mine, torch.optim.Optimizer]:
    model = Mine(trunk())
    model.answers.extend(nn.Linear(48, len(task.classes)) for task in TASKS)  # all heads from the start
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = TASKS[0].train.images[:4].float() / 255
    return method.attach(model, images, optimizer, trunk=model.body, heads=model.answers, **options), model, optimizer


LOADER = [(TASKS[0].train.images.float() / 255, TASKS[0].train.labels)]


def test_finetune_is_a_plain_loop() -> None:
    attached, model, optimizer = made(Finetune())
    plain = copy.deepcopy(model)
    attached.begin_task(steps=1)
    one_step(attached, model, optimizer, 0)
    attached.after_step()
    part = TASKS[0].train[slice(0, 8)]
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    F.cross_entropy(plain(part.images.float() / 255, 0), part.labels).backward()  # type: ignore[no-untyped-call]
    other.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_saved_state_goes_on_with_the_same_importance() -> None:
    attached, model, optimizer = made(Mas())
    attached.begin_task(steps=1)
    with pytest.raises(UsageError, match="between tasks only"):
        attached.state_dict()
    one_step(attached, model, optimizer, 0)
    attached.after_step()
    attached.end_task(LOADER)
    other, other_model, _ = made(Mas())
    other_model.load_state_dict(model.state_dict())
    other.load_state_dict(attached.state_dict())
    assert other.tasks == 1
    for name, tensor in attached.strategy.state().items():
        assert tensor.any() and torch.equal(other.strategy.state()[name], tensor)


def test_what_was_fixed_takes_gradients_again_after_the_task() -> None:
    attached, model, optimizer = made(Frozen())
    for number in range(2):
        attached.begin_task(steps=1)
        assert [p.requires_grad for p in model.body.parameters()] == [number == 0] * 4
        one_step(attached, model, optimizer, number)
        attached.after_step()
        attached.end_task(LOADER)
    assert all(p.requires_grad for p in model.body.parameters())


def test_a_line_that_was_forgotten_is_named() -> None:
    attached, model, optimizer = made(Ewc())
    with pytest.raises(UsageError, match="call begin_task first"):
        attached.penalty()
    attached.begin_task(steps=2)
    with pytest.raises(UsageError, match="none yet"):
        attached.penalty()
    with pytest.raises(UsageError, match=r"follows optimizer.step\(\), which has not been called"):
        attached.after_step()
    with pytest.raises(UsageError, match="task 0 has not been ended"):
        attached.begin_task(steps=2)
    one_step(attached, model, optimizer, 0)
    with pytest.raises(UsageError, match=r"after_step\(\) was not called"):
        one_step(attached, model, optimizer, 0)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Joint(), "joint trains on earlier tasks' images"),
        (Gescl(), "Mine has no trunk; name it: attach\\(…, trunk=model.…\\), of body, answers"),
    ],
)
def test_what_cannot_be_attached_is_refused(method: Method, message: str) -> None:
    model = Mine(trunk())
    with pytest.raises(UsageError, match=message):
        method.attach(model, torch.rand(2, 3, 8, 8), torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_task_without_a_head_or_with_too_few_steps_is_refused() -> None:
    attached, model, _ = made(Finetune())
    with pytest.raises(UsageError, match="1 cannot be in 3 epochs"):
        attached.begin_task(steps=1, epochs=3)
    del model.answers[:]
    with pytest.raises(UsageError, match="the model has 0 heads; add one for task 0 first"):
        attached.begin_task(steps=1)
