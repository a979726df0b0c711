"""What measuring importance costs: EWC's Fisher, MAS and GESCL's Γ, compared with plain passes over the same images.

    python bench/importance.py [--repeats 5] [--out results/bench-importance.json]

Times are CPU time per image on one thread; every figure is a ratio between things timed alternately in this one run.
The loop over single images is timed on a part of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from gescl import Ewc, Mas
from gescl.batches import in_batches
from gescl.methods.base import TaskContext
from gescl.methods.filterwise import activation_moments
from gescl.networks.cnn import build_trunk
from gescl.networks.multihead import MultiHeadNet
from gescl.runtime import speed_up_process
from gescl.streams.task import Split
from timing import arguments, write

BATCH = 256
IMAGES = 256
SINGLE = 50  # images for the loop over single ones


def prepared(network: str, shape: tuple[int, int, int], images: int) -> tuple[MultiHeadNet, Split, TaskContext]:
    torch.manual_seed(0)
    channels = shape[0]
    net = MultiHeadNet(
        build_trunk(network, shape), shape, torch.full((channels,), 120.0), torch.full((channels,), 60.0)
    )
    net.add_head(10)
    split = Split(torch.randint(0, 256, (images, *shape), dtype=torch.uint8), torch.randint(0, 10, (images,)))
    return net.eval(), split, TaskContext(0, "made", 0, BATCH, partial(in_batches, split, torch.device("cpu")))


def forward(net: MultiHeadNet, split: Split) -> None:
    with torch.inference_mode():
        for start in range(0, len(split), BATCH):
            net(split.images[start : start + BATCH], 0)


def forward_and_backward(net: MultiHeadNet, split: Split, batch: int) -> None:
    """With the whole of the split it is what one epoch costs without its optimiser; with batches of 1, the loop that
    a Fisher information written plainly needs."""
    squares = [torch.zeros_like(p) for p in net.trunk.parameters()]
    for start in range(0, len(split), batch):
        part = split[slice(start, start + batch)]
        loss = F.cross_entropy(net(part.images, 0), part.labels)
        gradients = torch.autograd.grad(loss, list(net.trunk.parameters()))
        if batch == 1:
            torch._foreach_addcmul_(squares, gradients, gradients)


def measure(network: str, shape: tuple[int, int, int], images: int, repeats: int) -> dict[str, float]:
    """Median CPU seconds per image of every pass, interleaved."""
    net, split, context = prepared(network, shape, images)
    passes: dict[str, tuple[Callable[[], object], int]] = {
        "forward": (lambda: forward(net, split), images),
        "forward_backward": (lambda: forward_and_backward(net, split, BATCH), images),
        "single_images": (lambda: forward_and_backward(net, split[slice(SINGLE)], 1), min(SINGLE, images)),
        "ewc": (lambda: Ewc().strategy(net).end_task(context), images),
        "mas": (lambda: Mas().strategy(net).end_task(context), images),
        "gamma": (lambda: activation_moments(net, context), images),
    }
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for repeat in range(repeats + 1):
        for name, (work, count) in passes.items():
            started = time.process_time()
            work()
            if repeat:  # the first round warms up
                seconds[name].append((time.process_time() - started) / count)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    options = arguments(__doc__, "importance", repeats=5)
    speed_up_process(threads=1)
    results = []
    print("network   in forward passes: Γ   EWC   MAS     EWC, MAS: faster than image by image")
    for network, shape in (("paper3", (3, 32, 32)), ("ags6", (3, 32, 32)), ("small", (1, 28, 28))):
        took = measure(network, shape, IMAGES, options.repeats)
        ratios = {
            "gamma_per_forward": took["gamma"] / took["forward"],
            "ewc_per_forward": took["ewc"] / took["forward"],
            "mas_per_forward": took["mas"] / took["forward"],
            "forward_backward_per_forward": took["forward_backward"] / took["forward"],
            "ewc_faster_than_loop": took["single_images"] / took["ewc"],
            "mas_faster_than_loop": took["single_images"] / took["mas"],
        }
        print(
            f"{network:8}  {ratios['gamma_per_forward']:21.2f} {ratios['ewc_per_forward']:5.2f} "
            f"{ratios['mas_per_forward']:5.2f}     {ratios['ewc_faster_than_loop']:.2f}, "
            f"{ratios['mas_faster_than_loop']:.2f}",
            flush=True,
        )
        results.append({"network": network, "shape": shape, **ratios})
    write(options.out, options.repeats, {"images": IMAGES, "ratios": results})


if __name__ == "__main__":
    main()
