"""`result.json` as the report reads it: checked, so that whatever is shown follows from the accuracy matrix."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, model_validator

from .. import metrics

Share = Annotated[float, Field(ge=0, le=1)]
Counts = list[dict[str, NonNegativeInt] | None]


class Result(BaseModel):
    """What one run came to. Keys that are not needed here are ignored, so a later minor addition does no harm."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    recipe: str
    method: str
    seed: int
    tasks: list[str] = Field(min_length=1)
    accuracy: list[list[Share | None]]
    average_accuracy: float | None = None
    forgetting: float | None = None
    learning_accuracy: float | None = None
    backward_transfer: float | None = None
    first_task_retention: float | None = None
    free_filters: Counts = []
    important_filters: Counts = []
    parameters: NonNegativeInt | None = None
    model_bytes: NonNegativeInt | None = None
    state_bytes: NonNegativeInt | None = None
    epochs: list[NonNegativeInt] = []
    seconds: NonNegativeFloat | None = None
    images_per_second: NonNegativeFloat | None = None
    threads: int | None = None
    device: str | None = None
    hardware: dict[str, str | int | None] = {}
    finished: str | None = None
    versions: dict[str, str] = {}

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


#: What is stated beside the matrix and follows from it.
DERIVED = ("average_accuracy", "forgetting", "learning_accuracy", "backward_transfer", "first_task_retention")
