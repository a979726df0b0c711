"""Sample test images of every task with what the final network says of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .drawing import Drawing
from .labels import shortened
from .panels import panels
from .run_files import Samples, first_good, read_samples
from .runs import Group
from .style import Looks

# Okabe and Ito's bluish green and vermilion; the marks say it too, for print and for the colour-blind.
RIGHT, WRONG = "#009e73", "#d55e00"
CELL = 0.5  # inches an image
PIXELS = 32  # an image is enlarged to at least this


def draw_samples(group: Group, look: Looks) -> Drawing | None:
    """One row per task; under each image the class predicted by GESCL (or the first method) and by fine-tuning."""
    ours = [label for label in ("gescl", "gescl-distill") if label in group.methods][:1]
    wanted = [*ours, *(label for label in group.methods if label == "finetune")] or list(group.methods)[:1]
    found: dict[str, list[Samples]] = {}
    for label in wanted:
        samples = first_good(group, label, read_samples, "Sample images")
        if samples and (not found or _same(samples, next(iter(found.values())))):
            found[label] = samples
    if not found:
        return None
    shown = next(iter(found.values()))
    count = max(len(samples.images) for samples in shown)
    blocks = 2 if len(shown) > 4 else 1
    rows = -(-len(shown) // blocks)
    line = 0.16  # inches of a line of text below an image
    tall = CELL + line * len(found) + 0.06
    name_width = 1.2
    figure, (axes,) = panels(
        1, blocks, (name_width + count * CELL, rows * tall), left=0.05, right=0.05, bottom=0.05, top=0.05, share=False
    )
    for block, panel in enumerate(axes):
        panel.set(xlim=(0, name_width + count * CELL), ylim=(rows * tall, 0))
        panel.set_axis_off()
        for row, task in enumerate(shown[block * rows : (block + 1) * rows]):
            top = row * tall
            panel.text(0, top + CELL / 2, shortened(task.task, 18), va="center", size=7)
            for k, label in enumerate(found):
                panel.text(0, top + CELL + line * (k + 0.5), shortened(label, 18), va="center", size=7)
            for k, image in enumerate(task.images):
                left = name_width + k * CELL
                panel.imshow(
                    _enlarged(image), extent=(left + 0.02, left + CELL - 0.02, top + CELL - 0.02, top + 0.02),
                    interpolation="nearest", aspect="auto",
                )  # fmt: skip
                for number, column in enumerate(found.values()):
                    text, right = _verdict(column[block * rows + row], k)
                    panel.text(
                        left + CELL / 2, top + CELL + line * (number + 0.45), text,
                        ha="center", va="center", size=7, color=RIGHT if right else WRONG,
                    )  # fmt: skip
        panel.set(xlim=(0, name_width + count * CELL), ylim=(rows * tall, 0))
    told = "; ".join(f"{label} {_score(samples)}" for label, samples in found.items())
    return Drawing(
        "samples",
        "Sample images and predictions",
        "Test images of every task, classified by the network as it was after the last task: ✓ right, ✗ wrong and "
        "what it said instead. The run with the smallest seed.",
        f"Sample images of every task with predicted classes. Right: {told}.",
        figure,
        wide=True,
    )


def _same(one: list[Samples], other: list[Samples]) -> bool:
    """Two runs of one seed show the same images; others cannot share a figure."""
    return len(one) == len(other) and all(
        a.task == b.task and np.array_equal(a.images, b.images) for a, b in zip(one, other, strict=True)
    )


def _verdict(samples: Samples, index: int) -> tuple[str, bool]:
    predicted = int(samples.probabilities[index].argmax())
    right = predicted == int(samples.labels[index])
    return f"{'✓' if right else '✗'} {shortened(samples.classes[predicted], 7)}", right


def _score(samples: list[Samples]) -> str:
    verdicts = [_verdict(task, k)[1] for task in samples for k in range(len(task.images))]
    return f"{sum(verdicts)} of {len(verdicts)}"


def _enlarged(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Height × width × RGB, whole multiples of its pixels, so that viewers do not blur it."""
    pixels = image.transpose(1, 2, 0)[:, :, :3]
    if pixels.shape[2] == 1:
        pixels = pixels.repeat(3, axis=2)
    times = max(1, PIXELS // max(pixels.shape[:2]))
    return pixels.repeat(times, axis=0).repeat(times, axis=1)
