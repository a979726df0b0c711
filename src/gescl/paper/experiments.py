"""What `gescl reproduce` runs, as data: a stream, what is tuned on what, the methods, and the published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import UsageError, unknown
from ..methods import method_class
from ..runs.recipe import read_toml, shipped_recipes

#: What a budget sets. The recipes' own training fits a CPU; the reference protocol is what was published.
BUDGETS: dict[str, dict[str, Any]] = {"small": {}, "paper": {"training": "reference"}}
METHODS = ("gescl", "gescl-distill", "ags-cl", "hat", "ewc", "si", "mas", "lwf", "finetune", "frozen", "joint")
#: Settings that are not up for choice, by method.
FIXED: dict[str, dict[str, Any]] = {"joint": {"method.once": True}}
#: Methods for which one run is enough: a bound, not a rival.
ONE_SEED = ("joint",)


@dataclass(frozen=True)
class PaperExperiment:
    """One experiment: tune on one recipe, run another with what was chosen. Its runs bear its name.

    Runs to choose settings bear the grid's name: plans with the same grid tune on the same recipe, once.
    """

    name: str
    recipe: str
    grid: Path
    tuning: str = "cifar-100"
    tuning_settings: Mapping[str, Any] = field(default_factory=lambda: {"stream.tasks": 5})
    methods: tuple[str, ...] = METHODS
    #: Changes to GESCL as tuned, by name: the rows of an ablation.
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuning_seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Published:
    """What the paper, or a method's authors, report."""

    average_accuracy: float
    forgetting: float | None = None
    remark: str = ""


#: By plan and by the label of a run.
PUBLISHED: dict[str, dict[str, Published]] = {
    "cifar10-100": {
        "gescl": Published(0.745, 0.0008),
        "ags-cl": Published(0.760, remark="its authors, with the larger network ags6"),
    },
    "cifar10-100-ablation": {
        "gescl": Published(0.745, 0.0008),
        "gescl+without-nu": Published(0.716, 0.013),
        "gescl+without-mu_s": Published(0.419, 0.44),
        "gescl+without-mu_p": Published(0.6912, 0.013),
    },
    "imagenet-50": {
        "gescl": Published(0.771, 0.00007),
    },
    "imagenet-50-ablation": {
        "gescl": Published(0.771, 0.00007),
        "gescl+without-nu": Published(0.7510, 0.068),
        "gescl+without-mu_s": Published(0.5738, 0.349),
        "gescl+without-mu_p": Published(0.7359, 0.018),
    },
}


def plans() -> dict[str, tuple[PaperExperiment, ...]]:
    """The plans by the name on the command line."""
    grid = shipped_recipes()["digits"].parent / "grids" / "methods.toml"
    svhn, cifar, imagenet = (PaperExperiment(name, name, grid) for name in ("svhn", "cifar10-100", "imagenet-50"))
    ablation = tuple(_ablation_of(plan) for plan in (cifar, imagenet))
    named = {plan.name: (plan,) for plan in (svhn, cifar, imagenet)}
    return {**named, "ablation": ablation, "all": (svhn, cifar, imagenet, *ablation)}


def chosen_experiments(name: str, methods: Sequence[str] | None = None) -> list[PaperExperiment]:
    """The plans of a name, with only some of their methods if any are named."""
    known = plans()
    if name not in known:
        raise UsageError(unknown("experiment", name, known))
    for method in methods or ():
        method_class(method)
    chosen = [
        replace(plan, methods=tuple(method for method in plan.methods if method in (methods or plan.methods)))
        for plan in known[name]
    ]
    if not all(plan.methods for plan in chosen):
        raise UsageError(f"{name} has none of the methods {', '.join(methods or ())}; it has {', '.join(METHODS)}")
    return chosen


def _ablation_of(plan: PaperExperiment) -> PaperExperiment:
    variants = read_toml(shipped_recipes()["ablation"])["variants"]
    grid = plan.grid.with_name("ablation.toml")
    return PaperExperiment(f"{plan.name}-ablation", plan.recipe, grid, methods=("gescl",), variants=variants)
