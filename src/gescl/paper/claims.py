"""The paper's claims and our own aims, each checked against measured runs: what holds, what does not, what is open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .. import metrics
from ..report.runs import Group
from ..report.statistics import summary
from ..report.table_files import markdown_lines

Matrix = list[list[float | None]]
#: The methods that the paper compares itself with.
#: The paper's claims are judged on `gescl`, our own aims on what `Learner` uses by default.
OURS = "gescl-distill"
RIVALS = ("ags-cl", "hat", "ewc", "si", "mas")
HOLDS, FAILS, TIED, UNKNOWN = "yes", "**no**", "a tie", "not measured"
#: What the aims ask for: forgetting at most, and at least this share of the upper bound.
LEAST_SHARE_OF_JOINT = 0.95
MOST_FORGETTING = 0.005


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds, and the numbers that say so."""

    holds: bool
    words: str
    tied: bool = False

    @property
    def verdict(self) -> str:
        return TIED if self.tied else HOLDS if self.holds else FAILS


#: None where the runs that a claim is about are missing.
Check = Callable[[Group], Finding | None]


def claims_table(groups: Sequence[Group]) -> str:
    """One row a claim and stream."""
    rows = []
    for claim, streams, check in CLAIMS:
        for stream in streams:
            group = _group(groups, stream)
            finding = check(group) if group else None
            rows.append([claim, stream, *((finding.verdict, finding.words) if finding else (UNKNOWN, "–"))])
    return "\n".join(markdown_lines(["claim", "stream", "found", "numbers"], rows, numbers=False)) + "\n"


def _group(groups: Sequence[Group], stream: str) -> Group | None:
    """The group of a stream with the most runs."""
    known = [group for group in groups if group.name == stream and len(group.tasks) > 1]
    return max(known, key=lambda group: len(group.runs), default=None)


def _means(group: Group, labels: Sequence[str], of: Callable[[Matrix], float | None]) -> dict[str, float]:
    """A quantity's mean over seeds for those of the methods that were run, the largest first."""
    found = {label: summary([of(run.result.accuracy) for run in group.methods.get(label, [])]) for label in labels}
    known = {label: value.mean for label, value in found.items() if value is not None}
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def _is_first(label: str, group: Group, labels: Sequence[str], of: Callable[[Matrix], float | None]) -> Finding | None:
    """Whether a method has the largest mean of a quantity, alone or with others. None unless all of them were run."""
    means = _means(group, labels, of)
    if len(means) < len(labels):
        return None
    largest = max(means.values())
    first = means[label] == largest
    return Finding(first, _listed(means), tied=first and list(means.values()).count(largest) > 1)


def _listed(means: Mapping[str, float], digits: int = 3) -> str:
    return ", ".join(f"{label} {value:.{digits}f}" for label, value in means.items())


def _keeps_first_task(group: Group) -> Finding | None:
    return _is_first("gescl", group, ("gescl", *RIVALS, "finetune"), metrics.first_task_retention)


def _hat_is_strong(group: Group) -> Finding | None:
    return _is_first("hat", group, RIVALS, metrics.average_accuracy)


def _ewc_degrades(group: Group) -> Finding | None:
    """GESCL's lead over EWC grows from a third of the stream to its end."""
    early = max(2, len(group.tasks) // 3)

    def so_far(tasks: int) -> dict[str, float]:
        return _means(group, ("gescl", "ewc"), lambda matrix: metrics.average_accuracy(matrix[:tasks]))

    after = {tasks: so_far(tasks) for tasks in (early, len(group.tasks))}
    if any(len(means) < 2 for means in after.values()):
        return None
    leads = [means["gescl"] - means["ewc"] for means in after.values()]
    words = "; ".join(
        f"after {tasks} tasks ewc {means['ewc']:.3f}, gescl {means['gescl']:.3f}" for tasks, means in after.items()
    )
    return Finding(leads[1] > leads[0], words)


def _si_learns_last(group: Group) -> Finding | None:
    return _is_first("si", group, ("gescl", *RIVALS), lambda matrix: matrix[-1][-1])


def _ags_is_strongest(group: Group) -> Finding | None:
    return _is_first("ags-cl", group, RIVALS, metrics.average_accuracy)


def _every_part_helps(group: Group) -> Finding | None:
    rows = ("gescl", *(f"gescl+without-{part}" for part in ("mu_s", "mu_p", "nu")))
    return _is_first("gescl", group, rows, metrics.average_accuracy)


def _stability_matters_most(group: Group) -> Finding | None:
    rows = [f"gescl+without-{part}" for part in ("mu_s", "mu_p", "nu")]
    means = _means(group, rows, metrics.average_accuracy)
    return Finding(list(means)[-1] == rows[0], _listed(means)) if len(means) == len(rows) else None


def _ahead_of_all(group: Group) -> Finding | None:
    run = {label for label in group.methods if "+" not in label and "(" not in label and label != "joint"}
    return _is_first(OURS, group, sorted({OURS, *RIVALS, "frozen"} | run), metrics.average_accuracy)


def _forgets_little(group: Group) -> Finding | None:
    means = _means(group, [OURS], metrics.forgetting)
    return Finding(means[OURS] <= MOST_FORGETTING, _listed(means, 4)) if means else None


def _near_joint(group: Group) -> Finding | None:
    means = _means(group, (OURS, "joint"), metrics.average_accuracy)
    if len(means) < 2:
        return None
    share = means[OURS] / means["joint"]
    remark = "; joint is no bound from above here" if share > 1 else ""
    return Finding(share >= LEAST_SHARE_OF_JOINT, f"{share:.1%} of joint ({_listed(means)}){remark}")


SVHN, CIFAR, IMAGENET = "svhn", "cifar10-100", "imagenet-50"
ABLATIONS = (f"{CIFAR}-ablation", f"{IMAGENET}-ablation")
CLAIMS: tuple[tuple[str, tuple[str, ...], Check], ...] = (
    ("GESCL keeps most of the first task", (SVHN, CIFAR, IMAGENET), _keeps_first_task),
    ("HAT is the strongest rival on SVHN", (SVHN,), _hat_is_strong),
    ("EWC falls behind as tasks accumulate", (CIFAR, IMAGENET), _ewc_degrades),
    ("SI is ahead on the last task", (IMAGENET,), _si_learns_last),
    ("AGS-CL is the strongest rival in average accuracy", (CIFAR, IMAGENET), _ags_is_strongest),
    ("every part of GESCL helps", ABLATIONS, _every_part_helps),
    ("without μ_S is worst", ABLATIONS, _stability_matters_most),
    ("our aim: gescl-distill ahead of all that see no old data", (CIFAR,), _ahead_of_all),
    (f"our aim: forgetting of gescl-distill at most {MOST_FORGETTING}", (CIFAR,), _forgets_little),
    (f"our aim: gescl-distill at {LEAST_SHARE_OF_JOINT:.0%} of joint or more", (CIFAR,), _near_joint),
)
