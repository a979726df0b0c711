"""Write docs/performance.md from what the benchmarks measured.

    python bench/document.py

The page says nothing that is not in results/bench-*.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"

INTRODUCTION = """# Performance

What the loop costs, what each trick of it buys, and what did not pay. Written by `bench/document.py` from
`results/bench-*.json`, which `make bench` measures.

Every figure is a ratio between things timed alternately in one run, in CPU time on one thread, the median of the rounds
({repeats} at least); in brackets the quartiles. Ratios carry over to other machines far better than seconds. These were
measured on: {processor}, {cores} cores, torch {torch}, a machine shared with others: differences of less than
about a tenth mean nothing here.
"""


def page() -> str:
    """The whole page: a section for everything that has been measured."""
    names = ("loop", "tricks", "threads", "overhead", "checkpoints", "importance", "growth", "peers")
    found = {name: _read(name) for name in names}
    measured = {name: content for name, content in found.items() if content}
    sections = {"loop": _loop, "tricks": _tricks, "threads": _threads, "overhead": _overhead}
    sections |= {"checkpoints": _checkpoints, "importance": _importance, "growth": _growth, "peers": _peers}
    repeats = min(content["repeats"] for content in measured.values())
    introduction = INTRODUCTION.format(**{**next(iter(measured.values())), "repeats": repeats})
    return "\n".join([introduction, *(sections[name](content) for name, content in measured.items())])


def _read(name: str) -> dict[str, Any]:
    file = ROOT / "results" / f"bench-{name}.json"
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    assert isinstance(content, dict)
    return content


def _loop(found: dict[str, Any]) -> str:
    rows = [
        (
            f"`{r['network']}`",
            r["batch"],
            "flip and shift" if r["augmented"] else "none",
            _times(r["ours_over_bare"]),
            _times(r["ours_over_loader"]),
        )
        for r in found["results"]
    ]
    text = """## The loop

Fine-tuning by our loop, in images per second over those of two loops that people write: a bare one (float tensors in
memory, no framework) and DataLoader with PIL and a transform per image. Network, optimiser and images are the same.
"""
    return text + _table(("network", "batch", "augmentation", "ours / bare", "ours / DataLoader and PIL"), rows)


def _tricks(found: dict[str, Any]) -> str:
    networks = list(dict.fromkeys(r["network"] for r in found["results"]))
    taken = {r["trick"]: r["taken"] for r in found["results"]}
    worth = {(r["network"], r["trick"]): r["worth"] for r in found["results"]}

    def table(which: bool) -> str:
        chosen = [trick for trick, kept in taken.items() if kept is which]
        rows = [(trick, *(_times(worth[network, trick]) for network in networks)) for trick in chosen]
        return _table(("trick", *(f"`{network}`" for network in networks)), rows)

    return f"""## What each trick buys

CPU time of a step without the trick over that with it, batch {found["batch"]}, all else as it is.
{table(True)}
Freed memory is kept by the command line only: importing gescl changes no setting of the process. What was tried and
left out, as the time of the loop as it is over that of the loop with it:
{table(False)}
Fused Adam reads a gradient in its weight's memory order without checking that it has it: a method that sets gradients
of its own could fail silently.
"""


def _threads(found: dict[str, Any]) -> str:
    rows = [(f"`{r['network']}`", r["batch"], r["threads"], _times(r["faster"])) for r in found["results"]]
    text = """## Threads

Unless told otherwise a run takes all cores up to four, and a sweep gives every run of `--jobs` its share of them: the
layers are small, and each of them ends with its threads waiting for the slowest. Speed by the clock over that of one
thread (two runs of one thread each do twice the work of one):
"""
    return text + _table(("network", "batch", "threads", "speed"), rows)


def _overhead(found: dict[str, Any]) -> str:
    rows = [(r["method"], _times(r["step"]), _times(r["epoch"])) for r in found["results"]]
    most = max(r["prox_per_step"] for r in _read("prox")["ratios"] if r["network"] == found["network"])
    text = f"""## What a method adds

