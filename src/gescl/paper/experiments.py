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
FIXED: dict[str, dict[str, Any]] = {
    "joint": {"method.once": True, "training.schedule": "cosine"},
    "si": {"method.xi": 0.01},  # on all streams alike; the recipe of scripts has another
}
#: Methods that validation lets train for longer than the others, in times the epochs of the recipe: `joint` takes as
#: many steps as the whole sequence, or more.
LONGER: dict[str, tuple[int, ...]] = {"joint": (1, 2, 4)}
#: The rows of the paper's ablation, and two that weigh its equations. The recipe has more.
ROWS = ("without-mu_s", "without-plasticity", "without-nu", "uniform-importance", "exclusive")
#: Settings are chosen with other seeds than those reported.
TUNING_SEEDS = (100,)


@dataclass(frozen=True)
class PaperExperiment:
    """One experiment: choose settings on the first tasks of a stream, run the whole with them. Its runs bear its name.

    Experiments with the same `stream` share what was chosen.
    """

    name: str
    recipe: str
    grid: Path
    #: The recipe that settings are chosen on, and what it is called among the runs that choose.
    tuning: str
    tuning_settings: Mapping[str, Any]
    stream: str
    methods: tuple[str, ...] = METHODS
    #: Changes to GESCL as chosen, by name: the rows of an ablation.
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Settings of a method that replace those chosen.
    fixed: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: FIXED)
    #: Times the recipe's epochs to choose from, by method; these have nothing else to choose.
    longer: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: LONGER)
    #: Of the final runs alone.
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuning_seeds: tuple[int, ...] = TUNING_SEEDS
    #: An experiment whose runs take long has fewer seeds than asked for.
    most_seeds: int | None = None


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
        "gescl+without-plasticity": Published(0.6912, 0.013),
    },
    "cifar10-100-ags6": {
        "gescl": Published(0.745, 0.0008, remark="the paper, with a smaller network"),
        "ags-cl": Published(0.760, remark="its authors, with this network"),
    },
    "imagenet-50": {"gescl": Published(0.771, 0.00007)},
    "imagenet-50-ablation": {
        "gescl": Published(0.771, 0.00007),
        "gescl+without-nu": Published(0.7510, 0.068),
        "gescl+without-mu_s": Published(0.5738, 0.349),
        "gescl+without-plasticity": Published(0.7359, 0.018),
    },
}


def plans() -> dict[str, tuple[PaperExperiment, ...]]:
    """The plans by the name on the command line."""
    grids = shipped_recipes()["digits"].parent / "grids"
    grid = grids / "methods.toml"

    def on_first(stream: str, tasks: int, recipe: str | None = None) -> PaperExperiment:
        return PaperExperiment(stream, stream, grid, recipe or stream, {"stream.tasks": tasks}, stream)

    # Validation images are few in `scripts`, and a run takes seconds: more seeds to choose with.
    scripts = replace(on_first("scripts", 5), tuning_seeds=(100, 101, 102))
    domains, svhn = on_first("domains", 4), on_first("svhn", 3)
    cifar, imagenet = on_first("cifar10-100", 5, "cifar-100"), on_first("imagenet-50", 8)
    room = PaperExperiment(
        "room", "room", grids / "room.toml", "room", {}, "room", ("gescl", "hat", "frozen"), _variants("room")
    )
    # The most that less than one hour per run on one core gives, if it has instructions for bfloat16.
    larger: dict[str, Any] = {
        "network": "ags6",
        "training.flip": True,
        "training.shift": 4,
        "training.epochs": 20,
        "training.precision": "bfloat16",
    }
    ags6 = PaperExperiment(
        "cifar10-100-ags6",
        "cifar10-100",
        grids / "ags6.toml",
        "cifar10-100",
        {"stream.tasks": 2, **larger},
        "cifar10-100-ags6",
        methods=("gescl", "gescl-distill", "lwf", "ags-cl", "frozen"),
        settings=larger,
        most_seeds=1,
    )
    streams = (scripts, domains, svhn, cifar, imagenet)
    ablation = tuple(_ablation(plan, grids / "ablation.toml") for plan in (cifar, imagenet))
    named = {plan.name: (plan,) for plan in (*streams, room, *ablation, ags6)}
    return {**named, "ablation": ablation, "all": (*streams, room, *ablation, ags6)}


def _ablation(plan: PaperExperiment, grid: Path) -> PaperExperiment:
    """GESCL on a stream with each of its parts left out; with settings of its own, since filters must not be fixed."""
    name, variants = f"{plan.name}-ablation", _variants("ablation")
    rows = {row: variants[row] for row in ROWS}
    return replace(plan, name=name, stream=name, grid=grid, methods=("gescl",), variants=rows)


def _variants(recipe: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read_toml(shipped_recipes()[recipe])["variants"]
    return found


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
