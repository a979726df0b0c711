"""Importance of every filter as sorted strips, and what the first layer's filters see."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from .drawing import Drawing, hover
from .heat import colour_bar, heat_map
from .labels import LETTER, LINE, short_names, shortened, wrapped
from .panels import layer_panels, panels
from .run_files import of_methods, read_events, read_kernels
from .runs import Group
from .style import Looks

SIZE = 6.2  # points of tasks' names
KERNEL = 0.26  # inches of a kernel, at least
TILE = 8  # pixels a kernel is enlarged to, at least


def draw_importance(group: Group, look: Looks, width: float) -> Drawing | None:
    """One strip per layer: one row per task, one column per filter, sorted by the importance it has gathered."""
    found: dict[str, dict[str, list[dict[str, list[float]]]]] = {}
    for label, events in of_methods(group, read_events, "Importance").items():
        filters = [task.get("filters", {}) for task in events.tasks]
        names = [name for name in (filters[0] if filters else {}) if _complete(filters, name)]
        if names:
            found[label] = {name: [task[name] for task in filters] for name in names}
    if not found:
        return None
    names_of = {label: list(layers) for label, layers in found.items()}
    height = max(0.75, min(1.6, 0.115 * len(group.tasks)))
    names = short_names(group.tasks, 10)
    left = 0.25 + LETTER * SIZE * max(map(len, names))
    rows = range(0, len(names), max(1, round(SIZE * LINE / (height / len(names)) + 0.49)))
    figure, places = layer_panels(names_of, width, height, left=left, right=0.68, gap=(0.16, 0.5))
    free_shares = []
    for place in places:
        panel, (strip, free) = place.axes, _strip(found[place.label][place.layer])
        free_shares.append(f"{place.label} {place.layer} {free} of {strip.shape[1]}")
        heat_map(panel, strip, Normalize(0, 1), gap=False)
        panel.set_title(place.layer, fontsize=7.5)
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        panel.set_yticks([k + 0.5 for k in rows] if place.leftmost else [])
        panel.tick_params(length=0)
        if place.lowest:
            panel.set_xlabel("filter, sorted")
        if place.leftmost:
            for text, k in zip(panel.set_yticklabels([names[k] for k in rows], size=SIZE), rows, strict=True):
                hover(text, group.tasks[k])
            panel.set_ylabel(wrapped(place.label))
    rightmost = max(places, key=lambda place: place.axes.get_position().x1)  # the first of them
    colour_bar(rightmost.axes, Normalize(0, 1), {0.0: "0", 1.0: "max."})
    return Drawing(
        "importance",
        "Importance of every filter",
        "Each column is a filter, each row a task: the brighter, the more important to that task, relative to the "
        "layer's largest (for gescl, how much the filter's response varies over the task's images). Sorted by the "
        "importance gathered over all tasks; empty: free at that time." + group.of_one_run,
        "Strips of filter importance per task, sorted. Free after the last task: " + "; ".join(free_shares) + ".",
        figure,
        [
            {
                "method": label,
                "layer": name,
                "after_task": group.tasks[k],
                "filter": number,
                "importance": value,
                "important": int(after["important"][number]),
            }
            for label, layers in found.items()
            for name, history in layers.items()
            for k, after in enumerate(history)
            for number, value in enumerate(after["importance"])
        ],
    )


def _complete(filters: list[dict[str, dict[str, list[float]]]], layer: str) -> bool:
    keys = {"importance", "important", "strength"}
    return all(keys <= task.get(layer, {}).keys() for task in filters)


def _strip(history: list[dict[str, list[float]]]) -> tuple[npt.NDArray[np.float64], int]:
    """Tasks × filters, each task's importance relative to its largest, NaN where free; and how many are free now."""
    importance = np.array([after["importance"] for after in history])
    important = np.array([after["important"] for after in history]).astype(bool)
    order = np.argsort(-np.where(important[-1], np.array(history[-1]["strength"]), -1.0), kind="stable")
    largest = importance.max(axis=1, keepdims=True)
    strip = np.where(important, importance / np.where(largest > 0, largest, 1.0), np.nan)
    return strip[:, order], int((~important[-1]).sum())


def draw_kernels(group: Group, look: Looks, width: float) -> Drawing | None:
    """The first layer's kernels, one row per method; important ones are framed in the method's colour."""
    found = of_methods(group, read_kernels, "First-layer kernels")
    if not found:
        return None
    count = max(len(kernels.weights) for kernels in found.values())
    columns = min(max(16, count), int(width / KERNEL))
    lines = -(-count // columns)
    tile = (width - 0.2) / columns  # inches
    figure, axes = panels(len(found), 1, width, lines * tile, left=0.1, bottom=0.1, gap=(0.1, 0.3), share=False)
    told = []
    for (label, kernels), (panel,) in zip(found.items(), axes, strict=True):
        panel.imshow(_tiles(kernels.weights, columns), extent=(0, columns, lines, 0), interpolation="nearest")
        panel.set_axis_off()
        title = shortened(label, 70)
        if kernels.important is not None:
            frames = [_frame(int(k), columns) for k in np.flatnonzero(kernels.important)]
            panel.add_collection(
                PatchCollection(frames, facecolor="none", edgecolor=look[label].colour, linewidth=1.6, clip_on=False)
            )
            title += f": {len(frames)} of {len(kernels.weights)} important"
            told.append(title)
        panel.set_title(title)
    return Drawing(
        "kernels",
        "What the first layer's filters look for",
        "Kernels of the first layer after the last task; each is scaled to its own largest weight. Grey images: "
        "red is positive, blue negative. Framed: important, held for old tasks; the others are free. "
        "Methods without any frame do not tell filters apart." + group.of_one_run,
        "Pictures of the first layer's kernels. " + "; ".join(told) + ("." if told else ""),
        figure,
        [],
    )


def _frame(index: int, columns: int) -> Rectangle:
    return Rectangle((index % columns + 0.04, index // columns + 0.04), 0.92, 0.92)


def _tiles(weights: npt.NDArray[np.float32], columns: int) -> npt.NDArray[np.float64]:
    """All kernels in one picture with transparent gaps: in colour where there are three channels."""
    count, channels, height, width = weights.shape
    scale = np.abs(weights).reshape(count, -1).max(axis=1).reshape(-1, 1, 1, 1)
    scaled = weights / np.where(scale > 0, scale, 1.0)
    if channels == 3:
        colours = (scaled.transpose(0, 2, 3, 1) + 1) / 2
    else:
        colours = colormaps["RdBu_r"]((scaled.mean(axis=1) + 1) / 2)[..., :3]
    enlarge = max(1, TILE // max(height, width))
    tall, broad = height * enlarge + 2, width * enlarge + 2
    picture = np.zeros((-(-count // columns) * tall, columns * broad, 4))
    for k, tile in enumerate(colours):
        top, left = k // columns * tall + 1, k % columns * broad + 1
        enlarged = tile.repeat(enlarge, axis=0).repeat(enlarge, axis=1)
        picture[top : top + height * enlarge, left : left + width * enlarge, :3] = enlarged
        picture[top : top + height * enlarge, left : left + width * enlarge, 3] = 1.0
    return picture
