"""Joint: each new task is learned together with all earlier ones.

The upper bound, and the only method that sees old data.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ..errors import UsageError
from ..networks.multihead import MultiHeadNet
from ..streams.task import Task
from .base import Method, Strategy, TaskContext


class Joint(Method):
    """All tasks seen so far at once, from the weights the last task left; or all of a stream at once at its end."""

    name: ClassVar[str] = "joint"

    once: bool = Field(
        False,
        description="in runs, put every task off until the last and train once on all of them: the bound at the end "
        "of the stream for a fraction of the time; accuracies before it are null",
    )

    def strategy(self, net: MultiHeadNet) -> JointStrategy:
        return JointStrategy(self, net)


class JointStrategy(Strategy[Joint]):
    def __init__(self, method: Joint, net: MultiHeadNet) -> None:
        super().__init__(method, net)
        net.shared_statistics = True
        self._seen: dict[int, Task] = {}

    def begin_task(self, context: TaskContext) -> None:
        seen = {head: task for head, task in self._seen.items() if head < context.index}  # not a task that failed
        if len(seen) < context.index:
            seen = dict(enumerate(context.earlier))
        if len(seen) < context.index:
            raise UsageError(
                f"joint learns task {context.task.name!r} together with the {context.index} before it and needs their "
                "images again: learner.learn(task, earlier=[…])"
            )
        self._seen = seen
        context.train = [*((head, task.train) for head, task in seen.items()), *context.train]
        context.val = [*((head, task.val) for head, task in seen.items()), *context.val]

    def end_task(self, context: TaskContext) -> None:
        self._seen[context.index] = context.task
