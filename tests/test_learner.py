"""The learner as its users call it."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gescl import DataError, Finetune, Frozen, Joint, Learner, Task, TaskRecord, Training, UsageError
from gescl.errors import UnavailableError
from gescl.methods import TaskContext
from gescl.observers import Observer, Observers
from gescl.records import Epoch

from .conftest import conv, stripes

FAST = Training(epochs=3, lr=2e-3, batch_size=32)


def learner(method: Any = None, **options: Any) -> Learner:
    return Learner("small", method or Finetune(), training=options.pop("training", FAST), **options)


def weights(one: Learner) -> dict[str, torch.Tensor]:
    return one.net.state_dict()


class Recorder(Observer):
    """Keeps the epochs, and stops in the middle of one if told to."""

    def __init__(self, stop_in: int | None = None) -> None:
        self.epochs: list[Epoch] = []
        self.stop_in = stop_in

    def end_epoch(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        if epoch.epoch == self.stop_in:
            raise KeyboardInterrupt


def assert_same_weights(one: Learner, other: Learner) -> None:
    assert weights(one).keys() == weights(other).keys()
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


@pytest.mark.parametrize("method", ["gescl", "ags-cl"])
def test_old_tasks_may_be_tested_seldom_or_at_the_end_only(method: str) -> None:
    tasks = [stripes("a"), stripes("b", 3, seed=1), stripes("c", 2, seed=2)]
    matrices = {}
    for every in (1, 2, 0):
        one = Learner("small", method, training=FAST.model_copy(update={"test_every": every}))
        for task in tasks:
            one.learn(task)
        measured = [[known is not None for known in row] for row in one.accuracy]
        assert measured == [[True], [every != 0, True], [every == 1, every == 1, True]]
        assert one.test() is one.records[-1] and None not in one.records[-1].val_accuracy
        matrices[every] = [record.accuracy_before_end for record in one.records], one.accuracy
    (before, always), (_, at_the_end) = matrices[1], matrices[0]
    assert at_the_end[2] == always[2] and at_the_end[1][1] == always[1][1]
    assert matrices[0][0][2] == before[2]


@pytest.mark.parametrize("method", ["gescl", "ags-cl", "ewc", "hat"])
def test_ending_a_task_changes_only_answers_that_are_tested_before_it(method: str) -> None:
    one = Learner("small", method, training=FAST)
    old = stripes("a")
    one.learn(old)
    answers = []
    end_task = one.strategy.end_task

    def watched(context: TaskContext) -> None:
        for act in (lambda context: None, end_task):
            act(context)
            answers.append([one.predict(old.train.images, "a").probabilities, one.net(old.train.images, 1).detach()])

    one.strategy.end_task = watched  # type: ignore[method-assign]
    one.learn(stripes("b", 3, seed=1))
    changed = [number for number, pair in enumerate(zip(*answers, strict=True)) if not torch.equal(*pair)]
    assert set(changed) <= set(one.strategy.rewritten(2))


def test_nothing_can_be_tested_before_something_is_learned() -> None:
    with pytest.raises(UsageError, match="nothing has been learned"):
        learner().test()


def test_learning_beats_chance_and_fills_the_matrix() -> None:
    one = learner(training=Training(epochs=12, lr=3e-3, batch_size=32))
    one.learn(stripes("a"))
    one.learn(stripes("b", 3, seed=1))
    assert [len(row) for row in one.accuracy] == [1, 2]
    assert one.accuracy[0][0] is not None and one.accuracy[0][0] > 0.6
    assert one.accuracy[1][1] is not None and one.accuracy[1][1] > 0.6
    assert one.average_accuracy == pytest.approx(sum(x for x in one.accuracy[1] if x) / 2)


def test_two_learners_of_one_seed_agree_bit_by_bit_even_when_interleaved() -> None:
    alone = learner()
    for k in range(2):
        alone.learn(stripes(str(k), seed=k))
    one, other = learner(), learner(seed=5)
    for k in range(2):
        torch.manual_seed(k)  # what else goes on in the process must not matter
        one.learn(stripes(str(k), seed=k))
        other.learn(stripes(str(k), seed=k))
    assert_same_weights(one, alone)
    assert one.accuracy == alone.accuracy
    assert not torch.equal(one.net.head(0).weight, other.net.head(0).weight)


def test_learning_leaves_the_process_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    learner().learn(stripes("a"))
    assert torch.equal(torch.rand(4), expected)


def test_old_heads_are_not_touched_by_a_new_task() -> None:
    one = learner()
    one.learn(stripes("a"))
    before = one.net.head(0).weight.clone()
    one.learn(stripes("b", seed=1))
    assert torch.equal(one.net.head(0).weight, before)


def test_frozen_fixes_the_trunk_after_the_first_task() -> None:
    one = learner(Frozen())
    one.learn(stripes("a"))
    before = [p.clone() for p in one.net.trunk.parameters()]
    one.learn(stripes("b", seed=1))
    assert all(torch.equal(p, q) for p, q in zip(before, one.net.trunk.parameters(), strict=True))
    assert one.forgetting == 0


def test_finetune_does_move_the_trunk() -> None:
    one = learner()
    one.learn(stripes("a"))
    before = conv(one, "conv1").weight.clone()
    one.learn(stripes("b", seed=1))
    assert not torch.equal(before, conv(one, "conv1").weight)


def test_joint_trains_old_heads_too_and_asks_for_the_images_after_loading(tmp_path: Path) -> None:
    tasks = [stripes("a"), stripes("b", seed=1), stripes("c", seed=2)]
    one = learner(Joint())
    one.learn(tasks[0])
    before = one.net.head(0).weight.clone()
    one.learn(tasks[1])
    assert not torch.equal(one.net.head(0).weight, before)
    one.save(tmp_path / "model.gescl")
    loaded = Learner.load(tmp_path / "model.gescl")
    with pytest.raises(UsageError, match="needs their images again"):
        loaded.learn(tasks[2])
    loaded.learn(tasks[2], earlier=[tasks[1], tasks[0]])  # in any order
    one.learn(tasks[2])
    assert_same_weights(one, loaded)


def test_joint_tests_old_tasks_with_the_batch_norm_statistics_of_all(tmp_path: Path) -> None:
    trunk = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    one = Learner(trunk, Joint(), training=Training(epochs=8, lr=1e-2, batch_size=32))
    tasks = [stripes(str(k), seed=k) for k in range(3)]
    one.learn(tasks[2], earlier=tasks[:2])
    images = tasks[0].val.images
    with torch.inference_mode():
        features = [one.net.embed(images, task) for task in (0, 2)]
    assert torch.equal(*features)
    one.save(tmp_path / "model.gescl")
    loaded = Learner.load(tmp_path / "model.gescl", network=copy.deepcopy(trunk))
    assert loaded.evaluate(tasks[0]) == one.accuracy[-1][0]
    assert one.accuracy[:2] == [[None], [None, None]]
    assert min(accuracy or 0 for accuracy in one.accuracy[2]) > 0.5, "all of them were learned"


def test_tasks_that_joint_could_not_learn_together_leave_no_trace() -> None:
    class Stops(Observer):
        def end_epoch(self, epoch: Epoch) -> None:
            raise KeyboardInterrupt

    tasks = [stripes(str(k), seed=k) for k in range(3)]
    one = learner(Joint())
    one.learn(tasks[0])
    before = {name: value.clone() for name, value in one.net.state_dict().items()}
    one.observer = Stops()
    with pytest.raises(KeyboardInterrupt):
        one.learn(tasks[2], earlier=tasks[:2])
    assert one.tasks == ["0"]
    after = one.net.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("network", ["small", "ags6"])
def test_going_on_from_a_file_equals_going_on_in_memory(tmp_path: Path, network: str) -> None:
    tasks = [stripes(str(k), seed=k) for k in range(2)]
    one = Learner(network, Finetune(), training=FAST)
    one.learn(tasks[0])
    one.save(tmp_path / "model.gescl")
    loaded = Learner.load(tmp_path / "model.gescl")
    assert_same_weights(one, loaded)
    loaded.learn(tasks[1], earlier=tasks[:1])
    one.learn(tasks[1])
    assert_same_weights(one, loaded)
    assert loaded.accuracy == one.accuracy


class Viewed(nn.Module):
    """Flattens as many networks do; `view` cannot read a tensor with channels last in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv(x))
        return x.view(x.size(0), -1)


