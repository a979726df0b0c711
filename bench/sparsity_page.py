"""Write docs/sparsity.md and its figure from results/bench-sparsity.json.

    python bench/sparsity_page.py

The page says nothing that is not in that file.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from gescl.report.drawing import style
from gescl.report.style import looks

ROOT = Path(__file__).parent.parent
PAGE, IMAGE = ROOT / "docs" / "sparsity.md", ROOT / "docs" / "images" / "sparsity.png"
RESULTS = ROOT / "results" / "bench-sparsity.json"
FILTERS = 224  # of paper3
NAMES = {
    "gescl": "GESCL",
    "group-norm": "Torch-Pruning, group norm learned sparse",
    "magnitude": "Torch-Pruning, magnitude",
}
DIALS = {"gescl": "release", "group-norm": "ratio", "magnitude": "ratio"}
#: Points of accuracy below the network that was not pruned.
COSTS = (0.5, 1.0, 2.0, 3.0)

Point = dict[str, Any]


def read() -> dict[str, Any]:
    content = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def by_dial(found: dict[str, Any], method: str) -> dict[float, list[Point]]:
    points = [point for point in found["points"] if point["method"] == method]
    return {dial: [p for p in points if p["dial"] == dial] for dial in sorted({p["dial"] for p in points})}


def curve(found: dict[str, Any], method: str) -> list[tuple[float, float]]:
    """Filters gone and accuracy, medians over the seeds, by filters gone."""
    return sorted(
        (median(p["gone"] for p in points), median(p["accuracy"] for p in points))
        for points in by_dial(found, method).values()
    )


def most_gone(line: list[tuple[float, float]], accuracy: float) -> float | None:
    """The most filters that are gone anywhere on a curve (straight between its points) with at least that accuracy."""
    best = max((gone for gone, reached in line if reached >= accuracy), default=None)
    for (gone, reached), (next_gone, next_reached) in pairwise(line):
        if reached >= accuracy > next_reached:
            crossing = gone + (next_gone - gone) * (reached - accuracy) / (reached - next_reached)
            best = max(crossing, best or 0)
    return best


def dense(found: dict[str, Any]) -> float:
    """Accuracy of the network without any pruning."""
    return float(median(point["accuracy"] for point in by_dial(found, "magnitude")[0.0]))


def page() -> str:
    found = read()
    images, training, chosen = found["images"], found["training"], found["chosen"]
    group_norm, magnitude = chosen["group-norm"], chosen["magnitude"]
    rows = [
        (
            NAMES[method],
            f"{DIALS[method]} {dial:.2g}",
            f"{median(p['gone'] for p in points):.0f}",
            f"{median(p['accuracy'] for p in points):.3f} ({min(p['accuracy'] for p in points):.3f}–"
            f"{max(p['accuracy'] for p in points):.3f})",
            "-".join(f"{median(p['gone_by_layer'][layer] for p in points):.0f}" for layer in range(3)),
        )
        for method in NAMES
        for dial, points in by_dial(found, method).items()
    ]
    reference = dense(found)
    error = 100 * math.sqrt(reference * (1 - reference) / images["test"])
    lines = {method: curve(found, method) for method in NAMES}
    equal = [
        (f"{cost:g}", *(_count(most_gone(lines[method], reference - cost / 100)) for method in NAMES)) for cost in COSTS
    ]
    tried = [
        (
            t["pruner"],
            "–" if t["reg"] is None else f"{t['reg']:g}",
            t["scope"],
            t["prune_at"],
            f"{t['val_accuracy']:.3f}",
        )
        for t in found["tried"]
    ]
    return f"""# Sparsity

How many filters can go in one training, and what that costs: GESCL compared with {found["peer"]}. Written by
`bench/sparsity_page.py` from `results/bench-sparsity.json`, which `python bench/sparsity.py --data DIR` measures.

The task is CIFAR-10, all classes: {images["train"]:,} training images, {images["val"]:,} for validation,
{images["test"]:,} of the test images. The network is `paper3` ({FILTERS} filters). Each method trains for
{training["epochs"]} epochs in all: {training["optimizer"].capitalize()}, {training["lr"]:g} falling along one cosine,
batch {training["batch_size"]}, and keeps the weights of the epoch with the lowest validation loss once no more filters
go. A filter is gone if it was removed, or if its output is the same for all training images. Medians of
{found["repeats"]} seeds.

![Accuracy against filters gone](images/sparsity.png)

Filters gone at equal cost, read from the curves of the medians, straight between points. Cost: points of accuracy below
the network that was not pruned ({reference:.3f}):
{_table(("points", *NAMES.values()), equal)}
The number of test images alone leaves a standard error of {error:.1f} points: the first rows are less certain than the
last. How many filters GESCL lets go is decided by the validation images; the peer is told.

All points; in brackets the lowest and the highest accuracy. The last column says in which layers filters went: equal
numbers of filters are not equal numbers of operations.
{_table(("method", "dial", "filters gone", "accuracy", "gone by layer"), rows)}
## Settings

GESCL has its defaults, and `release` as a dial. Torch-Pruning has its pruning ratio as a dial; its other settings are
those with the best validation accuracy on a seed that is not measured (mean of the ratios 0.5 and 0.65): the group-norm
pruner with reg = {group_norm["reg"]:g} and {group_norm["scope"]} pruning, the magnitude pruner with
{magnitude["scope"]} pruning, both after {magnitude["prune_at"]:g} of the epochs; the other epochs are fine-tuning. When
to prune was chosen with magnitude alone. A ratio is reached in 20 small steps, as in the package's own experiments.
With one seed and {images["val"]:,} images, differences of a point or two between these settings are noise.
The best reg is the smallest tried, and the best time to prune the earliest; as reg falls, the group-norm pruner comes
closer to magnitude. The least reg was added when the smaller of the other two had done better.
{_table(("pruner", "reg", "scope", "pruned at", "validation accuracy"), tried)}"""


def _count(gone: float | None) -> str:
    return "none" if gone is None else f"{gone:.0f}"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n" + "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def draw() -> None:
    """Accuracy against filters gone: a line through the medians, and every training as a point."""
    found = read()
    look = looks(NAMES)
    with style():
        drawn = Figure(figsize=(6.2, 3.1), layout="constrained")
        axes = drawn.subplots()
        axes.axhline(dense(found), color="#6a717b", linewidth=0.8, linestyle=":")
        axes.text(0.99, dense(found), "not pruned", transform=axes.get_yaxis_transform(), ha="right", va="bottom")
        for method, name in reversed(NAMES.items()):
            points = [point for point in found["points"] if point["method"] == method]
            colour, marker = look[method].colour, look[method].marker
            gone, accuracy = [p["gone"] for p in points], [p["accuracy"] for p in points]
            axes.scatter(gone, accuracy, s=9, color=colour, alpha=0.35, linewidths=0)
            axes.plot(*zip(*curve(found, method), strict=True), **look[method].line, marker=marker, label=name)
        axes.set_xlim(0, FILTERS)
        axes.set_xlabel(f"filters gone, of {FILTERS}")
        axes.set_ylabel("test accuracy")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="lower left")
        drawn.savefig(IMAGE, dpi=200, metadata={"Software": None})


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    draw()
