"""The paper's claims and our own aims, each checked against measured runs: what holds, what does not, what is open.

A method is ahead of another where the 95 % interval of their paired difference over seeds excludes zero. Otherwise the
runs cannot tell, and the table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .. import metrics
from ..report.runs import Group
from ..report.statistics import Difference, mean_with_interval, paired_difference
from ..report.table_files import markdown_lines

Matrix = list[list[float | None]]
Quantity = Callable[[Matrix], float | None]
#: A quantity by method and seed.
Values = dict[str, dict[int, float | None]]
#: The paper's claims are judged on `gescl`, our own aims on what `Learner` uses by default.
OURS = "gescl-distill"
#: The methods that the paper compares itself with.
RIVALS = ("ags-cl", "hat", "ewc", "si", "mas")
HOLDS, FAILS, OPEN, UNKNOWN = "yes", "**no**", "cannot be told", "not measured"
#: What the aims ask for: forgetting at most, by stream, at least this share of `joint`,
#: and at least this accuracy on CIFAR-10/100 with the larger network.
LEAST_SHARE_OF_JOINT = 0.95
LEAST_AT_BEST = 0.8
MOST_FORGETTING = {"svhn": 0.005, "cifar10-100": 0.005, "imagenet-50": 0.015, "domains": 0.015, "scripts": 0.015}


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds, 1, does not, -1, or cannot be told, 0; and the numbers that say so."""

    sign: int
    words: str

    @property
    def verdict(self) -> str:
        return {1: HOLDS, -1: FAILS, 0: OPEN}[self.sign]


#: None where the runs that a claim is about are missing.
Check = Callable[[Group], Finding | None]


def claims_table(groups: Sequence[Group]) -> str:
    """One row per claim and stream."""
    rows = []
    for claim, streams, check in CLAIMS:
        for stream in streams:
            group = main_group(groups, stream)
            finding = check(group) if group else None
            rows.append([claim, stream, *((finding.verdict, finding.words) if finding else (UNKNOWN, "–"))])
    return "\n".join(markdown_lines(["claim", "stream", "found", "numbers"], rows, numbers=False)) + "\n"


def main_group(groups: Sequence[Group], stream: str) -> Group | None:
    """The group of a stream with the most runs."""
    known = [group for group in groups if group.name == stream and len(group.tasks) > 1]
    return max(known, key=lambda group: len(group.runs), default=None)


def rivals_without_old_data(group: Group) -> list[str]:
    """All methods of a group that see no old data; no variants."""
    return [label for label in group.methods if "+" not in label and "(" not in label and label != "joint"]


def values_of(group: Group, labels: Sequence[str], of: Quantity) -> Values | None:
    """A quantity of each run of these methods; None unless all of them were run."""
    if any(label not in group.methods for label in labels):
        return None
    return {label: {run.result.seed: of(run.result.accuracy) for run in group.methods[label]} for label in labels}


def differences(label: str, values: Values) -> dict[str, Difference]:
    """The method minus each of the others, seed by seed; without those that share no seed with it."""
    found = {other: paired_difference(values[label], values[other]) for other in values if other != label}
    return {other: difference for other, difference in found.items() if difference is not None}


def _is_first(label: str, group: Group, labels: Sequence[str], of: Quantity, least: bool = False) -> Finding | None:
    """Whether a method is ahead of all others in a quantity, or behind them all if `least`.

    It is not if any other is ahead of it.
    """
    values = values_of(group, labels, of)
    if values is None:
        return None
    sign = -1 if least else 1
    found = differences(label, values)
    signs = [sign * difference.sign for difference in found.values()]
    verdict = -1 if -1 in signs else 1 if signs and all(one == 1 for one in signs) else 0
    nearest = min(found, key=lambda other: sign * found[other].mean, default=None)
    remark = f"; {label} − {nearest}: {signed(found[nearest])}" if nearest else ""
    return Finding(verdict, _listed(_means(values)) + remark)


def _not_behind(label: str, group: Group, labels: Sequence[str], of: Quantity) -> Finding | None:
    """Whether no other method is ahead of it: it is first, or cannot be told from the first."""
    finding = _is_first(label, group, labels, of)
    several = all(len(group.methods.get(name, [])) > 1 for name in labels)
    return Finding(finding.sign or int(several), finding.words) if finding else None


def _means(values: Values) -> dict[str, float]:
    """By method, the largest first."""
    known = {label: [value for value in runs.values() if value is not None] for label, runs in values.items()}
    means = {label: sum(runs) / len(runs) for label, runs in known.items() if runs}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def _listed(means: Mapping[str, float], digits: int = 3) -> str:
    return ", ".join(f"{label} {value:.{digits}f}" for label, value in means.items())


def signed(difference: Difference, digits: int = 3) -> str:
    """ "+0.012 (+0.010 … +0.014)"."""
    interval = difference.interval
    around = f" ({interval[0]:+.{digits}f} … {interval[1]:+.{digits}f})" if interval else " (one seed)"
    return f"{difference.mean:+.{digits}f}{around}"


def _keeps_first_task(group: Group) -> Finding | None:
    return _is_first("gescl", group, ("gescl", *RIVALS, "finetune"), metrics.first_task_retention)