def test_a_network_that_flattens_by_view_learns() -> None:
    one = Learner(Viewed(), Finetune(), training=FAST)
    one.learn(stripes("a"))
    one.learn(stripes("b", seed=1))
    assert [len(row) for row in one.accuracy] == [1, 2]


def test_training_images_are_released_after_learning() -> None:
    task = stripes("a")
    images = weakref.ref(task.train.images)
    one = learner()
    one.learn(task)
    del task
    gc.collect()
    assert images() is None
    one.learn(stripes("b", seed=1))
    assert None not in one.accuracy[1]  # test images are kept


def test_a_task_without_test_images_has_null_accuracies() -> None:
    whole = stripes("a")
    one = learner()
    one.learn(Task("a", whole.classes, whole.train, whole.val))
    one.learn(stripes("b", seed=1))
    assert one.accuracy[1][0] is None
    assert one.average_accuracy == one.accuracy[1][1]


def test_best_weights_by_validation_loss_are_restored() -> None:
    seen = Recorder()
    one = learner(observer=seen, training=Training(epochs=11, lr=0.05, batch_size=32, patience=11))
    task = stripes("a")
    one.learn(task)
    best = min(seen.epochs, key=lambda epoch: epoch.val_loss)
    assert best.best and not seen.epochs[-1].best, "the last epoch must not be the best for this test to mean anything"
    assert one.evaluate(task, "val") == pytest.approx(best.val_accuracy)


