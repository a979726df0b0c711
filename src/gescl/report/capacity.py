"""Capacity over time: how many filters of each layer are important, free, redrawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch

from .drawing import Drawing
from .labels import wrapped
from .panels import NARROWEST, layer_panels
from .run_files import Events, of_methods, read_events
from .runs import Group, Run
from .statistics import Array, mean_over_runs
from .style import GRID, NARROW, Looks
from .task_names import TaskNames

REDRAWN = 0.3  # opacity of redrawn filters


@dataclass(frozen=True)
class Layer:
    """Filters of one layer after each task, mean over runs: they sum to its size."""

    important: Array
    redrawn: Array
    resting: Array

    @property
    def size(self) -> int:
        return round(float(self.important[0] + self.redrawn[0] + self.resting[0]))


def draw_capacity(group: Group, look: Looks, width: float) -> Drawing | None:
    """Stacked bars, one per task: one row of panels per method that tells important filters from free ones."""
    tell = [label for label, runs in group.methods.items() if any(runs[0].result.important_filters)]
    events = of_methods(group, read_events, "Redrawn filters", tell)
    found = {label: layers_of(group.methods[label], events.get(label)) for label in tell}
    known = {label: layers for label, layers in found.items() if layers}
    if not known:
        return None
    names = {label: list(layers) for label, layers in known.items()}
    tasks = len(group.tasks)
    columns = min(max(map(len, names.values())), int(width / NARROWEST))
    axis = TaskNames(group.tasks, width / columns - 0.5)
    colours = [look[label].colour for label in known]
    kinds = [
        ("important: held for old tasks", [Patch(facecolor=colour) for colour in colours]),
        ("free, redrawn for the next task", [Patch(facecolor=colour, alpha=REDRAWN) for colour in colours]),
    ]
    if any(layer.resting.any() for layers in known.values() for layer in layers.values()):
        kinds.append(("free, left as it is", [Patch(facecolor="none", edgecolor=GRID)]))
    lines = 1 if width > NARROW else len(kinds)  # of the legend
    figure, places = layer_panels(
        names, width, 1.1, left=0.42, top=0.38 + 0.17 * lines, gap=(0.36, 0.34), bottom=0.2 + axis.height
    )
    for place in places:
        panel, layer, colour = place.axes, known[place.label][place.layer], look[place.label].colour
        _area(panel, np.zeros(tasks), layer.important, colour, 1.0)
        _area(panel, layer.important, layer.important + layer.redrawn, colour, REDRAWN)
        _area(panel, layer.important + layer.redrawn, np.full(tasks, float(layer.size)), "none", 1.0)
        panel.set_title(f"{place.layer} · {layer.size} filters", fontsize=7.5)
        panel.set_ylim(0, layer.size)
        panel.set_yticks([0, layer.size // 2, layer.size])
        panel.grid(visible=False)
        panel.set_xlim(0.4, tasks + 0.6)
        axis.set_ticks(panel)
        panel.tick_params(labelbottom=place.lowest)
        if place.lowest:
            panel.set_xlabel("after learning")
        if place.leftmost:
            panel.set_ylabel(wrapped(place.label))
    figure.legend(
        handles=[tuple(patches) for _, patches in kinds],
        labels=[text for text, _ in kinds],
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.2)},
        loc="upper left",
        ncols=3 if lines == 1 else 1,
        borderaxespad=0.3,
        handlelength=0.8 + 0.4 * len(colours),
    )
    told = "; ".join(
        f"{label}: " + ", ".join(f"{name} {layer.important[-1]:.0f} of {layer.size}" for name, layer in layers.items())
        for label, layers in known.items()
    )
    return Drawing(
        "capacity",
        "Important and free filters",
        "Filters of each layer after each task. When the full colour reaches the top, the layer has "
        "no filter left that a new task could make its own." + group.of_mean,
        f"Stacked bars of filters per layer and task. Important after the last task: {told}.",
        figure,
        [
            {
                "method": label,
                "layer": name,
                "after_task": task,
                "important": float(layer.important[k]),
                "redrawn": float(layer.redrawn[k]),
                "left_as_it_is": float(layer.resting[k]),
            }
            for label, layers in known.items()
            for name, layer in layers.items()
            for k, task in enumerate(group.tasks)
        ],
    )


def _area(axes: Axes, low: Array, high: Array, colour: str, alpha: float) -> None:
    """Bars from `low` to `high`, one per task, as one collection."""
    corners = zip(np.arange(len(low)) + 1, low, high, strict=True)
    bars = [[(x - 0.42, a), (x + 0.42, a), (x + 0.42, b), (x - 0.42, b)] for x, a, b in corners if b > a]
    outline = {"edgecolor": GRID, "linewidth": 0.8} if colour == "none" else {"linewidth": 0}
    axes.add_collection(PolyCollection(bars, facecolor=colour, alpha=alpha, **outline), autolim=False)


def layers_of(runs: list[Run], events: Events | None) -> dict[str, Layer]:
    """Per layer the mean counts over a method's runs; empty where the method does not tell filters apart."""
    important = [run.result.important_filters for run in runs if run.result.important_filters]
    free = [run.result.free_filters for run in runs if run.result.free_filters]
    tasks = len(runs[0].result.tasks)
    if not important or any(after is None or len(run) != tasks for run in [*important, *free] for after in run):
        return {}
    layers = {}
    for name in important[0][0] or {}:
        held = _mean(important, name)
        rest = _mean(free, name)
        redrawn = np.minimum(_redrawn(events, name, rest), rest)
        layers[name] = Layer(held, redrawn, rest - redrawn)
    return layers


def _mean(counts: list[list[dict[str, int] | None]], layer: str) -> Array:
    return mean_over_runs(np.array([[(after or {}).get(layer, 0) for after in run] for run in counts], dtype=float))


def _redrawn(events: Events | None, layer: str, free: Array) -> Array:
    """How many filters were redrawn after each task: the share of free ones in the run of these events."""
    share = np.zeros(len(free))
    for index, task in enumerate(events.tasks[: len(free)] if events else []):
        filters = task.get("filters", {}).get(layer, {})
        if "redrawn" in filters and "important" in filters:
            idle = len(filters["important"]) - sum(filters["important"])
            share[index] = sum(filters["redrawn"]) / idle if idle else 0.0
    return free * share
