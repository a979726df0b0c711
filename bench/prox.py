"""What GESCL's own work costs compared with a training step: the prox, and the zero-freeze.

    python bench/prox.py [--repeats 7] [--out results/bench-prox.json]

Times are CPU time on one thread; every figure is a ratio between things timed alternately in this one run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from gescl import Gescl
from gescl.methods.gescl import SHRINK_FROM, SHRINK_UNTIL, STEPS_PER_PROX, GesclStrategy
from gescl.runtime import speed_up_process
from subjects import Loop, made_net
from timing import arguments, write


def prepared(network: str, psi_min: float, important: float) -> tuple[Loop, GesclStrategy]:
    """A network in the middle of its second task, a fraction of its filters important."""
    net = made_net(network)
    strategy = Gescl(psi_min=psi_min).strategy(net)
    strategy.important = torch.rand(net.graph.size) < important
    strategy.strength = torch.rand(net.graph.size)
    strategy.after_step = lambda context: None  # type: ignore[method-assign]  # the step alone is what it is compared with
    return Loop(net, strategy, images=64, batch=64), strategy


def cpu_seconds(work: Callable[[], object], times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - started) / times


def measure(network: str, psi_min: float, important: float, repeats: int) -> dict[str, float]:
    """Median seconds of a step, of a prox with and without shrinking, and of a zero-freeze, interleaved."""
    loop, strategy = prepared(network, psi_min, important)
    works: dict[str, tuple[Callable[[], object], int]] = {
        "step": (loop.epoch, 1),  # an epoch is one step
        "hold": (lambda: strategy.prox(loop.context, loop.context.lr, shrinking=False), 3),
        "shrink": (lambda: strategy.prox(loop.context, loop.context.lr), 3),
        "zero_freeze": (strategy.zero_freeze, 20),
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, (work, times) in works.items():
            took = cpu_seconds(work, times)
            if repeat:
                seconds[name].append(took)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    options = arguments(__doc__, "prox", repeats=7)
    speed_up_process(threads=1)
    results = []
    print("network   ψ_min  important   prox/step: mean   while shrinking   else   zero-freeze/step")
    for network in ("paper3", "ags6"):
        for psi_min in (0.0, 1.0):
            for important in (0.0, 0.5, 1.0):
                seconds = measure(network, psi_min, important, options.repeats)
                shrinking, holding = (seconds[kind] / STEPS_PER_PROX / seconds["step"] for kind in ("shrink", "hold"))
                share = SHRINK_UNTIL - SHRINK_FROM
                ratios = {
                    "prox_per_step": share * shrinking + (1 - share) * holding,
                    "shrinking_per_step": shrinking,
                    "holding_per_step": holding,
                    "zero_freeze_per_step": seconds["zero_freeze"] / seconds["step"],
                }
                results.append({"network": network, "psi_min": psi_min, "important": important, **ratios})
                print(
                    f"{network:8}  {psi_min:5}  {important:9}   {ratios['prox_per_step']:15.1%}   {shrinking:15.1%}"
                    f"   {holding:4.1%}   {ratios['zero_freeze_per_step']:16.2%}",
                    flush=True,
                )
    write(options.out, options.repeats, {"ratios": results})


if __name__ == "__main__":
    main()
