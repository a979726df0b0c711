"""Accuracy as tasks are learned: of the first task, on average, and of every task; and what of each was forgotten."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.ticker import MaxNLocator

from .drawing import Data, Drawing, hover
from .labels import End, label_ends, room_for, short_names, shortened
from .panels import grid_of, method_panels, panels
from .runs import Group
from .statistics import Array, accuracy_arrays, mean_accuracies, mean_over_runs
from .style import DASHES, NARROW, TASK_COLOURS, Looks, accuracy_axis
from .task_names import LONGEST, TaskNames

SIZE = 6.2  # points of a task's name at the end of its line


def draw_first_task(group: Group, look: Looks, width: float) -> Drawing:
    """How much of the first task is left after each further one."""
    return _draw_curves(
        group,
        look,
        {label: matrices[:, :, 0] for label, matrices in accuracy_arrays(group).items()},
        NARROW,
        name="first-task",
        title="Accuracy on the first task",
        caption="Test accuracy on the first task after each task learned: a fall is forgetting.",
    )


def draw_average(group: Group, look: Looks, width: float) -> Drawing:
    """Mean accuracy over all tasks so far (Eq. 21) after each task."""
    curves = {
        label: np.stack([mean_over_runs(matrix.T) for matrix in matrices])
        for label, matrices in accuracy_arrays(group).items()
    }
    return _draw_curves(
        group,
        look,
        curves,
        NARROW,
        name="average-accuracy",
        title="Average accuracy over all tasks so far",
        caption="Test accuracy averaged over the tasks learned so far, the current one included.",
    )


def draw_forgetting(group: Group, look: Looks, width: float) -> Drawing | None:
    """What each task lost from its best accuracy to its last; None where there is no second task to forget by."""
    if len(group.tasks) < 2:
        return None
    curves = {
        label: np.stack([_forgotten(matrix) for matrix in matrices])
        for label, matrices in accuracy_arrays(group).items()
    }
    if all(np.isnan(values).all() for values in curves.values()):
        return None
    return _draw_curves(
        group,
        look,
        curves,
        width,
        name="forgetting",
        title="Forgetting of each task",
        caption="The best test accuracy that a task ever had minus its last. The last task cannot have been forgotten.",
    )


def _forgotten(matrix: Array) -> Array:
    """Per task its best accuracy minus its last; unknown for one that was measured once only."""
    several = (~np.isnan(matrix)).sum(axis=0) > 1
    best = np.where(several, np.max(np.where(np.isnan(matrix), -1.0, matrix), axis=0), np.nan)
    lost: Array = best - matrix[-1]
    return lost[:-1]


def draw_every_task(group: Group, look: Looks, width: float) -> Drawing:
    """One panel per method, one line per task from when it was learned."""
    means = mean_accuracies(group)
    tasks = group.tasks
    width = width if len(means) > 1 else NARROW
    _, columns = grid_of(len(means), width)
    short = short_names(tasks, LONGEST)
    room = room_for(short, SIZE)
    plot = (width - 0.5 - columns * room - 0.1) / columns
    names = TaskNames(tasks, plot)
    height = max(1.5 if columns > 1 else 1.9, min(3.2, 0.108 * len(tasks)))
    figure, places = method_panels(
        list(means), width, height, right=room + 0.05, gap=(room + 0.08, 0.36), bottom=0.2 + names.height
    )
    lowest = min(_lowest(mean) for mean in means.values())
    steps = np.arange(1, len(tasks) + 1)
    for place in places:
        panel, mean = place.axes, means[place.label]
        accuracy_axis(panel, lowest)
        panel.set_xlim(0.7, len(tasks) + 0.3)
        for task, name in enumerate(tasks):
            curve = mean[:, task]
            turn, colour = divmod(task, len(TASK_COLOURS))
            (line,) = panel.plot(
                steps[task:],
                curve[task:],
                color=TASK_COLOURS[colour],
                linestyle="-" if turn == 0 else (0, DASHES[(turn - 1) % len(DASHES)]),
                linewidth=2.0 if task == 0 else 1.0,
            )
            hover(line, name)
            if len(learned := np.flatnonzero(~np.isnan(curve))):  # a dot at the first accuracy
                panel.plot(steps[learned[0]], curve[learned[0]], "o", color=TASK_COLOURS[colour], markersize=2.8)
        names.set_ticks(panel)
        panel.tick_params(labelbottom=place.lowest)
        ends = [End(short[k], mean[-1, k], TASK_COLOURS[k % len(TASK_COLOURS)], tasks[k]) for k in range(len(tasks))]
        label_ends(panel, len(tasks), ends, SIZE)
        if place.lowest:
            panel.set_xlabel("after learning")
        if place.leftmost:
            panel.set_ylabel("test accuracy")
    alt = "Small line charts, one per method, one line per task. Lowest accuracy of any task at the end: "
    alt += "; ".join(f"{label} {_lowest(mean[-1]):.2f}" for label, mean in means.items()) + "."
    return Drawing(
        "every-task",
        "Every task's accuracy, method by method",
        "Each line is one task, from the moment it was learned (dot) to its name; the strong line is the first task. "
        "Level lines: nothing is forgotten." + group.of_mean,
        alt,
        figure,
        matrix_data(group),
    )


def matrix_data(group: Group) -> Data:
    """Every accuracy of every run."""
    return [
        {
            "method": label,
            "seed": run.result.seed,
            "after_task": run.result.tasks[t],
            "on_task": run.result.tasks[k],
            "accuracy": value,
        }
        for label, runs in group.methods.items()
        for run in runs
        for t, row in enumerate(run.result.accuracy)
        for k, value in enumerate(row)
    ]


def _draw_curves(
    group: Group,
    look: Looks,
    curves: Mapping[str, Array],
    width: float,
    *,
    name: str,
    title: str,
    caption: str,
) -> Drawing:
    """One line per method through its values, seeds × tasks: accuracies, or what of them was forgotten."""
    tasks = group.tasks[: next(iter(curves.values())).shape[1]]
    steps = np.arange(1, len(tasks) + 1)
    room = room_for([shortened(label) for label in curves])
    names = TaskNames(tasks, width - 0.55 - room)
    figure, ((axes,),) = panels(1, 1, width, 2.1, left=0.55, right=room, bottom=0.2 + names.height, top=0.12)
    means = {label: mean_over_runs(values) for label, values in curves.items()}
    for label, values in reversed(list(curves.items())):  # the first method is drawn last, on top
        (line,) = axes.plot(steps, means[label], marker=look[label].marker, **look[label].line)
        hover(line, label)
        there = ~np.isnan(values).all(axis=0)
        if len(values) > 1 and there.any():
            low, high = np.nanmin(values[:, there], axis=0), np.nanmax(values[:, there], axis=0)
            axes.fill_between(steps[there], low, high, color=look[label].colour, alpha=0.13, linewidth=0)
    axes.set_xlim(0.7, len(tasks) + 0.3)
    names.set_ticks(axes)
    if name == "forgetting":
        highest = max(np.nanmax(values, initial=0.0) for values in curves.values())
        axes.set_ylim(-0.03 * max(highest, 0.1), 1.05 * max(highest, 0.1))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.set(ylabel="forgetting", xlabel="task")
    else:
        accuracy_axis(axes, min(_lowest(values) for values in curves.values()))
        axes.set(ylabel="test accuracy", xlabel="after learning")
    ends = [End(shortened(label), float(mean[-1]), look[label].colour, label) for label, mean in means.items()]
    label_ends(axes, len(tasks), ends)
    told = "; ".join(f"{label} from {_number(mean[0])} to {_number(mean[-1])}" for label, mean in means.items())
    if group.several_seeds:
        caption += " The line is the mean over seeds, the band reaches from the lowest to the highest seed."
    data: Data = [
        {"method": label, "seed": run.result.seed, "task": run.result.tasks[k], name.replace("-", "_"): _known(value)}
        for label, values in curves.items()
        for run, row in zip(group.methods[label], values, strict=True)
        for k, value in enumerate(row)
    ]
    return Drawing(name, title, caption, f"Line chart: {title.lower()}, one line per method. {told}.", figure, data)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _lowest(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.min()) if len(known) else 1.0


def _number(value: float) -> str:
    return "unknown" if np.isnan(value) else f"{value:.2f}"
