"""How to learn without forgetting: one method per file, and the table of their names."""

from ..errors import UsageError, unknown
from .ags import AgsCl
from .base import Batch, Capacity, Method, Strategy, TaskContext
from .ewc import Ewc
from .finetune import Finetune
from .frozen import Frozen
from .gescl import Gescl
from .gescl_distill import GesclDistill
from .hat import Hat
from .joint import Joint
from .lwf import Lwf
from .mas import Mas
from .si import Si

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Gescl, GesclDistill, AgsCl, Ewc, Si, Mas, Lwf, Hat, Finetune, Joint, Frozen)
}


def method_class(name: str) -> type[Method]:
    """The method of that name."""
    if name not in METHODS:
        raise UsageError(unknown("method", name, METHODS))
    return METHODS[name]


__all__ = [
    "METHODS",
    "AgsCl",
    "Batch",
    "Capacity",
    "Ewc",
    "Finetune",
    "Frozen",
    "Gescl",
    "GesclDistill",
    "Hat",
    "Joint",
    "Lwf",
    "Mas",
    "Method",
    "Si",
    "Strategy",
    "TaskContext",
    "method_class",
]
