"""One fixed-size CNN that learns task after task without forgetting, after each task's data has been deleted.

from gescl import Learner, Gescl, load_stream
learner = Learner(network="small")
for task in load_stream("digits"):
    learner.learn(task)
learner.average_accuracy, learner.forgetting
"""

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
