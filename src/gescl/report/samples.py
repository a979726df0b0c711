"""Sample test images of every task with what the final network says of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from .drawing import Drawing, hover
from .labels import LETTER, short_names, shortened
from .panels import panels
from .run_files import Samples, of_methods, read_samples
from .runs import Group
from .style import NARROW, Looks

# Okabe and Ito's bluish green and vermilion; the marks say it too, for print and for the colour-blind.
RIGHT, WRONG = "#009e73", "#d55e00"
NAMES, GAP, LINE = 0.85, 0.3, 0.15  # inches of the names at the left, between two blocks, of a line of text
SIZE = 6.5  # points of text
PIXELS = 32  # an image is enlarged to at least this


def draw_samples(group: Group, look: Looks, width: float) -> Drawing | None:
    """One row per task; under each image the class predicted by GESCL (or the first method) and by fine-tuning."""
    found: dict[str, list[Samples]] = {}
    for label, samples in of_methods(group, read_samples, "Sample images", shown_methods(group)).items():
        if samples and (not found or _same(samples, next(iter(found.values())))):
            found[label] = samples
    if not found:
        return None
    shown = next(iter(found.values()))
    width = width if len(shown) > 1 else NARROW
    blocks = 2 if width > NARROW else 1
    rows = -(-len(shown) // blocks)
    broad = (width - 0.1 - (blocks - 1) * GAP) / blocks
    cell = (broad - NAMES) / max(len(samples.images) for samples in shown)
    letters = int(NAMES / (LETTER * SIZE)) - 1
    names = short_names([task.task for task in shown], letters)
    tall = cell + LINE * len(found) + 0.1
    figure, (axes,) = panels(
        1, blocks, width, rows * tall, left=0.05, right=0.05, bottom=0.05, top=0.05, gap=(GAP, 0), share=False
    )
    for block, panel in enumerate(axes):
        panel.set_axis_off()
        for row, task in enumerate(shown[block * rows : (block + 1) * rows]):
            top = row * tall
            _name(panel, top + cell / 2, names[block * rows + row], task.task)
            for number, (label, samples) in enumerate(found.items()):
                middle = top + cell + LINE * (number + 0.5)
                _name(panel, middle, shortened(label, letters), label)
                _verdicts(panel, samples[block * rows + row], middle, cell)
            for k, image in enumerate(task.images):
                left = NAMES + k * cell
                panel.imshow(
                    _enlarged(image), extent=(left + 0.02, left + cell - 0.02, top + cell - 0.02, top + 0.02),
                    interpolation="nearest", aspect="auto",
                )  # fmt: skip
        panel.set(xlim=(0, broad), ylim=(rows * tall, 0))
    told = "; ".join(f"{label} {_score(samples)}" for label, samples in found.items())
    return Drawing(
        "samples",
        "Sample images and predictions",
        "Test images of every task, classified by the network as it was after the last task: ✓ right, ✗ wrong and "
        f"what it said instead.{group.of_one_run}",
        f"Sample images of every task with predicted classes. Right: {told}.",
        figure,
        [],
    )


def shown_methods(group: Group) -> list[str]:
    """Of which methods single images are shown: GESCL and fine-tuning, or else the first."""
    ours = [label for label in ("gescl", "gescl-distill") if label in group.methods][:1]
    return [*ours, *(label for label in group.methods if label == "finetune")] or list(group.methods)[:1]


def _name(panel: Axes, middle: float, text: str, name: str) -> None:
    hover(panel.text(0, middle, text, va="center", size=SIZE), name)


def _verdicts(panel: Axes, samples: Samples, middle: float, cell: float) -> None:
    """Under each image whether it was recognised, and as what."""
    letters = max(1, int(cell / (LETTER * SIZE)) - 2)
    for k in range(len(samples.images)):
        predicted = samples.classes[int(samples.probabilities[k].argmax())]
        sign, colour = ("✓", RIGHT) if _right(samples, k) else ("✗", WRONG)
        text = panel.text(
            NAMES + (k + 0.5) * cell, middle, f"{sign} {shortened(predicted, letters)}",
            ha="center", va="center", size=SIZE, color=colour,
        )  # fmt: skip
        truth = samples.classes[int(samples.labels[k])]
        hover(text, predicted if predicted == truth else f"{predicted}, not {truth}")


def _same(one: list[Samples], other: list[Samples]) -> bool:
    """Two runs of one seed show the same images; others cannot share a figure."""
    return len(one) == len(other) and all(
        a.task == b.task and np.array_equal(a.images, b.images) for a, b in zip(one, other, strict=True)
    )


def _right(samples: Samples, index: int) -> bool:
    return int(samples.probabilities[index].argmax()) == int(samples.labels[index])


def _score(samples: list[Samples]) -> str:
    verdicts = [_right(task, k) for task in samples for k in range(len(task.images))]
    return f"{sum(verdicts)} of {len(verdicts)}"


def _enlarged(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Height × width × RGB, whole multiples of its pixels, so that viewers do not blur it."""
    pixels = image.transpose(1, 2, 0)[:, :, :3]
    if pixels.shape[2] == 1:
        pixels = pixels.repeat(3, axis=2)
    times = max(1, PIXELS // max(pixels.shape[:2]))
    return pixels.repeat(times, axis=0).repeat(times, axis=1)
