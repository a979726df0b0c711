"""Images per second of a learned task: `predict`, plain PyTorch, torch.compile, ONNX; whole and compact.

    python bench/inference.py [--repeats 7] [--out results/bench-inference.json]

`paper3` for images of 3×32×32, of which half the filters of each layer are zero. Everything is timed alternately in one
process on one thread, CPU time; every figure is a ratio to plain PyTorch (the whole network in eval mode).
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from gescl import Finetune, Learner, Training, speed_up_process
from gescl.models.export import cost, export_onnx, task_net
from gescl.observers import Observer
from subjects import made_split, made_task
from timing import arguments, ratio, write

BATCHES = (1, 32, 256)
IMAGES = 256


def sparse_learner() -> Learner:
    """Half of the filters of each layer are zero, and nothing reads them."""
    learner = Learner("paper3", Finetune(), training=Training(epochs=1), observer=Observer())
    learner.learn(made_task(128))
    graph = learner.net.graph
    dead = torch.cat([torch.arange(layer.size) % 2 == 0 for layer in graph.layers])
    graph.erase(dead)
    graph.cut_outlets(dead, learner.net.head(0), spared=torch.zeros_like(dead))
    return learner


def onnx(learner: Learner, *, compact: bool) -> Callable[[torch.Tensor], object]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.onnx"
        export_onnx(learner, "made", path, compact=compact)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images.permute(0, 2, 3, 1).contiguous().numpy()})


def main() -> None:
    options = arguments(__doc__, "inference", repeats=7)
    speed_up_process(threads=1)
    logging.disable()
    learner = sparse_learner()
    whole, compact = (task_net(learner, "made", compact=small) for small in (False, True))
    sample = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    macs = [cost(net, sample).macs for net in (whole, compact)]
    subjects: dict[str, Callable[[torch.Tensor], object]] = {
        "PyTorch": whole,
        "PyTorch, compact": compact,
        "torch.compile": torch.compile(whole, dynamic=False),
        "torch.compile, compact": torch.compile(compact, dynamic=False),
        "predict": lambda images: learner.predict(images, "made"),
        "ONNX": onnx(learner, compact=False),
        "ONNX, compact": onnx(learner, compact=True),
    }
    images = made_split(IMAGES).images
    results: list[dict[str, Any]] = []
    with torch.inference_mode():
        for batch in BATCHES:
            parts = torch.split(images, batch)[: 64 if batch == 1 else None]
            seconds: dict[str, list[float]] = {name: [] for name in subjects}
            for repeat in range(options.repeats + 1):
                for name, work in subjects.items():
                    started = time.process_time()
                    for part in parts:
                        work(part)
                    if repeat:  # the first round warms up, and compiles
                        seconds[name].append(time.process_time() - started)
            for name, took in seconds.items():
                faster = ratio(seconds["PyTorch"], took)
                speed = sum(map(len, parts)) / statistics.median(took)
                results.append({"batch": batch, "subject": name, "faster": faster, "images_per_second": speed})
                print(f"{batch:4} {name:24} {faster['median']:.2f}  {speed:.0f} images/s", flush=True)
    write(options.out, options.repeats, {"macs": macs, "results": results})


if __name__ == "__main__":
    main()