def test_the_rate_is_divided_on_a_plateau_and_training_stops_below_the_least_rate() -> None:
    seen = Recorder()
    schedule = Training(epochs=50, lr=0.5, batch_size=32, patience=1, lr_factor=10, min_lr=0.04)
    learner(observer=seen, training=schedule).learn(stripes("a"))
    rates = [epoch.lr for epoch in seen.epochs]
    assert rates[0] == 0.5 and rates[-1] == pytest.approx(0.05)
    assert len(rates) < 50


def test_training_is_a_model_or_a_mapping_of_its_settings() -> None:
    one = learner(training={"epochs": 1, "lr": 2e-3})
    assert one.training == Training(epochs=1, lr=2e-3)
    assert one.learn(stripes("a")).epochs == 1
    with pytest.raises(UsageError, match=r"^training\.epochs must be > 0, got -1$"):
        learner(training={"epochs": -1})
    with pytest.raises(UsageError, match=r"unknown key 'epoch'.*epochs"):
        learner(training={"epoch": 1})


def test_a_record_sums_up_the_epochs_of_its_task() -> None:
    seen = Recorder()
    task = stripes("a")
    record = learner(observer=seen).learn(task)
    seconds = [epoch.seconds for epoch in seen.epochs]
    assert record.images_per_second == pytest.approx(3 * len(task.train) / sum(seconds))
    assert (record.epochs, record.train_images) == (3, len(task.train)) == (len(seen.epochs), seen.epochs[0].images)
    assert record.seconds >= sum(seconds)


def test_an_observer_hears_of_tasks_epochs_and_failures() -> None:
    heard: list[str] = []

    class Listener(Observer):
        def begin_task(self, task: str, epochs: int) -> None:
            heard.append(f"begin {task} {epochs}")

        def end_epoch(self, epoch: Epoch) -> None:
            heard.append(f"{epoch.task} {epoch.epoch}")
            if epoch.task == "bad":
                raise KeyboardInterrupt

        def end_task(self, records: Sequence[TaskRecord]) -> None:
            heard.append(f"end {records[-1].name} of {len(records)}")

        def abandon_task(self) -> None:
            heard.append("abandon")

    one = learner(observer=Observers(Observer(), Listener()), training=Training(epochs=2))
    one.learn(stripes("a"))
    with pytest.raises(KeyboardInterrupt):
        one.learn(stripes("bad", seed=1))
    one.learn(stripes("b", seed=1))
    assert ", ".join(heard) == (
        "begin a 2, a 1, a 2, end a of 1, begin bad 2, bad 1, abandon, begin b 2, b 1, b 2, end b of 2"
    )


def test_sgd_learns_too() -> None:
    one = learner(training=Training(optimizer="sgd", lr=0.02, epochs=8, batch_size=32))
    one.learn(stripes("a"))
    assert one.accuracy[0][0] is not None and one.accuracy[0][0] > 0.5


