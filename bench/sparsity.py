"""Accuracy against filters gone after one training on one task: GESCL beside the pruners of Torch-Pruning.

    python bench/sparsity.py --data DIR [--repeats 3] [--out results/bench-sparsity.json]

The same images (a part of CIFAR-10), network (`paper3`), optimiser, rates, batch and number of epochs. Torch-Pruning is
installed into an environment of its own under .cache/peers. Its settings are chosen by validation accuracy with seed 0,
which is not measured; ours are the defaults. Both are then measured along a dial of their own with seeds 1, 2, …:
`release` of GESCL, the peer's pruning ratio. A run that was stopped is continued.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from gescl import Gescl, Learner, Task, Training
from gescl.maths.moments import pixel_moments
from gescl.observers import Observer
from gescl.runtime import speed_up_process
from gescl.streams import load_stream
from gescl.streams.task import Split, stratified_split
from peers import Server, installed
from timing import write

PEER = "torch-pruning==1.6.0"
TRAINING = Training(optimizer="adam", lr=1e-3, batch_size=64, epochs=10, schedule="cosine")
TRAIN, VAL, TEST = 3_000, 1_000, 4_000
RATIOS = (0.0, 0.35, 0.5, 0.65)
RELEASES = tuple(errors / VAL**0.5 for errors in (0.0, 0.25, 0.5, 1.0, 2.0, 4.0))  # in standard errors of the loss
#: What the peer's settings are chosen from, and the ratios at which they are compared.
SCOPES, PRUNE_AT, REGS, CHOOSING = ("local", "global"), (0.4, 0.6), (1e-4, 5e-4, 5e-3), (0.5, 0.65)

Point = dict[str, Any]
Request = dict[str, Any]


def cifar_task(data: Path) -> Task:
    """All ten classes of CIFAR-10: a fixed sample of its images."""
    whole = load_stream("cifar10-100", data=data, tasks=1)[0]
    assert whole.test is not None
    sample, _ = _parted(whole.train, TRAIN + VAL)
    val, train = _parted(sample, VAL)
    test, _ = _parted(whole.test, TEST)
    return Task(whole.name, whole.classes, train, val, test)


def _parted(split: Split, count: int) -> tuple[Split, Split]:
    """So many images, as many of each class, and the rest."""
    drawn, rest = stratified_split(split.labels, count / len(split), 0, "cifar10", purpose="sample")
    return split[drawn], split[rest]


def ours(task: Task, method: Gescl, seed: int) -> Point:
    learner = Learner("paper3", method, training=TRAINING, seed=seed, observer=Observer())
    record = learner.learn(task)
    assert record.free_filters is not None
    by_layer = list(record.free_filters.values())
    return {
        "gone": sum(by_layer),
        "gone_by_layer": by_layer,
        "val_accuracy": record.val_accuracy[0],
        "accuracy": record.accuracy[0],
    }


def theirs(peer: Server, request: Request, ratios: tuple[float, ...], seed: int) -> list[Point]:
    found = json.loads(peer.run(json.dumps({**request, "ratios": ratios, "seed": seed}), "answer"))
    assert isinstance(found, list)
    return found


def chosen_settings(peer: Server, tried: list[dict[str, Any]]) -> dict[str, Request]:
    """The peer's best settings by validation accuracy; what has been tried is not tried again."""

    def score(request: Request) -> float:
        known = [t["val_accuracy"] for t in tried if request.items() <= t.items()]
        if not known:
            points = theirs(peer, request, CHOOSING, seed=0)
            known = [statistics.mean(point["val_accuracy"] for point in points)]
            tried.append({**request, "val_accuracy": known[0]})
            print(tried[-1], flush=True)
        return float(known[0])

    magnitude = max(
        ({"pruner": "magnitude", "reg": None, "scope": scope, "prune_at": at} for at in PRUNE_AT for scope in SCOPES),
        key=score,
    )
    at = magnitude["prune_at"]
    group_norm = max(
        ({"pruner": "group-norm", "reg": reg, "scope": scope, "prune_at": at} for reg in REGS for scope in SCOPES),
        key=score,
    )
    return {"magnitude": magnitude, "group-norm": group_norm}


def task_file(task: Task, path: Path) -> None:
    """The task for the peer, with the moments that our network normalises pixels by."""
    assert task.test is not None
    mean, std = pixel_moments([task.train.images])
    splits = {"train": task.train, "val": task.val, "test": task.test}
    content = {name: (split.images, split.labels) for name, split in splits.items()}
    torch.save({**content, "mean": mean, "std": std}, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10, as for gescl run")
    parser.add_argument("--repeats", type=int, default=3, help="seeds")
    parser.add_argument("--out", type=Path, default=Path("results/bench-sparsity.json"))
    options = parser.parse_args()
    python = installed(Path(".cache/peers/torch-pruning"), PEER)
    if isinstance(python, str):
        raise SystemExit(f"{PEER} could not be installed: {python}")
    speed_up_process(threads=1)
    task = cifar_task(options.data)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.pt"
        task_file(task, file)
        script = Path(__file__).with_name("peer_torch_pruning.py")
        peer = Server(python.absolute(), script, file, str(TRAINING.epochs), str(TRAINING.batch_size))
        try:
            measure(task, peer, options.repeats, options.out)
        finally:
            peer.close()


def measure(task: Task, peer: Server, repeats: int, out: Path) -> None:
    """Add to the file what it does not hold yet, and write it after every training."""
    images = {"train": len(task.train), "val": len(task.val), "test": len(task.test or ())}
    training = TRAINING.model_dump(include={"optimizer", "lr", "batch_size", "epochs", "schedule"})
    content: dict[str, Any] = {"peer": PEER, "network": "paper3", "images": images, "training": training}
    if out.is_file():
        content = json.loads(out.read_text(encoding="utf-8"))
    content["chosen"] = chosen_settings(peer, content.setdefault("tried", []))
    points: list[Point] = content.setdefault("points", [])
    known = {(point["method"], point["seed"], point["dial"]) for point in points}

    def keep(method: str, seed: int, dial: float, point: Point) -> None:
        points.append({"method": method, "seed": seed, "dial": dial, **point})
        print(points[-1], flush=True)
        write(out, repeats, content)

    for seed in range(1, repeats + 1):
        for name, request in content["chosen"].items():
            missing = tuple(ratio for ratio in RATIOS if (name, seed, ratio) not in known)
            for ratio, point in zip(missing, theirs(peer, request, missing, seed) if missing else (), strict=True):
                keep(name, seed, ratio, point)
        for release in RELEASES:
            if ("gescl", seed, release) not in known:
                keep("gescl", seed, release, ours(task, Gescl(release=release), seed))


if __name__ == "__main__":
    main()
