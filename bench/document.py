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

What a task costs, what each trick buys, and what did not pay. Written by `bench/document.py` from
`results/bench-*.json`, which `make bench` measures.

Every figure is a ratio between things timed alternately in one run, in CPU time on one thread, the median of the rounds
({repeats} at least); in brackets the quartiles. Ratios carry over to other machines far better than seconds. These were
measured on: {processor}, {cores} cores, torch {torch}, a machine shared with others: differences of less than
about a tenth mean nothing here.
"""


def page() -> str:
    """The whole page: a section for everything that has been measured."""
    sections = {
        "whole": _whole,
        "streams": _streams,
        "half-free": _half_free,
        "inference": _inference,
        "loop": _loop,
        "operations": _operations,
        "tricks": _tricks,
        "threads": _threads,
        "overhead": _overhead,
        "prox": _prox,
        "checkpoints": _checkpoints,
        "importance": _importance,
        "growth": _growth,
        "peers": _peers,
    }
    found = {name: _read(name) for name in sections}
    measured = {name: content for name, content in found.items() if content}
    repeats = min(content["repeats"] for content in measured.values())
    introduction = INTRODUCTION.format(**{**next(iter(measured.values())), "repeats": repeats})
    here = next(iter(measured.values()))["processor"]
    written = []
    for name, content in measured.items():
        elsewhere = (
            ""
            if content["processor"] == here
            else f"\nMeasured earlier, with an older version, on: {content['processor']}.\n"
        )
        written.append(sections[name](content) + elsewhere)
    return "\n".join([introduction, *written])


def _read(name: str) -> dict[str, Any]:
    file = ROOT / "results" / f"bench-{name}.json"
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    assert isinstance(content, dict)
    return content


def _whole(found: dict[str, Any]) -> str:
    text = f"""## A whole task

What a second task costs as a user pays for it: `Learner.learn` on {found["images"]:,} images with `{found["network"]}`,
in a process that `gescl.speed_up_process()` has set up, everything counted: recording old heads' answers, training,
validation, letting filters go, importance, tests of both tasks. The bare loop (no framework, a process as it is) trains
the same network on the same images, and validates and tests as often. A method whose filters are let go or fixed
computes less.
"""
    for epochs in dict.fromkeys(r["epochs"] for r in found["results"]):
        rows = [
            (r["method"], _times(r["over_finetune"]), _times(r["bare_over"]))
            for r in found["results"]
            if r["epochs"] == epochs and r["method"] != "bare"
        ]
        head = (f"{epochs} epochs", "time / fine-tuning's", "a bare loop's time / it")
        text += _table(head, rows)
    told = [r for r in found["results"] if r["method"] in ("finetune", "gescl", "gescl-distill") and r["epochs"] == 8]
    parts = list(dict.fromkeys(part for r in told for part in r["parts"]))
    shares = [
        (r["method"], f"{1 - sum(r['parts'].values()):.1%}", *(f"{r['parts'].get(p, 0):.1%}" for p in parts))
        for r in told
    ]
    return text + "\nOf the time with 8 epochs:\n" + _table(("method", "training and all else", *parts), shares)


def _streams(found: dict[str, Any]) -> str:
    rows = [
        (r["tasks"], r["method"], _times(r["over_finetune"]), _times(r["bare_over"]), f"{r['memory_over_bare']:.2f}")
        for r in found["results"]
        if r["method"] != "bare"
    ]
    growth, cost = found["late_over_early"], found["tests_cost"]
    head = ("tasks", "method", "time / fine-tuning's", "a bare loop's time / it", "peak memory / a bare loop's")
    return f"""## Whole streams

Streams through `Learner`, `{found["network"]}`, {found["epochs"]} epochs per task, tests of all tasks after each
included, also in the bare loop's. Peak memory is that of the whole process, PyTorch and all. It is larger because freed
memory is kept, and because a learner can be interrupted at any time and is then as before the task.
{_table(head, rows)}
Tests of all old tasks after each task are quadratic in the number of tasks. With `training.test_every = 0` old tasks
are tested at the end of a run only (or when `Learner.test()` asks for it), and time grows linearly. GESCL on
{found["long"]} tasks, the last ten over the second to eleventh: **{growth["after every task"]:.2f}** with tests after
every task, **{growth["at the end"]:.2f}** with tests at the end. The whole stream takes {_times(cost)} times as long
with tests after every task.
"""


def _half_free(found: dict[str, Any]) -> str:
    rows = [(f"`{r['network']}`", r["kind"], _times(r["faster"])) for r in found["results"]]
    text = f"""## Sparse networks

