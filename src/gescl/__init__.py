"""One fixed-size CNN that learns task after task without forgetting, after each task's data has been deleted.

from gescl import Learner, Gescl, load_stream
learner = Learner(network="small")
for task in load_stream("digits"):
    learner.learn(task)
learner.average_accuracy, learner.forgetting
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import DataError, GesclError, UsageError
    from .learner import Learner
    from .methods import AgsCl, Ewc, Finetune, Frozen, Gescl, GesclDistill, Hat, Joint, Lwf, Mas, Method, Si
    from .records import Guess, Prediction, TaskRecord
    from .runs.experiment import Experiment
    from .runs.recipe import Recipe, load_recipe
    from .runtime import speed_up_process
    from .streams import Task, TaskStream, folder_stream, load_stream, permuted, rotated, split
    from .training import Training

__all__ = [
    "AgsCl",
    "DataError",
    "Ewc",
    "Experiment",
    "Finetune",
    "Frozen",
    "Gescl",
    "GesclDistill",
    "GesclError",
    "Guess",
    "Hat",
    "Joint",
    "Learner",
    "Lwf",
    "Mas",
    "Method",
    "Prediction",
    "Recipe",
    "Si",
    "Task",
    "TaskRecord",
    "TaskStream",
    "Training",
    "UsageError",
    "folder_stream",
    "load_recipe",
    "load_stream",
    "permuted",
    "rotated",
    "speed_up_process",
    "split",
]

#: Where each name is defined. It is imported when it is first used: torch takes a second, and `gescl --version` or a
#: worker that only reads results need not wait for it.
_HOME = {
    "DataError": ".errors",
    "GesclError": ".errors",
    "UsageError": ".errors",
    "Learner": ".learner",
    "AgsCl": ".methods",
    "Ewc": ".methods",
    "Finetune": ".methods",
    "Frozen": ".methods",
    "Gescl": ".methods",
    "GesclDistill": ".methods",
    "Hat": ".methods",
    "Joint": ".methods",
    "Lwf": ".methods",
    "Mas": ".methods",
    "Method": ".methods",
    "Si": ".methods",
    "Guess": ".records",
    "Prediction": ".records",
    "TaskRecord": ".records",
    "Experiment": ".runs.experiment",
    "Recipe": ".runs.recipe",
    "load_recipe": ".runs.recipe",
    "speed_up_process": ".runtime",
    "Task": ".streams",
    "TaskStream": ".streams",
    "folder_stream": ".streams",
    "load_stream": ".streams",
    "permuted": ".streams",
    "rotated": ".streams",
    "split": ".streams",
    "Training": ".training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
