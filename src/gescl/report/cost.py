"""What a method costs against what it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, SymmetricalLogLocator

from .drawing import Drawing
from .labels import LETTER, shortened
from .panels import panels
from .runs import Group, Run
from .statistics import Summary, summary
from .style import NARROW, Look, Looks


@dataclass(frozen=True)
class Cost:
    """A cost of a run, its key in files, and how its axis is called."""

    key: str
    label: str
    of: Callable[[Run], float | None]
    logarithmic: bool = False


def draw_cost(group: Group, look: Looks, width: float) -> Drawing | None:
    """Average accuracy against memory, time and size, one point per method."""
    costs = [
        Cost("state_bytes", "state carried between tasks, bytes", lambda run: run.result.state_bytes, logarithmic=True),
        _time(group),
        Cost("parameters", "parameters with all heads", lambda run: run.result.parameters),
    ]
    accuracies = {
        label: summary([run.result.average_accuracy for run in runs]) for label, runs in group.methods.items()
    }
    widest = 0.35 + 7.5 * LETTER * max(len(shortened(label)) for label in accuracies)  # inches of a name in the legend
    legend = max(1, min(len(accuracies), int((width - 0.3) / widest)))
    lines = -(-len(accuracies) // legend)
    columns = 3 if width > NARROW else 1
    figure, grid = panels(
        3 // columns, columns, width, 1.85, left=0.75, top=0.2 + 0.17 * lines, gap=(0.2, 0.5), share=False
    )
    axes = [axis for row in grid for axis in row]
    told: dict[str, list[str]] = {}
    for axis, cost in zip(axes, costs, strict=True):
        amounts = {label: summary([cost.of(run) for run in runs]) for label, runs in group.methods.items()}
        for label, accuracy in reversed(list(accuracies.items())):  # the first method is drawn last, on top
            amount = amounts[label]
            if amount is None or accuracy is None:
                continue
            _point(axis, amount, accuracy, look[label])
            told.setdefault(label, []).append(f"{amount.mean:.4g}")
        _arrange(axis, cost, [amount.mean + (amount.sd or 0.0) for amount in amounts.values() if amount])
        axis.sharey(axes[0])
        first = axis in [row[0] for row in grid]
        axis.tick_params(labelleft=first)
        axis.set_ylabel("average accuracy" if first else "")
    if not told:
        return None
    handles = [
        Line2D([], [], linestyle="", marker=look[label].marker, color=look[label].colour, label=shortened(label))
        for label in accuracies
        if label in told
    ]
    figure.legend(handles=handles, loc="upper left", ncols=legend, borderaxespad=0.3, handletextpad=0.1)
    listed = "; ".join(f"{label} {', '.join(told[label])}" for label in accuracies if label in told)
    return Drawing(
        "cost",
        "Cost against accuracy",
        "Up is better, left is cheaper. What the method carries from task to task besides the network; the time to "
        "learn all tasks; the network's size."
        + (" Mean over seeds with standard deviation." if group.several_seeds else ""),
        f"Scatter plots of average accuracy against {', '.join(cost.label for cost in costs)}. Costs: {listed}.",
        figure,
        [
            {
                "method": label,
                "seed": run.result.seed,
                "average_accuracy": run.result.average_accuracy,
                **{cost.key: cost.of(run) for cost in costs},
            }
            for label, runs in group.methods.items()
            for run in runs
        ],
    )


def _time(group: Group) -> Cost:
    """Seconds relative to fine-tuning with the same seed where that was run; else seconds."""
    plain = {run.result.seed: run.result.seconds for run in group.methods.get("finetune", [])}
    if not any(plain.values()):
        return Cost("seconds", "training time, seconds", lambda run: run.result.seconds)

    def relative(run: Run) -> float | None:
        base, own = plain.get(run.result.seed), run.result.seconds
        return own / base if base and own is not None else None

    return Cost("relative_time", "training time ÷ finetune's", relative)


def _point(axes: Axes, amount: Summary, accuracy: Summary, look: Look) -> None:
    axes.errorbar(
        amount.mean,
        accuracy.mean,
        xerr=amount.sd or None,
        yerr=accuracy.sd or None,
        marker=look.marker,
        color=look.colour,
        markersize=5,
        elinewidth=0.9,
        linestyle="",
    )


def _arrange(axes: Axes, cost: Cost, amounts: list[float]) -> None:
    axes.set_xlabel(cost.label)
    axes.margins(0.12)
    if cost.logarithmic:
        axes.set_xscale("symlog", linthresh=100, linscale=0.4)
        axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=100))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(-35, max([*amounts, 1000]) * 3)
    else:
        axes.set_xlim(0, max([*amounts, 1e-9]) * 1.15)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))


def short_number(value: float) -> str:
    """1200000 as "1.2M"."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"
