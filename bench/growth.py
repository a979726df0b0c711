"""A long stream: what a task costs, and what is carried, as tasks go by.

    python bench/growth.py [--repeats 7] [--out results/bench-growth.json]

GESCL with its defaults on `paper3`. First a stream of 50 tasks: CPU seconds of learning each and of what comes after it
(importance, mask, redraw), without the tests of all tasks so far, which are for the accuracy matrix; the most memory
that the process had so far, the bytes of all tensors that outlive the task, of the network, and those the method
carries. The network has a new head with every task: that is the
growth there is. Then the 50th task of that learner and the second of another, learned alternately, for their ratio.
"""

from __future__ import annotations

import gc
import logging
import resource
import statistics
import time

import torch

from gescl import Gescl, Training
from gescl.networks.cnn import build_trunk
from gescl.networks.multihead import MultiHeadNet
from gescl.runtime import speed_up_process
from gescl.training import learn_task
from subjects import CLASSES, SHAPE, made_task
from timing import arguments, ratio, write

TASKS, IMAGES, BATCH, EPOCHS = 50, 128, 64, 3


class Student:
    """A network and its strategy on a stream."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = MultiHeadNet(build_trunk("paper3", SHAPE), SHAPE, torch.full((3,), 127.5), torch.full((3,), 73.6))
        self.strategy = Gescl().strategy(self.net)

    def learn(self) -> dict[str, float]:
        """Learn one more task; what it took and what is carried now."""
        self.net.add_head(CLASSES)
        times = [time.process_time()]

        def note() -> None:
            times.append(time.process_time())

        training = Training(batch_size=BATCH, epochs=EPOCHS)
        for _ in learn_task(self.net, self.strategy, made_task(IMAGES), training, seed=0, before_end=note):
            pass
        note()
        started, trained, ended = times
        return {
            "training_seconds": trained - started,
            "importance_seconds": ended - trained,
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "tensor_bytes": live_tensor_bytes(),
            "model_bytes": sum(t.numel() * t.element_size() for t in self.net.state_dict().values()),
            "state_bytes": sum(t.numel() * t.element_size() for t in self.strategy.state().values()),
        }


def live_tensor_bytes() -> int:
    """The bytes behind all tensors of the process, each piece of memory once."""
    gc.collect()
    tensors = (each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter))
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def slope(values: list[float]) -> float:
    """Growth per task by least squares, as a fraction of the mean."""
    return statistics.linear_regression(range(len(values)), values).slope / statistics.mean(values)


def main() -> None:
    options = arguments(__doc__, "growth", repeats=7)
    speed_up_process(threads=1)
    logging.disable()  # that a made-up network is full is no news
    old, young = Student(), Student()
    stream = [old.learn() for _ in range(TASKS)]
    young.learn()
    young.learn()
    slopes = {key: slope([task[key] for task in stream[1:]]) for key in stream[0]}  # the first task has no past
    late: list[dict[str, float]] = []
    early: list[dict[str, float]] = []
    for _ in range(options.repeats):
        for student, taken in ((old, late), (young, early)):
            student.net.drop_heads(len(student.net.heads) - 1, student.net.task_state())
            taken.append(student.learn())
    ratios = {
        key: ratio([task[key] for task in late], [task[key] for task in early])
        for key in ("training_seconds", "importance_seconds")
    }
    both = [[task["training_seconds"] + task["importance_seconds"] for task in taken] for taken in (late, early)]
    ratios["seconds"] = ratio(*both)
    last, second = stream[-1], stream[1]
    content = {
        "tasks": TASKS,
        "last_over_second": ratios,
        "slope_per_task": slopes,
        "memory_growth_bytes": last["memory_bytes"] - second["memory_bytes"],
        "tensor_growth_bytes": last["tensor_bytes"] - second["tensor_bytes"],
        "heads_growth_bytes": last["model_bytes"] - second["model_bytes"],
        "state_bytes": last["state_bytes"],
        "state_over_model": last["state_bytes"] / last["model_bytes"],
        "state_over_trunk": last["state_bytes"] / sum(4 * p.numel() for p in old.net.trunk.parameters()),
    }
    for key, found in ratios.items():
        print(f"{key} of task {TASKS} / task 2: {found['median']:.3f}")
    for key, each in slopes.items():
        print(f"{key}: {each:+.2%} per task")
    print(f"state / model {content['state_over_model']:.3%}, / trunk {content['state_over_trunk']:.3%}")
    write(options.out, options.repeats, {**content, "per_task": stream})


if __name__ == "__main__":
    main()
