"""Run a recipe for a seed: records, checkpoints, resume.

A run lives in `OUT/NAME/METHOD/seed-N/`: `recipe.toml`, `events.jsonl`, `model.gescl` after every task,
`model.gescl.checkpoint` within one, and `samples.safetensors` and `result.json` when it is done. A run with a
`result.json` is finished and never run again.
While a process works on it, it holds `seed-N.lock` beside the folder; another that wants the same run waits.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from .. import distributed
from ..checkpoints import remove_checkpoints
from ..errors import DataError, UsageError
from ..learner import Learner
from ..methods import Joint
from ..observers import Observer, Observers
from ..records import Epoch, TaskRecord
from ..runtime import hardware
from ..store import append_line, locked, remains_of, write_bytes, write_tensors
from ..streams import TaskStream, find_stream
from ..streams.task import Split
from ..validation import flat
from .recipe import Recipe, load_recipe, read_toml, setting_label
from .result import Result, Validation, read_result

log = logging.getLogger("gescl")

SAMPLES_PER_TASK = 8
#: What a run writes.
FILES = ("recipe.toml", "events.jsonl", "model.gescl", "samples.safetensors", "result.json")
#: The state within a task, in a run's folder.
CHECKPOINT = "model.gescl.checkpoint"


@dataclass
class Experiment:
    """One recipe, one seed, one folder.

    result = Experiment(load_recipe("digits"), seed=0, out=Path("runs")).run()
    """

    recipe: Recipe
    seed: int = 0
    out: Path = Path("runs")
    data: Path | None = None
    device: str = "auto"
    observer: Observer = field(default_factory=Observer)
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.recipe.network, str):
            raise UsageError("the network of a recipe must be a name, since a run writes its recipe to a file")
        self.folder = self.out / self.recipe.name / self.recipe.label / f"seed-{self.seed}"

    def run(self, resume: bool = False) -> Result:
        """Run to the end, or return the result of the finished run."""
        for _ in self.tasks(resume):
            pass
        return self.result()

    def finished(self) -> bool:
        """Whether this very run is finished. A folder of another run, or not of a run, is refused.

        A run that ended before its first task was learned (by a wrong setting, say) is replaced.
        """
        file = self.folder / "recipe.toml"
        if file.is_file():
            if self.taken():
                raise UsageError(
                    f"{self.folder} holds a run of another recipe{_difference(read_toml(file), self.recipe.tables())}; "
                    "choose another output folder, or remove it"
                )
            return (self.folder / "result.json").is_file()
        # A run killed while its first file was being written has left that file's beginning, under a hidden name.
        if self.folder.is_dir() and any(not path.name.startswith(".recipe.toml.") for path in self.folder.iterdir()):
            raise UsageError(f"{self.folder} exists and is not a run of gescl's; choose another output folder")
        return False

    def taken(self) -> bool:
        """Whether the folder holds a run of another recipe that has learned something."""
        file = self.folder / "recipe.toml"
        return file.is_file() and self._learned_something() and not self._is_recipe(file)

    def apart(self) -> Experiment:
        """The same in a folder of its own, named by the settings in which it differs from the run that is here."""
        there, here = (flat(tables) for tables in (read_toml(self.folder / "recipe.toml"), self.recipe.tables()))
        differs = {key: value for key, value in here.items() if there.get(key) != value}
        differs |= {key: "default" for key in there if key not in here}
        parts = [self.recipe.variant] if self.recipe.variant else []
        label = ",".join([*parts, setting_label(differs)])
        return replace(self, recipe=self.recipe.model_copy(update={"variant": label}))

    def _is_recipe(self, file: Path) -> bool:
        """Whether a file holds this recipe, perhaps as written by a version that lacked a setting with a default."""
        if file.read_text(encoding="utf-8") == self.recipe.to_toml():
            return True
        try:
            return load_recipe(file, variant=self.recipe.variant).tables() == self.recipe.tables()
        except UsageError:
            return False

    def _learned_something(self) -> bool:
        return any((self.folder / name).is_file() for name in ("model.gescl", "result.json", CHECKPOINT))

    def result(self) -> Result:
        """The result of a finished run."""
        try:
            return read_result(self.folder / "result.json")
        except DataError as error:
            raise DataError(f"{self.folder}: {error}") from error

    def files(self, backups: bool = False) -> dict[str, bytes]:
        """All files of a run, finished or not, to be adopted elsewhere."""
        paths = [path for path in self.folder.glob("[!.]*") if path.is_file() and (backups or path.suffix != ".bak")]
        return {path.name: path.read_bytes() for path in paths}

    def adopt(self, files: Mapping[str, bytes]) -> None:
        """Take over the files of this run from another machine, unless it has been finished here in the meantime."""
        with self._alone():
            if files and not self.finished():
                for name in sorted(files, key=lambda name: (name == "result.json", name != "recipe.toml")):
                    write_bytes(self.folder / name, files[name])  # the recipe first, the result last
                if CHECKPOINT not in files:
                    (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def stream(self) -> TaskStream:
        return find_stream(self.recipe.stream).load(self.recipe.stream_options, self.seed, self.data)

    def tasks(self, resume: bool = False) -> Generator[tuple[Learner, TaskRecord], None, None]:
        """Learn task after task, yielding the learner and the record after each. Nothing if the run is finished."""
        with ExitStack() as held:
            if not self.finished():
                held.enter_context(self._alone())
            finished = self.finished()  # perhaps by the process that was waited for
            if not finished:
                self._claim(resume)
            distributed.files_from_first(self.files(backups=True))  # to those that `follow`
            if not finished:
                yield from self._learn()

    def _learn(self) -> Generator[tuple[Learner, TaskRecord], None, None]:
        stream = self.stream()
        learner = self._learner()
        method = self.recipe.method
        once = isinstance(method, Joint) and method.once
        learned = len(learner.records)
        begin = max(learned, len(stream) - 1) if once else learned
        for index, task in enumerate(stream[begin:], start=begin):
            # The first time all earlier tasks are given: a reloaded learner has none of their test images.
            earlier = list(stream[:index]) if index == begin else ()
            record = learner.learn(task, earlier, checkpoint=self.folder / CHECKPOINT)
            if index == len(stream) - 1 and self.recipe.training.test_every != 1:
                record = learner.test()
            # The log first: lines of a task that the model does not know are dropped when the run is taken up again.
            event = {"event": "task", "task": record.name, **asdict(record), "filters": _filters(learner)}
            append_line(self.folder / "events.jsonl", event)
            learner.save(self.folder / "model.gescl", backup=False)
            yield learner, record
        remove_checkpoints(self.folder / CHECKPOINT)  # of a run that was killed when its last task had been saved
        write_tensors(self.folder / "samples.safetensors", *_samples(learner, stream))
        _result(self.recipe, self.seed, learner).write(self.folder / "result.json")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the run's lock: two processes never work on one run, not even if one outlived a killed parent."""
        path = self.folder.with_name(f"{self.folder.name}.lock")
        with ExitStack() as held:
            try:
                held.enter_context(
                    locked(
                        path,
                        lambda: log.warning("%s: another process is working on this run; waiting for it", self.folder),
                    )
                )
            except OSError as error:
                raise DataError(f"cannot write {path}: {error.strerror or error}") from error
            yield

    def _claim(self, resume: bool) -> None:
        """Claim the folder for this run."""
        file = self.folder / "recipe.toml"
        if self._learned_something() and not resume:
            raise UsageError(f"{self.folder} holds an unfinished run; continue it with resume=True, or remove it")
        for name in FILES:
            for left_behind in remains_of(self.folder / name):
                with suppress(OSError):  # the next line says it
                    left_behind.unlink()
        write_bytes(file, self.recipe.to_toml().encode())

    def _learner(self) -> Learner:
        """A new learner, or the one saved after the last finished task."""
        model, events = self.folder / "model.gescl", self.folder / "events.jsonl"
        if model.is_file():
            method = type(self.recipe.method)
            learner = Learner.load(model, self.recipe.network, method=method, device=self.device)
            write_bytes(events, "".join(_lines_of(learner.tasks, events)).encode())
        else:
            learner = Learner(
                self.recipe.network,
                self.recipe.method,
                training=self.recipe.training,
                device=self.device,
                seed=self.seed,
                weights=self.recipe.weights,
            )
            write_bytes(events, b"")
        learner.observer = Observers(_EventLog(events), self.observer)
        return learner


