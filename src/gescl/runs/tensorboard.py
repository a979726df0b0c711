"""A run as TensorBoard events, for those who watch many runs there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UnavailableError, missing_extra
from .scalars import ScalarLog


class TensorBoardLog(ScalarLog):
    """Writes what a run measures into a folder that `tensorboard --logdir` reads."""

    def __init__(self, folder: Path, epochs: int) -> None:
        super().__init__(epochs)
        try:
            from torch.utils.tensorboard import SummaryWriter  # an extra, and slow to import
        except ImportError as error:
            raise UnavailableError(missing_extra("TensorBoard", "tensorboard")) from error
        writer_class: Any = SummaryWriter  # torch gives it no types
        self._new_writer: Callable[[], Any] = lambda: writer_class(str(folder))
        self._writer: Any = None

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, name: str, value: float, step: int) -> None:
        if self._writer is None:  # not earlier: a run refuses a folder with files it does not know
            self._writer = self._new_writer()
        self._writer.add_scalar(name, value, step)
