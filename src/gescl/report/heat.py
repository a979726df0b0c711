"""Heat maps as pictures: one image instead of hundreds of rectangles, and a bar that says what the colours mean."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

MAP = "viridis"  # told apart by colour-blind readers, and by brightness alone


def heat_map(axes: Axes, values: npt.NDArray[np.float64], scale: Normalize, gap: bool) -> None:
    """Rows downwards, columns to the right, a unit each; nothing where a value is NaN."""
    # Whole multiples of a pixel: viewers that smooth images then cannot blur the cells.
    tall, broad = (16, 16) if gap else (8, max(1, 256 // values.shape[1]))
    picture = (colormaps[MAP](scale(values)) * 255).astype(np.uint8)
    picture[np.isnan(values), 3] = 0
    picture = picture.repeat(tall, axis=0).repeat(broad, axis=1)
    if gap:
        picture[::tall, :, 3] = 0
        picture[:, ::broad, 3] = 0
    rows, columns = values.shape
    axes.imshow(picture, extent=(0, columns, rows, 0), aspect="auto", interpolation="none")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def bright(values: npt.NDArray[np.float64], scale: Normalize) -> npt.NDArray[np.bool_]:
    """Where black reads better than white."""
    red, green, blue, _ = np.moveaxis(colormaps[MAP](scale(values)), -1, 0)
    result: npt.NDArray[np.bool_] = 0.3 * red + 0.59 * green + 0.11 * blue > 0.5
    return result


def colour_bar(panel: Axes, scale: Normalize, ticks: dict[float, str]) -> None:
    """A bar to the right of a panel, with names for some values."""
    figure, box = panel.get_figure(root=True), panel.get_position()
    assert figure is not None
    inch = 1 / figure.get_figwidth()
    bar = figure.add_axes((box.x1 + 0.12 * inch, box.y0, 0.1 * inch, box.height))
    low, high = float(scale.vmin or 0.0), float(scale.vmax or 1.0)
    shades = np.linspace(high, low, 128)[:, None]
    bar.imshow(colormaps[MAP](scale(shades)), extent=(0, 1, low, high), aspect="auto", interpolation="none")
    bar.set(xticks=[])
    bar.set_yticks(list(ticks), list(ticks.values()))
    bar.yaxis.tick_right()
    bar.grid(visible=False)
    bar.spines[:].set_visible(False)