def follow(seed: int, data: Path | None = None, device: str = "auto") -> None:
    """Take part in a run that process 0 leads: the same steps, in a folder that is thrown away."""
    files = distributed.files_from_first({})
    with TemporaryDirectory(prefix="gescl-") as scratch:
        write_bytes(Path(scratch, "recipe.toml"), files["recipe.toml"])
        experiment = Experiment(load_recipe(Path(scratch, "recipe.toml")), seed, Path(scratch), data, device)
        experiment.adopt(files)
        if not experiment.finished():
            for _ in experiment._learn():
                pass


class _EventLog(Observer):
    """Writes every epoch to `events.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def end_epoch(self, epoch: Epoch) -> None:
        append_line(self.path, {"event": "epoch", **asdict(epoch)})


def _difference(there: dict[str, Any], here: dict[str, Any]) -> str:
    """The first setting in which two recipes differ, in words."""
    settings = [flat(tables) for tables in (there, here)]
    for key in sorted(settings[0].keys() | settings[1].keys()):
        old, new = (json.dumps(known[key]) if key in known else "not set" for known in settings)
        if old != new:
            return f" ({key} is {old} there and {new} here)"
    return ""


def _lines_of(tasks: list[str], events: Path) -> Iterator[str]:
    """The lines of a log that belong to these tasks, without the one that was being written when the run was killed."""
    if not events.is_file():
        return
    with events.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                known = line.endswith("\n") and json.loads(line)["task"] in tasks
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise DataError(f"{events}: line {number} is damaged; remove the line to continue") from error
            if known:
                yield line


def _result(recipe: Recipe, seed: int, learner: Learner) -> Result:
    records, net = learner.records, learner.net
    trained = [record for record in records if record.epochs]  # not those that `joint` learned with a later one
    return Result(
        recipe=recipe.name,
        method=recipe.label,
        seed=seed,
        tasks=learner.tasks,
        accuracy=learner.accuracy,
        accuracy_before_end=[list(record.accuracy_before_end) for record in records],
        validation=Validation(
            accuracy=[list(record.val_accuracy) for record in records], images=[record.val_images for record in records]
        ),
        free_filters=[record.free_filters for record in records],
        important_filters=[record.important_filters for record in records],
        parameters=sum(p.numel() for p in net.parameters()),
        model_bytes=sum(t.numel() * t.element_size() for t in net.state_dict().values()),
        state_bytes=learner.state_bytes,
        epochs=[record.epochs for record in records],
        retries=[record.retries for record in records],
        seconds=sum(record.seconds for record in records),
        seconds_per_task=[record.seconds for record in records],
        images_per_second=sum(record.train_images * record.epochs for record in trained)
        / sum(record.train_images * record.epochs / record.images_per_second for record in trained),
        threads=torch.get_num_threads(),
        processes=distributed.processes(),
        device=str(learner.device),
        hardware=hardware(learner.device),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={
            "gescl": version("gescl"),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
    )


def _filters(learner: Learner) -> dict[str, dict[str, list[float]]]:
    """What is known of every filter, per layer: Γ and M of GESCL, gates of HAT."""
    known = learner.strategy.filters()
    layers = learner.net.graph.layers if known else []  # the other methods take networks that have none
    return {
        layer.name: {name: values[layer.slice].float().tolist() for name, values in known.items()} for layer in layers
    }


def _samples(learner: Learner, stream: TaskStream) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A few test images per task, their labels and the final network's predictions; and how it confuses all of them."""
    tensors, header = {}, []
    for index, task in enumerate(stream):
        header.append({"task": task.name, "classes": task.classes})
        if task.test is None:
            continue
        spread = torch.linspace(0, len(task.test) - 1, min(SAMPLES_PER_TASK, len(task.test))).long()
        chosen = task.test[spread]
        tensors[f"{index}.images"] = chosen.images
        tensors[f"{index}.labels"] = chosen.labels
        tensors[f"{index}.predictions"] = learner.predict(chosen.images, task.name).probabilities
        tensors[f"{index}.confusion"] = _confusion(learner, task.name, task.test, len(task.classes))
    return tensors, {"tasks": header}


def _confusion(learner: Learner, task: str, split: Split, classes: int) -> torch.Tensor:
    """How many images of each class (row) are taken for which class (column)."""
    parts = [learner.predict(part.images, task).probabilities for part in split.in_parts(1024)]
    predicted = torch.cat(parts).argmax(1)
    pairs = split.labels.cpu() * classes + predicted
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)