def _hat_is_strong(group: Group) -> Finding | None:
    return _is_first("hat", group, RIVALS, metrics.average_accuracy)


def _ewc_degrades(group: Group) -> Finding | None:
    """GESCL's lead over EWC grows from a third of the stream to its end."""
    early = max(2, len(group.tasks) // 3)

    def growth(matrix: Matrix) -> float | None:
        first, last = metrics.average_accuracy(matrix[:early]), metrics.average_accuracy(matrix)
        return None if first is None or last is None else last - first

    values = values_of(group, ("gescl", "ewc"), growth)
    found = differences("gescl", values).get("ewc") if values else None
    if found is None:
        return None
    return Finding(found.sign, f"lead of gescl after {len(group.tasks)} tasks minus after {early}: {signed(found)}")


def _si_learns_last(group: Group) -> Finding | None:
    return _is_first("si", group, ("gescl", *RIVALS), lambda matrix: matrix[-1][-1])


def _ags_is_strongest(group: Group) -> Finding | None:
    return _is_first("ags-cl", group, RIVALS, metrics.average_accuracy)


#: Without what the paper leaves out: without μ_P nothing frees filters there, so here nothing is let go either.
PARTS = tuple(f"gescl+without-{part}" for part in ("mu_s", "plasticity", "nu"))


def _every_part_helps(group: Group) -> Finding | None:
    return _is_first("gescl", group, ("gescl", *PARTS), metrics.average_accuracy)


def _stability_matters_most(group: Group) -> Finding | None:
    return _is_first(PARTS[0], group, PARTS, metrics.average_accuracy, least=True)


def _room_pays(group: Group) -> Finding | None:
    return _is_first("gescl", group, ("gescl", "gescl+without-plasticity", "hat", "frozen"), metrics.average_accuracy)


def _first_or_tied(group: Group) -> Finding | None:
    return _not_behind(OURS, group, sorted({OURS, *rivals_without_old_data(group)}), metrics.average_accuracy)


def _ahead_of(label: str, other: str) -> Check:
    return lambda group: _is_first(label, group, (label, other), metrics.average_accuracy)


def _forgets_little(group: Group) -> Finding | None:
    values = values_of(group, [OURS], metrics.forgetting)
    known = [value for value in values[OURS].values() if value is not None] if values else []
    if not known:
        return None
    found, most = mean_with_interval(known), MOST_FORGETTING[group.name]
    low, high = found.interval or (0.0, 1.0)
    return Finding((high <= most) - (low > most), f"{signed(found, 4).replace('+', '')}; asked for: at most {most}")


def _near_joint(group: Group) -> Finding | None:
    values = values_of(group, (OURS, "joint"), metrics.average_accuracy)
    if values is None:
        return None
    asked = {seed: value and LEAST_SHARE_OF_JOINT * value for seed, value in values["joint"].items()}
    found, means = paired_difference(values[OURS], asked), _means(values)
    if found is None:
        return None
    remark = signed(differences(OURS, values)["joint"])
    return Finding(found.sign, f"{means[OURS] / means['joint']:.1%} of joint; {OURS} − joint: {remark}")


def _strong_at_best(group: Group) -> Finding | None:
    values = values_of(group, [OURS], metrics.average_accuracy)
    mean = _means(values).get(OURS) if values else None
    if values is None or mean is None:
        return None
    remark = " (one seed)" if len(values[OURS]) == 1 else ""
    return Finding(1 if mean > LEAST_AT_BEST else -1, _listed(_means(values)) + remark)


SVHN, CIFAR, IMAGENET = "svhn", "cifar10-100", "imagenet-50"
ABLATIONS = (f"{CIFAR}-ablation", f"{IMAGENET}-ablation")
STREAMS = ("scripts", "domains", SVHN, CIFAR, IMAGENET)
CLAIMS: tuple[tuple[str, tuple[str, ...], Check], ...] = (
    ("GESCL keeps most of the first task", (SVHN, CIFAR, IMAGENET), _keeps_first_task),
    ("HAT is the strongest rival on SVHN", (SVHN,), _hat_is_strong),
    ("EWC falls behind as tasks accumulate", (CIFAR, IMAGENET), _ewc_degrades),
    ("SI is ahead on the last task", (IMAGENET,), _si_learns_last),
    ("AGS-CL is the strongest rival in average accuracy", (CIFAR, IMAGENET), _ags_is_strongest),
    ("every part of GESCL helps", ABLATIONS, _every_part_helps),
    ("without μ_S is worst", ABLATIONS, _stability_matters_most),
    ("our aim: the room that gescl leaves pays", ("room",), _room_pays),
    ("our aim: gescl-distill first, or tied with the first, without old data", STREAMS, _first_or_tied),
    ("our aim: gescl-distill ahead of lwf", STREAMS, _ahead_of(OURS, "lwf")),
    ("our aim: gescl ahead of frozen", STREAMS, _ahead_of("gescl", "frozen")),
    ("our aim: gescl-distill forgets little", STREAMS, _forgets_little),
    (f"our aim: gescl-distill above {LEAST_AT_BEST}", (f"{CIFAR}-ags6",), _strong_at_best),
    (f"our aim: gescl-distill at {LEAST_SHARE_OF_JOINT:.0%} of joint or more", STREAMS, _near_joint),
)
