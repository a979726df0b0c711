"""What the results page opens with: which method, on which stream, by how much; a figure, and what to remember.

Every sentence is made from the runs. One whose runs are missing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version

from matplotlib.figure import Figure

from .. import metrics
from ..report.drawing import Drawing
from ..report.runs import Group
from ..report.statistics import Difference, summary
from ..report.style import COLOURS, MUTED
from ..report.table_files import markdown_lines
from .claims import OURS, STREAMS, differences, main_group, rivals_without_old_data, signed, values_of
from .experiments import METHODS, PUBLISHED

#: The row of the ablation in which nothing frees filters.
WITHOUT = "gescl+without-plasticity"
#: The experiment with the larger network.
STRONGEST = "cifar10-100-ags6"
ALT = "Average accuracy of every method on each stream, one dot per seed"


def overview(groups: Sequence[Group], figure: str) -> str:
    """The table, the figure and the sentences; empty if no stream was run."""
    streams = {stream: group for stream in STREAMS if (group := main_group(groups, stream))}
    if not streams:
        return ""
    sentences = [
        *(tell(streams) for tell in SENTENCES),
        _room(main_group(groups, "room")),
        _strongest(main_group(groups, STRONGEST)),
    ]
    parts = [
        "## In short\n",
        "Average accuracy over all tasks after the last one, forgetting in brackets. Bold: the best of\n"
        "the methods that see no old data, and those that cannot be told from it, be it only because they vary much\n"
        "with the seed (95 % interval of the paired difference).\n",
        "\n".join(_table(streams)) + "\n",
        *_bound(streams),
        f"![{ALT}]({figure})\n",
        "\n".join(f"- {sentence}" for sentence in sentences if sentence),
        "",
    ]
    return "\n".join(parts)


def _table(streams: dict[str, Group]) -> list[str]:
    rows = []
    best = {stream: _foremost(group) for stream, group in streams.items()}
    for method in METHODS:
        row = [f"`{method}`"]
        for stream, group in streams.items():
            accuracy, forgetting = (_mean(group, method, of) for of in (metrics.average_accuracy, metrics.forgetting))
            text = "–" if accuracy is None else f"{accuracy:.3f}"
            text = f"**{text}**" if method in best[stream] else text
            row.append(text if forgetting is None else f"{text} ({forgetting:.3f})")
        rows.append(row)
    return markdown_lines(["method", *(_titled(stream, group) for stream, group in streams.items())], rows)


def _titled(stream: str, group: Group) -> str:
    """The stream, and with which version of gescl it was run, if that is not this one."""
    old = sorted({run.result.versions.get("gescl", "unknown") for run in group.runs} - {version("gescl")})
    return f"{stream} (version {', '.join(old)})" if old else stream


def _mean(group: Group, method: str, of: Callable[[list[list[float | None]]], float | None]) -> float | None:
    found = summary([of(run.result.accuracy) for run in group.methods.get(method, [])])
    return found.mean if found else None


def _first(group: Group) -> str | None:
    """The method without old data that has the highest average accuracy."""
    found = {label: _mean(group, label, metrics.average_accuracy) for label in rivals_without_old_data(group)}
    known = {label: mean for label, mean in found.items() if mean is not None}
    return max(known, key=lambda label: known[label], default=None)


def _foremost(group: Group) -> list[str]:
    """The first, and those that are not behind it by the interval of the difference."""
    first = _first(group)
    if first is None:
        return []
    return [first, *(name for name, found in _leads(group, first).items() if found.interval and found.sign < 1)]


def _leads(group: Group, method: str) -> dict[str, Difference]:
    values = values_of(group, rivals_without_old_data(group), metrics.average_accuracy)
    return differences(method, values) if values and method in values else {}


def _ours(streams: dict[str, Group]) -> str | None:
    run = {stream: group for stream, group in streams.items() if OURS in group.methods}
    tops = [stream for stream, group in run.items() if OURS in _foremost(group)]
    ahead = [
        f"on {stream} `{_first(group)}` is ahead by {-_leads(group, OURS)[str(_first(group))].mean:.3f}"
        for stream, group in run.items()
        if stream not in tops
    ]
    if not run:
        return None
    text = f"`{OURS}` is first, or cannot be told from the first, on {len(tops)} of {len(run)} streams"
    forgotten = [f"`{label}` {span}" for label in (OURS, "gescl", "finetune") if (span := _forgotten(streams, label))]
    return "; ".join([text, *ahead]) + (f". Forgetting: {', '.join(forgotten)}." if forgotten else ".")


def _forgotten(streams: dict[str, Group], method: str) -> str | None:
    found = {stream: _mean(group, method, metrics.forgetting) for stream, group in streams.items()}
    known = {stream: value for stream, value in found.items() if value is not None}
    worst = max(known, key=lambda stream: known[stream], default=None)
    return f"{min(known.values()):.3f} to {known[worst]:.3f} (most on {worst})" if worst else None


def _distillation(streams: dict[str, Group]) -> str | None:
    """What the sparse method adds to distillation alone."""
    against = _against(streams, OURS, "lwf")
    return (
        against and f"Against `lwf`, which is its distillation without the hold and the sparsity, `{OURS}` is {against}"
    )


def _paper(streams: dict[str, Group]) -> str | None:
    """How the paper's method does against doing nothing to the trunk."""
    against = _against(streams, "gescl", "frozen")
    return against and f"Against a trunk that is frozen after the first task, `gescl`, the paper's method, is {against}"


