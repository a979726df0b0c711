"""Accuracy as tasks are learned: of the first task, on average, and of every task."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba

from .drawing import Drawing
from .labels import label_ends, room_for
from .panels import method_panels, panels
from .runs import Group
from .statistics import Array, accuracy_arrays, mean_accuracies, mean_over_runs
from .style import Looks, accuracy_axis, task_axis

BAND = "The line is the mean over seeds, the band reaches from the lowest to the highest seed."


def draw_first_task(group: Group, look: Looks) -> Drawing:
    """How much of the first task is left after each further one."""
    return _draw_curves(
        len(group.tasks),
        look,
        {label: matrices[:, :, 0] for label, matrices in accuracy_arrays(group).items()},
        name="first-task",
        title="Accuracy on the first task",
        caption=f"Test accuracy on the first task after each task learned: a fall is forgetting. {BAND}",
    )


def draw_average(group: Group, look: Looks) -> Drawing:
    """Mean accuracy over all tasks so far (Eq. 21) after each task."""
    curves = {
        label: np.stack([mean_over_runs(matrix.T) for matrix in matrices])
        for label, matrices in accuracy_arrays(group).items()
    }
    return _draw_curves(
        len(group.tasks),
        look,
        curves,
        name="average-accuracy",
        title="Average accuracy over all tasks so far",
        caption=f"Test accuracy averaged over the tasks learned so far, the current one included. {BAND}",
    )


def draw_every_task(group: Group, look: Looks) -> Drawing:
    """One panel per method, one line per task from when it was learned."""
    means = mean_accuracies(group)
    tasks = len(group.tasks)
    figure, places = method_panels(list(means), (2.1, 1.3))
    lowest = min(_lowest(mean) for mean in means.values())
    for place in places:
        panel, mean, colour = place.axes, means[place.label], look[place.label].colour
        steps = np.arange(1, tasks + 1)
        lines = [np.column_stack([steps[task:], mean[task:, task]]) for task in range(1, tasks)]
        shades = [to_rgba(colour, 0.75 - 0.45 * task / tasks) for task in range(1, tasks)]
        panel.add_collection(LineCollection(lines, colors=shades, linewidths=0.9))
        panel.plot(steps, mean[:, 0], color=colour, linewidth=1.8)
        known = ~np.isnan(mean)
        measured = np.flatnonzero(known.any(axis=0))
        learned = known.argmax(axis=0)[measured]  # the first accuracy of each task
        panel.plot(steps[learned], mean[learned, measured], "o", color=colour, markersize=2.6)
        accuracy_axis(panel, lowest)
        task_axis(panel, tasks, "tasks learned" if place.lowest else "")
        panel.tick_params(labelbottom=place.lowest)
        if place.leftmost:
            panel.set_ylabel("test accuracy")
    alt = "Small line charts, one per method, one line per task. Lowest accuracy of any task at the end: "
    alt += "; ".join(f"{label} {_lowest(mean[-1]):.2f}" for label, mean in means.items()) + "."
    return Drawing(
        "every-task",
        "Every task's accuracy, method by method",
        "Each line is one task, from the moment it was learned (dot); the strong line is the first task. "
        "Level lines: nothing is forgotten. Mean over seeds.",
        alt,
        figure,
        wide=len(means) > 1,
    )


def _draw_curves(
    tasks: int,
    look: Looks,
    curves: Mapping[str, Array],
    *,
    name: str,
    title: str,
    caption: str,
) -> Drawing:
    figure, ((axes,),) = panels(1, 1, (2.85, 2.25), right=max(1.0, room_for(curves)), top=0.12)
    steps = np.arange(1, tasks + 1)
    means = {label: mean_over_runs(values) for label, values in curves.items()}
    for label, values in reversed(list(curves.items())):  # the first method is drawn last, on top
        axes.plot(steps, means[label], marker=look[label].marker, **look[label].line)
        there = ~np.isnan(values).all(axis=0)
        if len(values) > 1 and there.any():
            low, high = np.nanmin(values[:, there], axis=0), np.nanmax(values[:, there], axis=0)
            axes.fill_between(steps[there], low, high, color=look[label].colour, alpha=0.13, linewidth=0)
    task_axis(axes, tasks)
    axes.set_ylabel("test accuracy")
    accuracy_axis(axes, min(_lowest(values) for values in curves.values()))
    label_ends(axes, tasks, {label: mean[-1] for label, mean in means.items()}, look)
    told = "; ".join(f"{label} from {_number(mean[0])} to {_number(mean[-1])}" for label, mean in means.items())
    return Drawing(name, title, caption, f"Line chart: {title.lower()}, one line per method. {told}.", figure)


def _lowest(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.min()) if len(known) else 1.0


def _number(value: float) -> str:
    return "unknown" if np.isnan(value) else f"{value:.2f}"
