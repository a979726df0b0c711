"""Training and validation loss, epoch by epoch, through all tasks."""

from __future__ import annotations

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from .drawing import Drawing
from .panels import method_panels
from .run_files import of_methods, read_events
from .runs import Group
from .style import GRID, MUTED, NARROW, Looks

DECADE = (1, 2, 5)


def draw_training(group: Group, look: Looks, width: float) -> Drawing | None:
    """One panel per method: the loss on training and validation images over epochs; a vertical line starts a task."""
    logs = of_methods(group, read_events, "Training curves")
    found = {label: events for label, events in logs.items() if events.epochs}
    if not found:
        return None
    figure, places = method_panels(list(found), width if len(found) > 1 else NARROW, 1.4, left=0.66, top=0.5)
    losses = [float(epoch[key]) for events in found.values() for epoch in events.epochs for key in ("loss", "val_loss")]
    low, high = _limits(losses)
    for place in places:
        panel, events = place.axes, found[place.label]
        tasks = np.array([int(epoch["index"]) for epoch in events.epochs])
        starts = np.flatnonzero(np.diff(tasks, prepend=-1))
        steps = np.arange(1, len(tasks) + 1)
        panel.vlines(steps[starts] - 0.5, low, high, color=GRID, linewidth=0.6)
        for key, alpha, width in (("loss", 0.45, 0.8), ("val_loss", 1.0, 1.3)):
            values = np.array([float(epoch[key]) for epoch in events.epochs])
            # A gap between tasks: one line with holes is drawn faster than many lines.
            panel.plot(
                np.insert(steps.astype(float), starts, np.nan),
                np.insert(values, starts, np.nan),
                color=look[place.label].colour,
                marker="." if len(starts) == len(steps) else None,
                alpha=alpha,
                linewidth=width,
            )
        panel.set_yscale("log")
        panel.set_ylim(low, high)
        panel.grid(visible=False, axis="x")
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panel.tick_params(labelbottom=place.lowest)
        if place.lowest:
            panel.set_xlabel("epochs, all tasks")
        if place.leftmost:
            panel.set_ylabel("cross-entropy")
    ticks = [k * 10.0**e for e in range(-9, 9) for k in DECADE if low <= k * 10.0**e <= high]
    shown = ticks if len(ticks) <= 6 else [tick for tick in ticks if f"{tick:e}"[0] == "1"]
    shared = places[0].axes.yaxis  # by all panels
    shared.set_major_locator(FixedLocator(shown))
    shared.set_minor_locator(NullLocator())
    shared.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    handles = [
        Line2D([], [], color=MUTED, linewidth=1.3, label="validation images"),
        Line2D([], [], color=MUTED, linewidth=0.8, alpha=0.45, label="training images"),
    ]
    figure.legend(handles=handles, loc="upper left", ncols=2, borderaxespad=0.3)
    told = "; ".join(f"{label} {len(events.epochs)} epochs" for label, events in found.items())
    return Drawing(
        "training",
        "Training curves",
        "Loss over the epochs of all tasks, one after the other; a thin vertical line is where a task begins."
        + group.of_one_run,
        f"Small line charts of training and validation loss, one per method: {told}.",
        figure,
        [
            {
                "method": label,
                "task": epoch.get("task"),
                "epoch": epoch.get("epoch"),
                "loss": epoch["loss"],
                "val_loss": epoch["val_loss"],
            }
            for label, events in found.items()
            for epoch in events.epochs
        ],
    )


def _limits(losses: list[float]) -> tuple[float, float]:
    """The axis of losses: all of them, but at most four decades below the largest."""
    positive = [loss for loss in losses if loss > 0 and np.isfinite(loss)]
    high = max(positive, default=1.0) * 1.3
    return max(min(positive, default=0.1) / 1.3, high / 1e4), high
