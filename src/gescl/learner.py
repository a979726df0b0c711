"""Learner: one fixed-size CNN that learns task after task from data that is then thrown away."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import distributed, metrics
from .batches import Augment
from .calibration import fit_temperature, surest
from .checkpoints import Checkpoints, SavedState, Snapshot, ask_for_room, remove_finished
from .errors import DataError, DivergedError, UnavailableError, UsageError, unknown
from .maths.moments import pixel_moments
from .methods import Capacity, GesclDistill, Method, Strategy, method_class, method_name
from .methods.base import TaskContext
from .model_file import LARGEST_SIDE, Header, SavedModel, naming_backup, read_model, write_model
from .networks.cnn import build_trunk
from .networks.external import load_weights
from .networks.multihead import MultiHeadNet
from .observers import Observer, ProgressBar
from .plugins import is_own
from .randomness import seeded
from .recognition import Recognition, sample
from .records import Guess, Prediction, TaskRecord, filled
from .restoring import restore
from .runtime import find_device, images_at_once
from .store import digest
from .streams.arrays import as_images
from .streams.task import Split, Task
from .training import Training, learn_task, validate
from .validation import validated


class Learner:
    """One network, one method, task after task.

        learner = Learner(network="paper3", method=Gescl())
        for task in load_stream("digits"):
            learner.learn(task)
        learner.predict(images, task="8-9").labels

    `network` is the name of a shipped one, of one of timm's ("timm:resnet18"), or a trunk of your own: an `nn.Module`
    from images to flat features. `weights` is a safetensors file to start from instead of random weights. `training`
    is a `Training` or a mapping of its settings. `observer` follows along; a progress bar unless given. `augment`
    changes training images, a batch at a time (uint8, N×C×H×W, on the device); it is not saved: set it after loading.
    While it lives, a learner keeps the validation and test images of its tasks to fill the accuracy matrix; they are
    not saved with it, and training images are never kept (except by `joint`).
    """

    def __init__(
        self,
        network: str | nn.Module = "paper3",
        method: Method | str | None = None,
        *,
        training: Training | Mapping[str, Any] | None = None,
        device: str = "auto",
        seed: int = 0,
        weights: str | Path | None = None,
        observer: Observer | None = None,
        augment: Augment | None = None,
    ) -> None:
        if isinstance(method, str):
            method = method_class(method)()
        if isinstance(training, Mapping):
            training = validated(Training, training, "training.")
        self.network = network
        self.method: Method = method or GesclDistill()
        self.training = training or Training()
        self.device = find_device(device)
        self.seed = seed
        self.weights = weights
        self.observer = observer or ProgressBar()
        self.augment = augment
        self.records: list[TaskRecord] = []
        self._net: MultiHeadNet | None = None
        self._strategy: Strategy[Any] | None = None
        self._held_out: dict[str, dict[str, Split | None]] = {}
        #: What tells which task an image belongs to; None for a model of a version that did not keep it.
        self.recognition: Recognition | None = None
        #: Of the newest task, until it is saved.
        self._checkpoints: Checkpoints | None = None
        #: What these are known by; empty if it was learned without.
        self.fingerprint = ""

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks learned, in order."""
        return [record.name for record in self.records]

    @property
    def net(self) -> MultiHeadNet:
        """The network; it takes its size from the first task."""
        if self._net is None:
            raise UsageError("nothing has been learned yet: the network is built for the first task's images")
        return self._net

    @property
    def strategy(self) -> Strategy[Any]:
        """The method at work on the network."""
        if self._strategy is None:
            raise UsageError("nothing has been learned yet: the method starts with the first task")
        return self._strategy

    @property
    def accuracy(self) -> list[list[float | None]]:
        """The matrix so far: row t holds the accuracies on tasks 0 … t after learning task t."""
        return [list(record.accuracy) for record in self.records]

    @property
    def average_accuracy(self) -> float | None:
        return metrics.average_accuracy(self.accuracy)

    @property
    def forgetting(self) -> float | None:
        return metrics.forgetting(self.accuracy)

    def capacity(self) -> Capacity | None:
        """Important and free filters per layer; None for a method that does not tell them apart."""
        return self.strategy.capacity()

    @property
    def state_bytes(self) -> int:
        """Bytes carried from task to task besides the network: the method's, and old tasks' gates and statistics."""
        carried = [*self.strategy.state().values(), *self.net.task_state().values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in carried)

    def learn(self, task: Task, earlier: Sequence[Task] = (), *, checkpoint: str | Path | None = None) -> TaskRecord:
        """Learn a task. Its training images are not needed afterwards.

        `earlier` are tasks learned before whose test images are to be tested again (after loading, or for `joint`,
        which also trains on them, and learns with this task those of them that it does not know yet).
        If learning fails or is interrupted, the learner is as it was before. With `checkpoint`, a file, the same call
        then continues from the last epoch that was finished; the file is removed when the learner is saved.
        """
        self._check(task, earlier)
        if self._net is None:
            self._start(task, earlier)
        net, strategy, learned = self.net, self.strategy, len(self.records)
        checkpoints = None if checkpoint is None else self._checkpoints_in(Path(checkpoint), task, earlier)
        if checkpoints is not None:
            model = sum(tensor.nbytes for tensor in net.state_dict().values()) + self.state_bytes
            ask_for_room(checkpoints.path, model)
            remove_finished(checkpoints.path, self.fingerprint)
        held_out = dict(self._held_out)
        task_state = net.task_state()  # puts the newest task's statistics in place, to be copied with the weights
        before = Snapshot([*net.trunk.parameters(), *net.trunk.buffers(), *net.heads.parameters()])
        state_before = {name: tensor.clone() for name, tensor in strategy.state().items()}
        for known in (*earlier, task):
            if known.name not in self.tasks:
                with seeded(self.seed, len(self.records), "head"):
                    net.add_head(len(known.classes))
                self.records.append(TaskRecord.unlearned(known.name, known.classes, len(known.val), len(self.records)))
        try:
            self.observer.begin_task(task.name, self.training.for_images(len(task.train)).epochs)
            record, recognition = self._learn(
                task, sorted(earlier, key=lambda known: self.index(known.name)), checkpoints
            )
        except BaseException as error:
            self.observer.abandon_task()
            del self.records[learned:]
            net.drop_heads(learned, task_state)
            before.restore()
            strategy.load_state(state_before)
            self._held_out = held_out
            if not self.records:
                self._net = self._strategy = None  # they have the failed task's size and pixel moments
            if checkpoints is not None:
                checkpoints.remove() if isinstance(error, DivergedError) else checkpoints.write()
            raise
        self.records[-1], self._checkpoints, self.recognition = record, checkpoints, recognition
        self.fingerprint = checkpoints.fingerprint if checkpoints is not None else ""
        self.observer.end_task(self.records)
        return record

    def _learn(
        self, task: Task, earlier: Sequence[Task], checkpoints: Checkpoints | None
    ) -> tuple[TaskRecord, Recognition | None]:
        net, strategy, index = self.net, self.strategy, len(self.records) - 1
        for known in (*earlier, task):
            self._held_out[known.name] = {"val": known.val, "test": known.test}
        every = self.training.test_every
        due = range(index + 1) if every and (index + 1) % every == 0 else range(index, index + 1)
        before_end: tuple[float | None, ...] = ()
        testing = 0.0

        def test_before_end() -> None:
            nonlocal before_end, testing
            started = time.perf_counter()
            before_end = self._row("test", [number for number in strategy.rewritten(index + 1) if number in due])
            testing = time.perf_counter() - started

        resume = None if checkpoints is None else checkpoints.read()
        started = time.perf_counter() - (resume.header["seconds"] if resume else 0)

        def keep(state: SavedState) -> None:
            if checkpoints is not None:
                checkpoints.offer(replace(state, header={**state.header, "seconds": time.perf_counter() - started}))

        epochs = []
        for epoch in learn_task(
            net, strategy, task, self.training.for_images(len(task.train)), seed=self.seed, earlier=earlier,
            augment=self.augment, before_end=test_before_end, resume=resume, on_state=keep,
        ):  # fmt: skip
            epochs.append(epoch)
            self.observer.end_epoch(epoch)
        seconds = time.perf_counter() - started - testing
        self._check_equal_weights(task)
        accuracy = self._row("test", due)
        capacity = strategy.capacity()
        record = TaskRecord(
            name=task.name,
            classes=task.classes,
            train_images=epochs[0].images,
            epochs=len(epochs),
            seconds=seconds,
            images_per_second=sum(epoch.images for epoch in epochs) / sum(epoch.seconds for epoch in epochs),
            accuracy=accuracy,
            accuracy_before_end=filled(before_end, accuracy),
            val_accuracy=self._row("val", due),
            free_filters=capacity.free if capacity else None,
            important_filters=capacity.important if capacity else None,
            val_images=len(task.val),
            temperature=fit_temperature(self._logits(task.val, index), task.val.labels),
            retries=sum(epoch.retries for epoch in epochs),
        )
        return record, self._recognising([*earlier, task], record.temperature)

    def _recognising(self, tasks: Sequence[Task], temperature: float) -> Recognition | None:
        """What tells tasks apart, with those of these tasks that are new; None if nothing is known of earlier ones."""
        found = self.recognition or Recognition.start(self.net.shape[0])
        for task in sorted(tasks, key=lambda known: self.index(known.name)):
            index = self.index(task.name)
            if index == len(found.means):
                train, val = (some[sample(some.labels, len(task.classes))] for some in (task.train, task.val))
                found = found.with_task(train.images, train.labels, len(task.classes))
                temperatures = [record.temperature for record in self.records[:index]]
                heads = self._log_probabilities(val.images, [*temperatures, temperature])
                found = found.calibrated(val.images, val.labels, heads)
        return found if len(found.means) == len(self.records) else None

    def _check_equal_weights(self, task: Task) -> None:
        """Several processes do the same with the same sums: their weights are equal unless their machines differ."""
        if distributed.processes() == 1:
            return
        tensors = {**self.net.state_dict(), **{f"method.{name}": t for name, t in self.strategy.state().items()}}
        if not distributed.same_everywhere(digest("", {name: tensor.cpu() for name, tensor in tensors.items()})):
            raise UnavailableError(
                f"task {task.name!r}: the processes have come to different weights; train on machines with the same "
                "kind of CPU and GPU, versions and number of threads"
            )

    def forget(self, task: str) -> None:
        """Forget a task: drop its head and its history, and free the filters that no other task needs.

        The answers of all other tasks stay the same, bit by bit. What the trunk has learned from the task stays where
        others use it.
        """
        index = self.index(task)
        if len(self.records) == 1:
            raise UsageError(f"{task!r} is the only task: start a new learner instead")
        self.net.drop_head(index)
        self.recognition = self.recognition and self.recognition.without_task(index)
        self._held_out.pop(task, None)
        self.records = [record.without(index) for record in self.records if record.name != task]
        newest = len(self.records) - 1
        context = TaskContext(newest, self.tasks[newest], self.seed, self.training.batch_size, source=None)
        self.strategy.forget_task(index, context)

    def rename(self, task: str, name: str) -> None:
        """Give a learned task another name."""
        index = self.index(task)
        check_name(name, self.tasks)
        if task in self._held_out:
            self._held_out[name] = self._held_out.pop(task)
        self.records[index] = replace(self.records[index], name=name)

    def _checkpoints_in(self, path: Path, task: Task, earlier: Sequence[Task]) -> Checkpoints:
        """The checkpoints of this task, learned from these images in this way, starting from what is known now."""
        new = [task, *(other for other in earlier if other.name not in self.tasks)]
        how = {
            "gescl": version("gescl"),
            "network": self.network if isinstance(self.network, str) else qualified_name(self.network),
            "method": {"name": method_name(self.method), **self.method.model_dump()},
            "training": self.training.model_dump(exclude={"checkpoint_seconds", "test_every"}),
            "augment": getattr(self.augment, "__qualname__", type(self.augment).__qualname__),
            "seed": self.seed,
            "tasks": [*self.tasks, *((known.name, known.classes) for known in new)],
        }
        start = {"net": self.net.state_dict(), "task": self.net.task_state(), "method": self.strategy.state()}
        tensors = {f"{part}.{name}": tensor.cpu() for part, state in start.items() for name, tensor in state.items()}
        for known in new:
            for kind, split in (("train", known.train), ("val", known.val)):
                tensors |= {f"{known.name}.{kind}.{part}": tensor for part, tensor in split.identity().items()}
        fingerprint = digest(json.dumps(how), tensors)
        return Checkpoints(path, fingerprint, self.training.checkpoint_seconds, self.observer.checkpoint)

    def predict(self, images: Any, task: str) -> Prediction:
        """Labels and probabilities of images (uint8, N×C×H×W or N×H×W×C, numpy or torch) for a learned task."""
        index = self.index(task)
        batch, record = self._images(images), self.records[index]
        answers = (self._logits(Split(batch, torch.zeros(len(batch))), index) / record.temperature).log_softmax(1)
        known = torch.ones(len(batch)) if self.recognition is None else self.recognition.known(batch, index, answers)
        return Prediction([record.classes[k] for k in answers.argmax(1).tolist()], answers.exp(), task, known)

    def guess(self, images: Any) -> list[Guess]:
        """Labels of images whose task is not known, each with the probability that task and class are right.

        It is low for images that resemble no task learned. A model of a version that kept nothing to tell tasks apart
        asks the head that is most certain, and says that it is no more certain of the task than chance.
        """
        self.index(self.tasks[0] if self.records else "")
        batch = self._images(images)
        heads = self._log_probabilities(batch, [record.temperature for record in self.records])
        places = [(record.name, label) for record in self.records for label in record.classes]
        if self.recognition is None:
            every = torch.cat([head.exp() / len(heads) for head in heads], 1)
            owner = torch.cat([torch.full((head.shape[1],), task) for task, head in enumerate(heads)])
            chosen = every.masked_fill(owner != surest([head.exp() for head in heads]).unsqueeze(1), -1)
        else:
            chosen = self.recognition.posterior(batch, heads)[:, :-1]
        probabilities, numbers = chosen.max(1)
        return [
            Guess(places[number][0], places[number][1], probability)
            for number, probability in zip(numbers.tolist(), probabilities.tolist(), strict=True)
        ]

    def _images(self, images: Any) -> Tensor:
        batch = as_images(images, "predict")
        self._check_shape(batch.shape[1:], "predict")
        return batch

    @torch.inference_mode()
    def _logits(self, split: Split, index: int) -> Tensor:
        self.net.eval()
        parts = split.in_parts(images_at_once(self.device))
        return torch.cat([self.net(part.images.to(self.device), index).cpu() for part in parts])

    @torch.inference_mode()
    def _log_probabilities(self, images: Tensor, temperatures: Sequence[float]) -> list[Tensor]:
        """What every head says of images, each with its temperature; of as many heads as there are temperatures."""
        self.net.eval()
        some = torch.split(images, images_at_once(self.device))
        parts = [self.net.all_heads(part.to(self.device), len(temperatures)) for part in some]
        logits = [torch.cat(head).cpu() for head in zip(*parts, strict=True)]
        return [(own / degrees).log_softmax(1) for own, degrees in zip(logits, temperatures, strict=True)]

    def evaluate(self, task: Task, split: Literal["train", "val", "test"] = "test") -> float | None:
        """Accuracy on a learned task's images; None if there are none."""
        images: Split | None = getattr(task, split)
        index = self.index(task.name)
        if images is None:
            return None
        self._check_shape(images.shape, f"task {task.name!r}")
        return validate(self.net, [(index, images)])[1]

    def save(self, path: str | Path, *, backup: bool = True) -> None:
        """Write the model to one file: weights, heads, class names, method and its state, history. No image.

        The file is replaced in one move. With `backup` the previous version stays as `path.bak`.
        """
        own = not isinstance(self.network, str) or is_own(self.network)
        header = Header(
            network=qualified_name(self.network) if isinstance(self.network, nn.Module) else self.network,
            own_network=own,
            shape=self.net.shape,
            method={"name": method_name(self.method), **self.method.model_dump(mode="json")},
            training=self.training,
            seed=self.seed,
            tasks=tuple(self.records),
            fingerprint=self.fingerprint,
        )
        recognition = self.recognition.state() if self.recognition else {}
        model = SavedModel(header, self.net.state_dict(), self.net.task_state(), self.strategy.state(), recognition)
        write_model(Path(path), model, backup=backup)
        if self._checkpoints is not None:
            self._checkpoints.remove()
            self._checkpoints = None

    @staticmethod
    def load(
        path: str | Path,
        network: str | nn.Module | None = None,
        *,
        method: type[Method] | None = None,
        device: str = "auto",
        observer: Observer | None = None,
    ) -> Learner:
        """The learner that was saved there, ready to learn the next task.

        A model of your own network needs `network`: a trunk of the same structure, whose weights are overwritten, or
        the name `package.module:factory` that the model remembers. One of your own method needs `method`, its class.
        Code is never run because a file names it.
        """
        path, place = Path(path), find_device(device)
        saved = read_model(path)
        with naming_backup(path):
            found = restore(path, saved, network, method, place)
        header = saved.header
        learner = Learner(
            header.network if network is None else network,
            found.strategy.method,
            training=header.training,
            device=device,
            seed=header.seed,
            observer=observer,
        )
        learner._net, learner._strategy, learner.recognition = found.net, found.strategy, found.recognition
        learner.records.extend(header.tasks)
        learner.fingerprint = header.fingerprint
        return learner

    def _start(self, task: Task, earlier: Sequence[Task] = ()) -> None:
        if max(task.shape) > LARGEST_SIDE:
            raise DataError(
                f"task {task.name!r}: images are {'×'.join(map(str, task.shape))} (channels×height×width); "
                f"a side has at most {LARGEST_SIDE} pixels: make them smaller"
            )
        with seeded(self.seed, "network"):
            trunk = build_trunk(self.network, task.shape) if isinstance(self.network, str) else self.network
        if self.weights is not None:
            load_weights(trunk, Path(self.weights))
        mean, std = pixel_moments(part.images for known in (*earlier, task) for part in known.train.in_parts(4096))
        net = MultiHeadNet(trunk.to(self.device), task.shape, mean.to(self.device), std.to(self.device))
        self._net, self._strategy = net, self.method.strategy(net)  # both or, if the method refuses it, neither

    def test(self) -> TaskRecord:
        """Test all tasks whose images are here; the newest record is then complete, whatever `training.test_every`."""
        if not self.records:
            raise UsageError("nothing has been learned yet")
        every, record = range(len(self.records)), self.records[-1]
        accuracy = self._row("test", every)
        self.records[-1] = replace(
            record,
            accuracy=accuracy,
            accuracy_before_end=filled(record.accuracy_before_end, accuracy),
            val_accuracy=self._row("val", every),
        )
        return self.records[-1]

    def _row(self, kind: Literal["val", "test"], due: Collection[int]) -> tuple[float | None, ...]:
        """Accuracy on the held-out images of each task that is due; None where there are none (any more)."""
        splits = [self._held_out.get(name, {}).get(kind) for name in self.tasks]
        return tuple(
            validate(self.net, [(index, split)])[1] if split is not None and index in due else None
            for index, split in enumerate(splits)
        )

    def index(self, task: str) -> int:
        """The number of the learned task of that name, counted from 0."""
        if task not in self.tasks:
            raise UsageError(unknown("task", task, self.tasks) if self.tasks else "nothing has been learned yet")
        return self.tasks.index(task)

    def _check(self, task: Task, earlier: Sequence[Task]) -> None:
        if task.name in self.tasks:
            raise UsageError(
                f"task {task.name!r} has been learned already, and its images are gone; "
                "learn new classes or images under a new name"
            )
        for known in earlier:
            if not self.method.sees_earlier:
                self.index(known.name)
        if self._net is not None:
            self._check_shape(task.shape, f"task {task.name!r}")

    def _check_shape(self, shape: Sequence[int], where: str) -> None:
        if tuple(shape) != self.net.shape:
            raise DataError(
                f"{where}: images are {'×'.join(map(str, shape))} (channels×height×width), "
                f"this network was built for {'×'.join(map(str, self.net.shape))}"
            )


def check_name(name: str, taken: Sequence[str] = ()) -> None:
    """Refuse a name that a task cannot have, or that another has."""
    if not name or "/" in name or "\\" in name:
        raise UsageError(f"a task's name must be non-empty and hold no slash, got {name!r}")
    if name in taken:
        raise UsageError(f"there is a task {name!r} already")


def qualified_name(network: nn.Module) -> str:
    return f"{type(network).__module__}:{type(network).__qualname__}"