def test_predictions_name_classes_and_probabilities_sum_to_one() -> None:
    task = stripes("a")
    assert task.test is not None
    one = learner(training=Training(epochs=8, lr=3e-3, batch_size=32))
    one.learn(task)
    images = task.test.images
    prediction = one.predict(images, "a")
    assert prediction.probabilities.sum(1) == pytest.approx(np.ones(len(images)), abs=1e-5)
    right = [label == task.classes[k] for label, k in zip(prediction.labels, task.test.labels.tolist(), strict=True)]
    assert sum(right) / len(right) == pytest.approx(one.accuracy[0][0])
    channels_last = one.predict(images.permute(0, 2, 3, 1).numpy(), "a")
    assert channels_last.labels == prediction.labels


def test_a_model_that_keeps_nothing_to_tell_tasks_apart_asks_the_surest_head_and_is_sure_of_nothing() -> None:
    one = learner()
    one.learn(stripes("a"))
    one.learn(stripes("b", 3, seed=1))
    one.recognition = None  # as in a model file of format 1
    images = torch.cat([stripes("a").val.images, stripes("b", 3, seed=1).val.images])
    answers = [one.predict(images, task) for task in one.tasks]
    guesses = one.guess(images)
    assert {guess.task for guess in guesses} == {"a", "b"}, "the test means nothing otherwise"
    for number, guess in enumerate(guesses):
        unsure = []
        for answer in answers:
            p = answer.probabilities[number].numpy()
            unsure.append(-np.sum(p * np.log(p)) / np.log(len(p)))
        chosen = answers[int(np.argmin(unsure))]
        assert (guess.task, guess.label) == (chosen.task, chosen.labels[number])
        assert guess.probability == pytest.approx(float(chosen.probabilities[number].max()) / 2)
    assert all((answer.known == 1).all() for answer in answers)
    one.learn(stripes("c", seed=2))
    assert one.recognition is None, "nothing is known of the tasks before"


def test_a_failure_while_learning_leaves_the_learner_as_it_was() -> None:
    one = learner()
    one.learn(stripes("a"))
    before = {name: tensor.clone() for name, tensor in weights(one).items()}
    one.observer = Recorder(stop_in=2)
    with pytest.raises(KeyboardInterrupt):
        one.learn(stripes("b", seed=1))
    assert one.tasks == ["a"]
    assert weights(one).keys() == before.keys()
    assert all(torch.equal(tensor, weights(one)[name]) for name, tensor in before.items())
    one.observer = Observer()
    one.learn(stripes("b", seed=1))
    undisturbed = learner()
    undisturbed.learn(stripes("a"))
    undisturbed.learn(stripes("b", seed=1))
    assert_same_weights(one, undisturbed)


def with_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


