"""What each trick of the training loop buys, and tricks that were tried and left out.

    python bench/tricks.py [--repeats 7] [--out results/bench-tricks.json]

`paper3` and `ags6`, batch 64, fine-tuning. A trick's worth is the CPU time of the loop without it over that of the loop
as it is; of a trick that was left out, the time of the loop as it is over that of the loop with it.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from gescl import Training, batches, runtime, training
from gescl.networks.dropout import ByteDropout
from gescl.networks.multihead import MultiHeadNet
from loop import plain_network
from subjects import made_split, our_loop
from timing import Work, arguments, ratio, turns, write

BATCH = IMAGES = 64  # a step at a time


def as_it_is(network: str) -> Work:
    return our_loop(network, BATCH, IMAGES).epoch


def without_kept_memory(network: str) -> Work:
    """glibc gives freed memory back to the system, and faults it in again in the next step."""
    runtime._keep_freed_memory = lambda: None
    return our_loop(network, BATCH, IMAGES).epoch


def without_channels_last(network: str) -> Work:
    def change(net: MultiHeadNet) -> None:
        net.layout = torch.contiguous_format
        net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch's stubs lack this one

    return our_loop(network, BATCH, IMAGES, change=change).epoch


def with_relu_before_the_pool(network: str) -> Work:
    def change(net: MultiHeadNet) -> None:
        assert isinstance(net.trunk, nn.Sequential)
        layers = list(net.trunk)
        for place, (one, other) in enumerate(pairwise(list(layers))):
            if isinstance(one, nn.MaxPool2d) and isinstance(other, nn.ReLU):
                layers[place : place + 2] = other, one
        net.trunk = nn.Sequential(*layers)

    return our_loop(network, BATCH, IMAGES, change=change).epoch


def with_images_channels_first(network: str) -> Work:
    """Images as data sets store them, turned over batch by batch."""
    batches.RESIDENT = 0
    return our_loop(network, BATCH, IMAGES).epoch


def with_torchs_dropout(network: str) -> Work:
    def change(net: MultiHeadNet) -> None:
        assert isinstance(net.trunk, nn.Sequential)
        layers = [nn.Dropout(layer.p) if isinstance(layer, ByteDropout) else layer for layer in net.trunk]
        net.trunk = nn.Sequential(*layers)

    return our_loop(network, BATCH, IMAGES, change=change).epoch


def with_foreach_adam(network: str) -> Work:
    return _with_adam(network, foreach=True)


def with_fused_adam(network: str) -> Work:
    return _with_adam(network, fused=True)


def _with_adam(network: str, *, foreach: bool = False, fused: bool = False) -> Work:
    def optimizer(training: Training, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=training.lr, foreach=foreach, fused=fused)

    training._optimizer = optimizer
    return our_loop(network, BATCH, IMAGES).epoch


def two_seeds_at_once(network: str) -> Work:
    """Two networks as one, their weights stacked, in place of two runs."""
    models = [plain_network(network) for _ in range(2)]
    for model in models:
        model.eval()  # dropout off: it would draw the same for both
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-3)
    split = made_split(IMAGES)
    pixels = (split.images.float() / 255 - 0.5) / 0.29

    def loss(weights: dict[str, Tensor], extra: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(base, (weights, extra), (images,)), labels)

    def epoch() -> None:
        for index in torch.split(torch.randperm(len(pixels)), BATCH):
            found = vmap(grad(loss), in_dims=(0, 0, None, None))(
                {name: p.detach() for name, p in parameters.items()}, buffers, pixels[index], split.labels[index]
            )
            for name, parameter in parameters.items():
                parameter.grad = found[name]
            optimizer.step()

    runtime.speed_up_process(threads=1)
    return epoch


TAKEN = {
    "freed memory is kept (mallopt)": without_kept_memory,
    "channels last in memory": without_channels_last,
    "ReLU after the pool": with_relu_before_the_pool,
    "images stored channels last": with_images_channels_first,
    "dropout by bytes": with_torchs_dropout,
}
SEEDS = "two seeds as one vectorised network"
LEFT_OUT = {
    "fused Adam": with_fused_adam,
    "Adam by lists of tensors (foreach)": with_foreach_adam,
    SEEDS: two_seeds_at_once,
}


def main() -> None:
    options = arguments(__doc__, "tricks", repeats=7)
    results: list[dict[str, Any]] = []
    print("network  trick                                 worth")
    with turns({"as it is": as_it_is, **TAKEN, **LEFT_OUT}) as alternately:
        for network in ("paper3", "ags6"):
            seconds = alternately((network,), options.repeats)
            for trick in (*TAKEN, *LEFT_OUT):
                taken, pair = trick in TAKEN, (seconds[trick], seconds["as it is"])
                worth = ratio(*pair) if taken else ratio(*pair[::-1])
                if trick == SEEDS:  # a step of it is one of two runs
                    worth = {key: 2 * value for key, value in worth.items()}
                results.append({"network": network, "trick": trick, "taken": taken, "worth": worth})
                print(f"{network:7}  {trick:36}  {worth['median']:5.2f}{'' if taken else '  left out'}", flush=True)
    write(options.out, options.repeats, {"batch": BATCH, "results": results})


if __name__ == "__main__":
    main()
