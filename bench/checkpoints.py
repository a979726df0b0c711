"""What checkpoints cost: the time of a run that writes them over that of one that does not.

    python bench/checkpoints.py [--repeats 9] [--out results/bench-checkpoints.json]

Every case is one task, learned with a checkpoint after every epoch, with the default rate, and without any, in turn.
No case takes as long as the default rate, which costs the seconds per checkpoint once in that time.
The seconds are those of the wall clock, since a checkpoint waits for the disk.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from gescl import Learner, Task, Training, load_stream
from gescl.checkpoints import Checkpoints
from gescl.observers import Observer
from gescl.runtime import speed_up_process
from subjects import made_split
from timing import Work, arguments, medians, ratio, turns, write

#: Network, images and epochs: the smallest network, whose epochs are shortest, and the one of the paper.
CASES = [("small", 0, 10), ("paper3", 900, 3)]
DEFAULT = Training().checkpoint_seconds


def learning(network: str, images: int, epochs: int, seconds: float | None) -> Work:
    """Learn a task from its beginning; without checkpoints if `seconds` is None."""
    speed_up_process(1)
    task = _task(images)
    training = Training(epochs=epochs, patience=epochs, checkpoint_seconds=DEFAULT if seconds is None else seconds)
    folder = tempfile.TemporaryDirectory(prefix="gescl-bench-", dir=Path.cwd())

    def work() -> None:
        learner = Learner(network, "gescl", training=training, observer=Observer())
        learner.learn(task, checkpoint=None if seconds is None else Path(folder.name) / "checkpoint")
        learner.save(Path(folder.name) / "model.gescl")

    return work


def _task(images: int) -> Task:
    if not images:
        return load_stream("digits")[0]
    return Task("made", tuple("abcdefghij"), made_split(images), made_split(images // 9))


def without(network: str, images: int, epochs: int) -> Work:
    return learning(network, images, epochs, None)


def default(network: str, images: int, epochs: int) -> Work:
    return learning(network, images, epochs, DEFAULT)


def every_epoch(network: str, images: int, epochs: int) -> Work:
    return learning(network, images, epochs, 0)


def seconds_per_checkpoint(network: str, images: int, epochs: int) -> float:
    """The time from the end of an epoch until its checkpoint is on the disk."""
    taken: list[float] = []
    write_checkpoint = Checkpoints.write

    def timed(checkpoints: Checkpoints) -> None:
        started = time.perf_counter()
        write_checkpoint(checkpoints)
        taken.append(time.perf_counter() - started)

    with mock.patch.object(Checkpoints, "write", timed):
        every_epoch(network, images, epochs)()
    return statistics.median(taken)


def main() -> None:
    options = arguments(__doc__, "checkpoints", repeats=9)
    results: list[dict[str, Any]] = []
    print("network   seconds per epoch   per checkpoint   default / without   every epoch / without")
    with turns({"without": without, "default": default, "every_epoch": every_epoch}, time.perf_counter) as alternately:
        for case in CASES:
            network, images, epochs = case
            seconds = alternately(case, options.repeats)
            result: dict[str, Any] = {
                "network": network,
                "images": images or len(_task(0).train),
                "epochs": epochs,
                "seconds_per_epoch": medians(seconds)["without"] / epochs,
                "seconds_per_checkpoint": seconds_per_checkpoint(*case),
                "default": ratio(seconds["default"], seconds["without"]),
                "every_epoch": ratio(seconds["every_epoch"], seconds["without"]),
            }
            results.append(result)
            print(
                f"{network:7}   {result['seconds_per_epoch']:17.3f}   "
                f"{result['seconds_per_checkpoint']:14.4f}   {result['default']['median']:17.3f}   "
                f"{result['every_epoch']['median']:21.3f}",
                flush=True,
            )
    write(options.out, options.repeats, {"checkpoint_seconds": DEFAULT, "results": results})


if __name__ == "__main__":
    main()