def _against(streams: dict[str, Group], method: str, other: str) -> str | None:
    """ "ahead on 1 of 2 streams (svhn, by 0.020) and behind on none."."""
    found = {stream: leads[other] for stream, group in streams.items() if other in (leads := _leads(group, method))}
    if not found:
        return None
    ahead, behind = (_where({s: d.mean for s, d in found.items() if d.sign == sign}) for sign in (1, -1))
    return f"ahead on {ahead[0]} of {len(found)} streams{ahead[1]} and behind on {behind[0]}{behind[1]}."


def _where(differences: dict[str, float]) -> tuple[str, str]:
    """How many streams, and which, by how much: "2", " (svhn, domains, by 0.010 to 0.020)"."""
    if not differences:
        return "none", ""
    sizes = [f"{size:.3f}" for size in sorted(map(abs, differences.values()))]
    span = " to ".join(dict.fromkeys([sizes[0], sizes[-1]]))
    return str(len(differences)), f" ({', '.join(differences)}, by {span})"


def _bound(streams: dict[str, Group]) -> list[str]:
    shares = {}
    for stream, group in streams.items():
        ours, joint = (_mean(group, label, metrics.average_accuracy) for label in (OURS, "joint"))
        if ours is not None and joint:
            shares[stream] = ours / joint
    listed = ", ".join(f"{share:.1%} on {stream}" for stream, share in shares.items())
    return [f"`joint` keeps the images of all tasks. Relative to it, `{OURS}` reaches {listed}.\n"] if shares else []


def _room(group: Group | None) -> str | None:
    """What freed filters are worth where nothing may be forgotten."""
    values = values_of(group, ("gescl", WITHOUT), metrics.average_accuracy) if group else None
    if group is None or values is None:
        return None
    means = {label: _mean(group, label, metrics.average_accuracy) for label in group.methods}
    left = [run.result.free_filters[-1] for run in group.methods["gescl"] if run.result.free_filters]
    counts = sorted(sum(free.values()) for free in left if free)
    kept = f"; {counts[0]} to {counts[-1]} filters are left free" if counts else ""
    listed = ", ".join(f"`{label}` {mean:.3f}" for label, mean in means.items() if mean is not None)
    worth = differences("gescl", values)[WITHOUT]
    return (
        f"Where tasks differ and forgetting must be exactly 0 (`room`), freeing filters is worth {signed(worth)}: "
        f"{listed}{kept}."
    )


def _strongest(group: Group | None) -> str | None:
    """What the default method reaches with all that an hour allows, and what others have published."""
    accuracy = _mean(group, OURS, metrics.average_accuracy) if group else None
    if group is None or accuracy is None:
        return None
    others = {label: _mean(group, label, metrics.average_accuracy) for label in group.methods if label != OURS}
    listed = ", ".join(f"`{label}` {mean:.3f}" for label, mean in others.items() if mean is not None)
    published = PUBLISHED[STRONGEST].items()
    known = ", ".join(f"`{label}` {figures.average_accuracy:.3f} ({figures.remark})" for label, figures in published)
    return (
        f"With a larger network, augmentation and more epochs, `{OURS}` reaches {accuracy:.3f} on cifar10-100"
        f"{f' ({listed})' if listed else ''}; published: {known}."
    )


SENTENCES = (_ours, _paper, _distillation)


def draw_overview(groups: Sequence[Group]) -> Drawing | None:
    """One panel per stream, one row per method: a dot per seed, a tick at their mean. None if no stream was run."""
    streams = {stream: group for stream in STREAMS if (group := main_group(groups, stream))}
    if not streams:
        return None
    figure = Figure(figsize=(1.2 + 1.55 * len(streams), 2.6), layout="constrained")
    panels = figure.subplots(1, len(streams), sharey=True, squeeze=False)[0]
    rows = [method for method in METHODS if any(method in group.methods for group in streams.values())]
    for axes, (stream, group) in zip(panels, streams.items(), strict=True):
        for row, method in enumerate(rows):
            shares = [run.result.average_accuracy for run in group.methods.get(method, [])]
            known = [share for share in shares if share is not None]
            if not known:
                continue
            axes.plot(known, [row] * len(known), "o", color=COLOURS[method], markersize=3.5, alpha=0.6, mew=0)
            axes.plot([sum(known) / len(known)], [row], "|", color=COLOURS[method], markersize=11, mew=1.6)
        axes.set_title(stream)
        axes.margins(x=0.12)
        axes.locator_params(axis="x", nbins=4)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    panels[0].set_yticks(range(len(rows)), rows)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.supxlabel("average accuracy", color=MUTED, fontsize=7.5)
    return Drawing("results", "Average accuracy", "", ALT, figure, [])