Filters that are zero for the rest of a task are left out of what is computed: after GESCL has let go of some, and those
that AGS-CL keeps in reserve. The optimiser and checkpoints see the whole network, and the result is the same up to
rounding. It is not done with batch-norm or dropout, which would make a difference. Speed of training with every second
filter at zero over that with none, batch {found["batch"]}:
"""
    return text + _table(("network", "filters", "speed"), rows)


def _inference(found: dict[str, Any]) -> str:
    subjects = list(dict.fromkeys(r["subject"] for r in found["results"]))
    batches = list(dict.fromkeys(r["batch"] for r in found["results"]))
    faster = {(r["subject"], r["batch"]): r["faster"] for r in found["results"]}
    rows = [(subject, *(_times(faster[subject, batch]) for batch in batches)) for subject in subjects]
    whole, compact = found["macs"]
    compacts = [
        f"{faster['ONNX, compact', batch]['median'] / faster['ONNX', batch]['median']:.1f}" for batch in batches
    ]
    return f"""## Inference

Images per second over those of plain PyTorch (the exported module of a task, eager, eval mode), `paper3`, half of whose
filters are zero. A compact network leaves them out and has {whole / compact:.1f} times fewer multiply-adds; as ONNX
(onnxruntime) it is {", ".join(compacts)} times as fast as the whole one at batches of {", ".join(map(str, batches))}.
`predict` also checks the images, calibrates and names the classes; it keeps channels last in memory.
{_table(("", *(f"batch {batch}" for batch in batches)), rows)}"""


def _operations(found: dict[str, Any]) -> str:
    kinds = list(dict.fromkeys(kind for r in found["results"] for kind in r["shares"]))
    rows = [(kind, *(f"{r['shares'].get(kind, 0):.0%}" for r in found["results"])) for kind in kinds]
    speeds = ", ".join(f"{r['convolution_speed']:.0%} (`{r['network']}`)" for r in found["results"])
    text = f"""## Where the rest goes

A step of fine-tuning by our loop, batch {found["batch"]}, by kind of operation. Convolutions are oneDNN's, the same in
any loop but for the layout: what a loop can save is in the other rows, and there is little left to save. Nor could the
convolutions be much faster: per second they do {speeds} of the arithmetic that one large convolution (256 filters,
forward) does on the same CPU. This is why `ags6` gains less over a bare loop than `paper3`: more of its time is
convolutions, and those of the bare loop are fast already.
"""
    return text + _table(("", *(f"`{r['network']}`" for r in found["results"])), rows)


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
Freed memory is kept by the command line, and in Python after `gescl.speed_up_process()`: importing gescl changes no
setting of the process. What was tried and left out, as the time of the loop as it is over that of the loop with it:
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
    text = f"""## What a method adds to a step

Time over fine-tuning's, `{found["network"]}`, batch {found["batch"]}, on a second task. A full network under
`mu_s = inf` cannot change any more: what it makes of the images is worked out once per task, and only the head is
learned on it (the epoch has its share of that, 15 epochs per task).
"""
    return text + _table(("method", "step", "epoch of 4,500 images"), rows)


def _prox(found: dict[str, Any]) -> str:
    rows = [
        (
            f"`{r['network']}`",
            f"{r['psi_min']:g}",
            f"{r['important']:.0%}",
            f"{r['prox_per_step']:.1%}",
            f"{r['shrinking_per_step']:.1%}",
            f"{r['holding_per_step']:.1%}",
        )
        for r in found["ratios"]
    ]
    text = """## The proximal step of GESCL

In the metric of Adam, one for four training steps, as a share of these, batch 64: the mean over a task, while free
filters shrink (three tenths of the steps), and else. With `psi_min` < 1, the exclusive term makes the step while
filters shrink an iteration within an iteration.
"""
    head = ("network", "`psi_min`", "important filters", "mean", "while filters shrink", "else")
    return text + _table(head, rows)


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
