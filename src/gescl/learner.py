"""Learner: one fixed-size CNN that learns task after task from data that is then thrown away."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import metrics
from .calibration import fit_temperature, surest
from .errors import DataError, UnavailableError, UsageError, unknown
from .methods import Gescl, Method, Strategy, TaskContext, method_class
from .methods.base import Capacity
from .model_file import LARGEST_SIDE, load_model, save_model
from .networks.cnn import Shape, build_trunk
from .networks.external import load_weights
from .networks.multihead import MultiHeadNet
from .randomness import seeded
from .records import Guess, Prediction, TaskRecord
from .runs.progress import epoch_bar
from .streams.task import Split, Task, as_images
from .training import Epoch, Snapshot, Training, train, validate


class Learner:
    """One network, one method, task after task.

        learner = Learner(network="paper3", method=Gescl())
        for task in load_stream("digits"):
            learner.learn(task)
        learner.predict(images, task="8-9").labels

    `network` is the name of a shipped one, of one of timm's ("timm:resnet18"), or a trunk of your own: an `nn.Module`
    from images to flat features. `weights` is a safetensors file that it starts from, drawn weights unless given.
    While it lives, a learner keeps the validation and test images of its tasks to fill the accuracy matrix; they are
    not saved with it, and training images are never kept (except by `joint`).
    """

    def __init__(
        self,
        network: str | nn.Module = "paper3",
        method: Method | str | None = None,
        *,
        training: Training | None = None,
        device: str = "auto",
        seed: int = 0,
        weights: str | Path | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
        progress: bool = True,
    ) -> None:
        if isinstance(method, str):
            method = method_class(method)()
        self.network = network
        self.method: Method = method or Gescl()
        self.training = training or Training()
        self.device = _device(device)
        self.seed = seed
        self.weights = weights
        self.on_epoch = on_epoch
        self.progress = progress
        self.records: list[TaskRecord] = []
        self._net: MultiHeadNet | None = None
        self._strategy: Strategy[Any] | None = None
        self._held_out: dict[str, dict[str, Split | None]] = {}

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

    def learn(self, task: Task, earlier: Sequence[Task] = ()) -> TaskRecord:
        """Learn a task. Its training images are not needed afterwards.

        `earlier` are tasks learned before whose test images shall be tested again (after loading, or for `joint`,
        which also trains on them). If learning fails or is interrupted, the learner is as it was before.
        """
        self._check(task, earlier)
        if self._net is None:
            self._start(task)
        net, strategy, index = self.net, self.strategy, len(self.records)
        held_out = dict(self._held_out)
        task_state = net.task_state()  # puts the newest task's statistics in place, to be copied with the weights
        before = Snapshot([*net.trunk.parameters(), *net.trunk.buffers(), *net.heads.parameters()])
        state_before = {name: tensor.clone() for name, tensor in strategy.state().items()}
        with seeded(self.seed, index, "head"):
            net.add_head(len(task.classes))
        try:
            record = self._learn(task, sorted(earlier, key=lambda known: self.index(known.name)))
        except BaseException:
            net.drop_head(task_state)
            before.restore()
            strategy.load_state(state_before)
            self._held_out = held_out
            if not self.records:
                self._net = self._strategy = None  # they have the failed task's size and pixel moments
            raise
        self.records.append(record)
        return record

    def postpone(self, task: Task) -> TaskRecord:
        """Give a task its head and its place, and leave learning to a later `learn(…, earlier=[…])` of `joint`."""
        self._check(task, ())
        if self._net is None:
            self._start(task)
        with seeded(self.seed, len(self.records), "head"):
            self.net.add_head(len(task.classes))
        nothing: tuple[float | None, ...] = (None,) * (len(self.records) + 1)
        record = TaskRecord(task.name, task.classes, 0, 0, 0.0, 0.0, nothing, nothing, nothing, None, None)
        self.records.append(record)
        return record

    def _learn(self, task: Task, earlier: Sequence[Task]) -> TaskRecord:
        net, strategy, index = self.net, self.strategy, len(self.records)
        for known in (*earlier, task):
            self._held_out[known.name] = {"val": known.val, "test": known.test}
        context = TaskContext(
            index=index,
            task=task,
            seed=self.seed,
            batch_size=self.training.batch_size,
            train=[(index, task.train)],
            val=[(index, task.val)],
            earlier=earlier,
        )
        names = [*self.tasks, task.name]
        started = time.perf_counter()
        with epoch_bar(task.name, self.training.epochs, self.progress) as bar:
            epochs = train(net, strategy, context, self.training, report=lambda epoch: self._report(bar, epoch))
        trained = time.perf_counter()
        before_end = self._row(names, "test") if strategy.rewrites else None
        tested = time.perf_counter()
        strategy.end_task(context)
        seconds = time.perf_counter() - started - (tested - trained)
        accuracy = self._row(names, "test")
        capacity = strategy.capacity()
        return TaskRecord(
            name=task.name,
            classes=task.classes,
            train_images=sum(len(split) for _, split in context.train),
            epochs=len(epochs),
            seconds=seconds,
            images_per_second=sum(e.images_per_second * e.seconds for e in epochs) / sum(e.seconds for e in epochs),
            accuracy=accuracy,
            accuracy_before_end=before_end or accuracy,
            val_accuracy=self._row(names, "val"),
            free_filters=capacity.free if capacity else None,
            important_filters=capacity.important if capacity else None,
            temperature=fit_temperature(self._logits(task.val.images, index), task.val.labels),
        )

    def _report(self, bar: Callable[[Epoch], None], epoch: Epoch) -> None:
        bar(epoch)
        if self.on_epoch:
            self.on_epoch(epoch)

    def predict(self, images: Any, task: str) -> Prediction:
        """Labels and probabilities of images (uint8, N×C×H×W or N×H×W×C, numpy or torch) for a learned task."""
        index = self.index(task)
        probabilities = self._probabilities(self._images(images), index)
        classes = self.records[index].classes
        return Prediction([classes[k] for k in probabilities.argmax(1).tolist()], probabilities, task)

    def guess(self, images: Any) -> list[Guess]:
        """What images show when nobody says which task they belong to: each asks the head that is surest of it.

        It is a guess: every head knows only its own task's images, and some are sure of what they have never seen.
        """
        self.index(self.tasks[0] if self.records else "")
        batch = self._images(images)
        heads = [self._probabilities(batch, index) for index in range(len(self.records))]
        guesses = []
        for image, head in enumerate(surest(heads).tolist()):
            probability, label = heads[head][image].max(0)
            record = self.records[head]
            guesses.append(Guess(record.name, record.classes[int(label)], float(probability)))
        return guesses

    def _images(self, images: Any) -> Tensor:
        batch = as_images(images, "predict")
        self._check_shape(batch.shape[1:], "predict")
        return batch

    def _probabilities(self, images: Tensor, index: int) -> Tensor:
        temperature = self.records[index].temperature
        return (self._logits(images, index) / temperature).softmax(1)

    @torch.inference_mode()
    def _logits(self, images: Tensor, index: int) -> Tensor:
        self.net.eval()
        return torch.cat([self.net(part.to(self.device), index).cpu() for part in torch.split(images, 1024)])

    def evaluate(self, task: Task, split: Literal["train", "val", "test"] = "test") -> float | None:
        """Accuracy on a learned task's images; None if there are none."""
        images: Split | None = getattr(task, split)
        index = self.index(task.name)
        if images is None:
            return None
        self._check_shape(images.images.shape[1:], f"task {task.name!r}")
        return validate(self.net, [(index, images)])[1]

    def save(self, path: str | Path, *, backup: bool = True) -> None:
        """Write the model to one file: weights, heads, class names, method and its state, history. No image.

        The file is whole or as it was. With `backup` the one that was there before stays beside it, as `path.bak`.
        """
        save_model(self, Path(path), backup=backup)

    @staticmethod
    def load(
        path: str | Path,
        network: nn.Module | None = None,
        *,
        method: type[Method] | None = None,
        device: str = "auto",
        progress: bool = True,
    ) -> Learner:
        """The learner that was saved there, ready to learn the next task.

        A model of your own class needs `network`: a trunk of the same structure, whose weights are overwritten; one
        of your own method needs `method`, its class.
        """
        return load_model(Path(path), network, method, device=device, progress=progress)

    def _start(self, task: Task) -> None:
        if max(task.shape) > LARGEST_SIDE:
            raise DataError(
                f"task {task.name!r}: images are {'×'.join(map(str, task.shape))} (channels×height×width); "
                f"a side has at most {LARGEST_SIDE} pixels: make them smaller"
            )
        with seeded(self.seed, "network"):
            trunk = build_trunk(self.network, task.shape) if isinstance(self.network, str) else self.network
        if self.weights is not None:
            load_weights(trunk, Path(self.weights))
        mean, std = _pixel_moments(task.train.images)
        self.attach(trunk, task.shape, mean, std)

    def attach(self, trunk: nn.Module, shape: Shape, mean: Tensor, std: Tensor) -> None:
        """Take this trunk, for images of this shape and these pixel moments: what learning or loading begins with."""
        self._net = MultiHeadNet(trunk.to(self.device), shape, mean.to(self.device), std.to(self.device))
        self._strategy = self.method.strategy(self._net)

    def _row(self, names: Sequence[str], kind: str) -> tuple[float | None, ...]:
        """Accuracy on each task's held-out images; None where there are none (any more)."""
        splits = [self._held_out.get(name, {}).get(kind) for name in names]
        return tuple(
            validate(self.net, [(index, split)])[1] if split is not None else None for index, split in enumerate(splits)
        )

    def index(self, task: str) -> int:
        """Which of the tasks learned, counted from 0, has that name."""
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
            self.index(known.name)
        if self._net is not None:
            self._check_shape(task.train.images.shape[1:], f"task {task.name!r}")

    def _check_shape(self, shape: Sequence[int], where: str) -> None:
        if tuple(shape) != self.net.shape:
            raise DataError(
                f"{where}: images are {'×'.join(map(str, shape))} (channels×height×width), "
                f"this network was built for {'×'.join(map(str, self.net.shape))}"
            )


def _pixel_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, in steps of 0 … 255."""
    total = torch.zeros(images.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for part in torch.split(images, 4096):
        pixels = part.double()
        total += pixels.sum((0, 2, 3))
        squares += pixels.square().sum((0, 2, 3))
    count = images.numel() / images.shape[1]
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    return mean.float(), torch.where(std > 0, std, torch.ones_like(std)).float()


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = "meta"  # torch's word for nowhere
    if kind == "meta":
        raise UnavailableError(f"unknown device {name!r}; known are auto, cpu, cuda, cuda:1, mps")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, ImportError) as error:
        raise UnavailableError(f"device {name!r} is not available here: {str(error).splitlines()[0]}") from error
