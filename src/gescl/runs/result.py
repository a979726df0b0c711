"""`result.json`: what one run came to. Written and read by everybody through this model and no other way."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, ValidationError, model_validator

from .. import metrics
from ..errors import DataError
from ..store import write_json

FORMAT = 1  # also the literal below
Share = Annotated[float, Field(ge=0, le=1)]
Rows = list[list[Share | None]]
Counts = list[dict[str, NonNegativeInt] | None]
#: What follows from the accuracy matrix: filled in where it is not given, checked where it is.
DERIVED = ("average_accuracy", "forgetting", "learning_accuracy", "backward_transfer", "first_task_retention")


class Validation(BaseModel):
    """Accuracies on validation images: what settings are chosen by."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    accuracy: Rows
    #: Per task; none in results of the first version.
    images: list[NonNegativeInt] = []
    average_accuracy: float | None = None
    forgetting: float | None = None

    def variance(self) -> float | None:
        """Of the average accuracy, as that of so many images; None where their number is not known."""
        known = [(share, count) for share, count in zip(self.accuracy[-1], self.images, strict=False) if count]
        if len(known) < len(self.accuracy[-1]) or any(share is None for share, _ in known):
            return None
        return sum(share * (1 - share) / count for share, count in known if share is not None) / len(known) ** 2

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, content: Any) -> Any:
        return _derived(content, ("average_accuracy", "forgetting"))


class Result(BaseModel):
    """What one run came to. Unknown keys are ignored, so that results of a later minor version can be read."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    format: Literal[1] = 1
    recipe: str
    #: The method's label: its name, with the variant if there is one.
    method: str
    seed: int
    tasks: list[str] = Field(min_length=1)
    accuracy: Rows
    average_accuracy: float | None = None
    #: After each task.
    average_accuracies: list[float | None] = []
    forgetting: float | None = None
    learning_accuracy: float | None = None
    backward_transfer: float | None = None
    first_task_retention: float | None = None
    #: The matrix before the method's work at the end of each task.
    accuracy_before_end: Rows = []
    validation: Validation | None = None
    free_filters: Counts = []
    important_filters: Counts = []
    parameters: NonNegativeInt | None = None
    model_bytes: NonNegativeInt | None = None
    state_bytes: NonNegativeInt | None = None
    epochs: list[NonNegativeInt] = []
    #: Per task, how often an epoch was repeated with a smaller rate because it diverged.
    retries: list[NonNegativeInt] = []
    #: Training and the method's work at the end of tasks, without tests.
    seconds: NonNegativeFloat | None = None
    seconds_per_task: list[NonNegativeFloat] = []
    #: Training images per second of training, as in the epochs' events.
    images_per_second: NonNegativeFloat | None = None
    #: Per process.
    threads: int | None = None
    processes: int = 1
    device: str | None = None
    hardware: dict[str, str | int | None] = {}
    finished: str | None = None
    versions: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, content: Any) -> Any:
        return _derived(content, ("average_accuracies", *DERIVED))

    @model_validator(mode="after")
    def _whole(self) -> Result:
        sizes = [len(row) for row in self.accuracy]
        if sizes != list(range(1, len(self.tasks) + 1)):
            raise ValueError(f"accuracy must have rows of 1 … {len(self.tasks)} numbers for its tasks, got {sizes}")
        for name in DERIVED:
            stated, follows = getattr(self, name), getattr(metrics, name)(self.accuracy)
            if stated is not None and (follows is None or not math.isclose(stated, follows, abs_tol=1e-9)):
                raise ValueError(f"{name} is {stated}, but the accuracy matrix gives {follows}")
        return self

    def write(self, path: Path) -> None:
        write_json(path, self.model_dump(mode="json"))


def read_result(path: Path) -> Result:
    """The result in a file; a file that is not one is refused with the reason."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(content, dict) or "format" not in content:
        raise DataError(f"{path.name} is not a result of gescl's")
    if content["format"] != FORMAT:
        raise DataError(f"{path.name} has format {content['format']}; this version of gescl reads format {FORMAT}")
    try:
        return Result.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise DataError(f"{path.name}: {f'{place}: ' if place else ''}{message}") from error


def _derived(content: Any, names: tuple[str, ...]) -> Any:
    """Fill in what follows from the accuracy matrix; a matrix that is none is left to the validation of its field."""
    if not isinstance(content, dict) or all(content.get(name) is not None for name in names):
        return content
    try:
        follows = {name: getattr(metrics, name)(content["accuracy"]) for name in names}
    except (KeyError, TypeError, IndexError, ValueError):
        return content
    return {**content, **{name: value for name, value in follows.items() if content.get(name) is None}}
