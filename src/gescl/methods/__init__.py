"""How to learn without forgetting: one method per file, and the table of their names."""

from ..errors import UsageError
from ..plugins import find, name_of
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
    """The method of that name: a shipped one, one that a package plugs in, or `package.module:Class` of your own."""
    found = find("method", name, METHODS)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(f"method {name}: it is no subclass of gescl.Method")
    return found


def method_name(method: Method | type[Method]) -> str:
    """The name by which `method_class` finds a method's class again."""
    kind = method if isinstance(method, type) else type(method)
    return name_of(kind, METHODS, kind.name, "method")


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
    "method_name",
]
