"""How much faster a network trains of which half the filters are zero until the task ends.

    python bench/half_free.py [--repeats 7] [--out results/bench-half-free.json]

GESCL after filters were let go, batch 64: with every second filter of each layer at zero, over the same with none.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gescl import Gescl, speed_up_process
from subjects import Loop, made_net
from timing import Work, arguments, ratio, turns, write

NETWORKS, BATCH, IMAGES = ("small", "paper3"), 64, 512


def training(kind: str, network: str) -> Work:
    speed_up_process(threads=1)
    net = made_net(network)
    strategy = Gescl(mu_p=0).strategy(net)
    if kind != "none at zero":
        net.graph.erase(torch.cat([torch.arange(layer.size) % 2 == 0 for layer in net.graph.layers]))
    if kind == "half at zero, computed all the same":
        strategy.asleep = lambda: None  # type: ignore[method-assign]  # what is compared with
    return Loop(net, strategy, IMAGES, BATCH).epoch


def main() -> None:
    options = arguments(__doc__, "half-free", repeats=7)
    kinds = ("none at zero", "half at zero", "half at zero, computed all the same")
    results: list[dict[str, Any]] = []
    with turns({kind: partial(training, kind) for kind in kinds}) as alternately:
        for network in NETWORKS:
            seconds = alternately((network,), options.repeats)
            for kind in kinds[1:]:
                faster = ratio(seconds[kinds[0]], seconds[kind])
                results.append({"network": network, "kind": kind, "faster": faster})
                print(f"{network:7} {kind:36} {faster['median']:.2f}", flush=True)
    write(options.out, options.repeats, {"batch": BATCH, "results": results})


if __name__ == "__main__":
    main()
