"""Names of tasks along an axis: level where they fit, else slanted and shortened, in full where the mouse rests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from .drawing import hover
from .labels import LETTER, short_names

SIZE = 7.0  # points
LONGEST = 12  # letters of a slanted name
SLANTED = 0.15  # inches from one slanted name to the next, at least


@dataclass(frozen=True)
class TaskNames:
    """The names of a stream's tasks for an axis of so many inches."""

    names: Sequence[str]
    inches: float

    @property
    def _step(self) -> float:
        return self.inches / max(1, len(self.names))

    @property
    def level(self) -> bool:
        return max(map(len, self.names)) * LETTER * SIZE <= 0.92 * self._step

    @property
    def height(self) -> float:
        """Inches that the names take below the axis."""
        letters = 0 if self.level else min(LONGEST, max(map(len, self.names)))
        return 0.16 + letters * LETTER * SIZE * 0.71

    def set_ticks(self, axes: Axes, first: float = 1.0) -> None:
        """Ticks at `first`, `first` + 1, …: at every task, or at every second, third, … where they are too many."""
        every = 1 if self.level else max(1, round(SLANTED / self._step + 0.49))
        places = range(0, len(self.names), every)
        axes.set_xticks([first + k for k in places])
        slant: dict[str, Any] = {} if self.level else {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        short = self.names if self.level else short_names(self.names, LONGEST)
        axes.set_xticklabels([short[k] for k in places], size=SIZE, **slant)
        for tick, k in zip(axes.xaxis.get_major_ticks(), places, strict=True):
            hover(tick.label1, self.names[k])