Time over fine-tuning's, `{found["network"]}`, batch {found["batch"]}, on a second task. GESCL's proximal step alone
takes at most {most:.1%} of a training step. A full network under `mu_s = inf` cannot change any more: what it makes of
the images is worked out once per task, and only the head is learned on it (the epoch has its share of that, 15 epochs
per task).
"""
    return text + _table(("method", "step", "epoch of 4,500 images"), rows)


def _checkpoints(found: dict[str, Any]) -> str:
    rows = [
        (
            f"`{r['network']}`, {r['images']:,} images",
            f"{r['seconds_per_epoch']:.2f} s",
            f"{1000 * r['seconds_per_checkpoint']:.0f} ms",
            f"{r['seconds_per_checkpoint'] / found['checkpoint_seconds']:.2%}",
            _times(r["every_epoch"]),
        )
        for r in found["results"]
    ]
    text = f"""## Checkpoints

Time of learning a task with a checkpoint after every epoch over that without any, by the clock on the wall, since they
wait for the disk; and what is left of it at the default rate, one per {found["checkpoint_seconds"]:.0f} s at most.
"""
    return text + _table(("task", "an epoch", "a checkpoint", "default rate", "every epoch / without"), rows)


def _importance(found: dict[str, Any]) -> str:
    rows = [
        (
            f"`{r['network']}`",
            f"{r['gamma_per_forward']:.2f}",
            f"{r['ewc_per_forward']:.2f}",
            f"{r['mas_per_forward']:.2f}",
            f"{r['ewc_faster_than_loop']:.1f} ×",
        )
        for r in found["ratios"]
    ]
    text = """## Importance

One pass over a task's images when it has been learned, in multiples of a plain forward pass over them. EWC's Fisher and
MAS take the gradient of every image by itself, in batches; the last column says how much faster than image by image.
"""
    return text + _table(("network", "Γ of GESCL", "Fisher of EWC", "Ω of MAS", "EWC over a plain loop"), rows)


def _growth(found: dict[str, Any]) -> str:
    ratios, slopes = found["last_over_second"], found["slope_per_task"]
    rows = [
        ("training", _times(ratios["training_seconds"]), f"{slopes['training_seconds']:+.2%}"),
        ("importance, mask and redraw", _times(ratios["importance_seconds"]), f"{slopes['importance_seconds']:+.2%}"),
        ("both", _times(ratios["seconds"]), ""),
    ]
    grown, alive, heads = (found[f"{what}_growth_bytes"] / 2**20 for what in ("memory", "tensor", "heads"))
    return f"""## A long stream

GESCL on {found["tasks"]} tasks: time of the last over the second's, learned alternately, and growth per task along
the stream.
{_table(("time", f"task {found['tasks']} / task 2", "slope"), rows)}
The method carries {found["state_bytes"]:,.0f} bytes from the first task to the last, {found["state_over_trunk"]:.2%}
of the trunk's. From the second task to the last, all tensors that outlive a task grew by {alive:.2f} MiB, of which the
new heads are {heads:.2f} MiB. The most memory that the process ever had grew by {grown:.1f} MiB, in jumps: freed blocks
between the heads are now and then too small for the activations of a step.
"""


def _peers(found: dict[str, Any]) -> str:
    for problem in ("not_installed", "not_running"):
        if problem in found:
            why = f"{found['peer']} could not be measured on this machine: {found[problem]}"
            return f"## Compared with Avalanche\n\n{why}\n"
    rows = [(r["method"], _times(r["faster_than_avalanche"])) for r in found["results"]]
    text = f"""## Compared with Avalanche

Whole runs of the same method by {found["peer"]} over ours, with importance and tests of all tasks so far:
{found["tasks"]} tasks of {found["images"]} images, {found["epochs"]} epochs, batch {found["batch"]}, `paper3`.
Its EWC and MAS weigh a parameter by the gradient of a whole batch, ours by that of every image, as the methods are
defined; either pass takes about as long as an epoch.
"""
    return text + _table(("method", "Avalanche's time / ours"), rows)


def _times(found: dict[str, float]) -> str:
    return f"**{found['median']:.2f}** ({found['low']:.2f}–{found['high']:.2f})"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
