"""Joint: each new task is learned together with all earlier ones.

The only method that sees old data, and what the others are measured by. No strict upper bound: see docs/results.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from ..errors import UsageError
from ..networks.multihead import MultiHeadNet
from ..streams.task import Task
from .base import Method, Strategy, TaskContext


class Joint(Method):
    """Trains on all tasks so far together, from the current weights; or on a whole stream at once, at its end."""

    name: ClassVar[str] = "joint"
    sees_earlier: ClassVar[bool] = True

    once: bool = Field(
        False,
        description="in runs, train once on all tasks of the stream, together with its last: what joint comes to "
        "at the end, in a fraction of the time; accuracies before it are null",
    )

    def strategy(self, net: MultiHeadNet) -> JointStrategy:
        return JointStrategy(self, net)


class JointStrategy(Strategy[Joint]):
    def __init__(self, method: Joint, net: MultiHeadNet) -> None:
        super().__init__(method, net)
        net.shared_statistics = True
        self._seen: dict[int, Task] = {}

    def shown(self, index: int, task: Task, earlier: Sequence[Task]) -> list[tuple[int, Task]]:
        seen = {head: known for head, known in self._seen.items() if head < index}  # not a task that failed
        if len(seen) < index:
            seen = dict(enumerate(earlier))
        if len(seen) < index:
            raise UsageError(
                f"joint learns task {task.name!r} together with the {index} before it and needs their "
                "images again: learner.learn(task, earlier=[…])"
            )
        self._seen = {**seen, index: task}
        return list(self._seen.items())

    def forget_task(self, index: int, context: TaskContext) -> None:
        self._seen = {head - (head > index): task for head, task in self._seen.items() if head != index}