@pytest.mark.parametrize("method", ["gescl", "finetune", "hat"])
@pytest.mark.parametrize("moment", ["in training", "at the end"])
def test_a_failure_leaves_every_tasks_batch_norm_statistics_and_gates_as_they_were(
    method: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Learner(with_norm(), method, training=FAST)
    tasks = [stripes(str(k), seed=k) for k in range(3)]
    for task in tasks[:2]:
        one.learn(task)
    images = tasks[2].val.images
    before = [one.predict(images, name).probabilities for name in one.tasks]
    one.predict(images, "0")  # an old task's statistics are in place when learning begins

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    if moment == "in training":
        one.observer = Recorder(stop_in=1)
    else:
        monkeypatch.setattr("gescl.learner.fit_temperature", fail)  # the last thing that is done
    with pytest.raises(KeyboardInterrupt):
        one.learn(tasks[2])
    after = [one.predict(images, name).probabilities for name in one.tasks]
    assert all(torch.equal(*both) for both in zip(before, after, strict=True))


def test_a_first_task_that_failed_leaves_no_trace() -> None:
    trunk = with_norm()
    one, undisturbed = (Learner(copy.deepcopy(trunk), "hat", training=FAST) for _ in range(2))
    one.observer = Recorder(stop_in=1)
    with pytest.raises(KeyboardInterrupt):
        one.learn(stripes("failed", seed=3, shape=(3, 12, 12)))
    one.observer = Observer()
    for each in (one, undisturbed):
        each.learn(stripes("a"))
    assert_same_weights(one, undisturbed)


def test_a_module_that_another_learner_had_is_taken_over_without_its_gates(tmp_path: Path) -> None:
    trunk, images = with_norm(), stripes("c").val.images
    one = Learner(trunk, "hat", training=FAST)
    one.learn(stripes("a"))
    one.learn(stripes("b", seed=1))
    expected = one.predict(images, "a").probabilities
    one.save(tmp_path / "model.gescl")
    for network in (copy.deepcopy(trunk), trunk):
        again = Learner.load(tmp_path / "model.gescl", network=network)
        assert torch.equal(again.predict(images, "a").probabilities, expected)


def test_batch_norm_statistics_of_old_tasks_count_as_carried() -> None:
    one = Learner(with_norm(), "finetune", training=FAST)
    one.learn(stripes("a"))
    assert one.state_bytes == 0
    one.learn(stripes("b", seed=1))
    assert one.state_bytes == 2 * 8 * 4 + 8, "mean and variance of eight channels, and a count"


def test_images_that_a_model_file_could_not_hold_are_refused_before_learning() -> None:
    images = np.zeros((8, 1, 1032, 4), np.uint8)
    task = Task.from_arrays("long", images, np.arange(8) % 2, classes=["a", "b"])
    with pytest.raises(DataError, match=r"'long': images are 1×1032×4 .*at most 1024 pixels"):
        learner().learn(task)


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    one = learner()
    one.learn(stripes("a"))
    one.save(tmp_path / "model.gescl")
    whole = (tmp_path / "model.gescl").read_bytes()
    one.net.head(0).weight.data[0, 0] = torch.nan
    with pytest.raises(DataError, match=r"is not written.*heads\.0\.weight holds NaN"):
        one.save(tmp_path / "model.gescl")
    assert (tmp_path / "model.gescl").read_bytes() == whole


def test_a_loss_that_explodes_is_an_error_not_a_result() -> None:
    with pytest.raises(DataError, match="no longer a finite number"):
        learner(training=Training(optimizer="sgd", lr=1e18, epochs=3, batch_size=32)).learn(stripes("a"))


def test_mistakes_are_named() -> None:
    one = learner()
    with pytest.raises(UsageError, match="nothing has been learned yet"):
        one.predict(np.zeros((1, 3, 16, 16), np.uint8), "a")
    with pytest.raises(UsageError, match="nothing has been learned yet"):
        one.capacity()
    with pytest.raises(UsageError, match="nothing has been learned yet"):
        one.guess(np.zeros((1, 3, 16, 16), np.uint8))
    one.learn(stripes("a"))
    with pytest.raises(UsageError, match="learned already"):
        one.learn(stripes("a"))
    with pytest.raises(UsageError, match="unknown task 'b'"):
        one.predict(np.zeros((1, 3, 16, 16), np.uint8), "b")
    with pytest.raises(DataError, match=r"3×12×12.*3×16×16"):
        one.learn(stripes("c", shape=(3, 12, 12)))
    with pytest.raises(DataError, match="1×16×16"):
        one.predict(np.zeros((1, 16, 16), np.uint8), "a")
    with pytest.raises(UsageError, match="unknown device 'nowhere'; known are auto, cpu"):
        learner(device="nowhere")
    with pytest.raises(UnavailableError, match="unknown device 'meta'"):
        learner(device="meta")
    with pytest.raises(UnavailableError, match="device 'cuda:99' is not available here"):
        learner(device="cuda:99")
    with pytest.raises(UsageError, match="did you mean 'frozen'"):
        learner("frozn")


def test_a_file_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        Learner.load(tmp_path / "none.gescl")
    (tmp_path / "text.gescl").write_text("not a model")
    with pytest.raises(DataError, match="not a file of gescl's"):
        Learner.load(tmp_path / "text.gescl")
    one = learner()
    one.learn(stripes("a"))
    one.save(tmp_path / "model.gescl")
    whole = (tmp_path / "model.gescl").read_bytes()
    (tmp_path / "half.gescl").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="damaged"):
        Learner.load(tmp_path / "half.gescl")
    (tmp_path / "odd.gescl").write_bytes(whole.replace(b'\\"network\\": \\"small\\"', b'\\"network\\": \\"ags6\\" '))
    with pytest.raises(DataError, match="damaged"):
        Learner.load(tmp_path / "odd.gescl")
