"""What the benchmarks set up alike: made-up images, and one of our training loops over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gescl import Task, Training
from gescl.methods import Finetune, Strategy, TaskContext
from gescl.networks.cnn import build_trunk
from gescl.networks.multihead import MultiHeadNet
from gescl.runtime import speed_up_process
from gescl.streams.task import Split
from gescl.training import learn_task

SHAPE = (3, 32, 32)
CLASSES = 10
NEVER = 10**9  # epochs: a benchmark stops a loop, not the loop itself


def made_split(images: int, seed: int = 0) -> Split:
    """Images of CIFAR's size, of noise: no benchmark asks what is on them."""
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (images, *SHAPE), dtype=torch.uint8, generator=draw)
    return Split(pixels, torch.randint(0, CLASSES, (images,), generator=draw))


def made_task(images: int) -> Task:
    """A task of such images. It is validated on one of them: what is timed is training."""
    split = made_split(images)
    return Task("made", tuple("abcdefghij"), split, split[slice(1)])


def made_net(network: str) -> MultiHeadNet:
    torch.manual_seed(0)
    trunk = build_trunk(network, SHAPE)
    net = MultiHeadNet(trunk, SHAPE, torch.full((3,), 127.5), torch.full((3,), 73.6))
    net.add_head(CLASSES)
    return net


class Loop:
    """Our training of the net's last head, one epoch per call. The first epoch, with which the task begins, is over."""

    context: TaskContext

    def __init__(
        self,
        net: MultiHeadNet,
        strategy: Strategy[Any],
        images: int,
        batch: int = 64,
        *,
        flip: bool = False,
        shift: int = 0,
    ) -> None:
        begin = strategy.begin_task

        def begin_task(context: TaskContext) -> None:
            self.context = context
            begin(context)

        strategy.begin_task = begin_task  # type: ignore[method-assign]  # the context is known to the strategy alone
        training = Training(batch_size=batch, epochs=NEVER, patience=NEVER, flip=flip, shift=shift)
        self._epochs = learn_task(net, strategy, made_task(images), training, seed=0)
        self.epoch()

    def epoch(self) -> None:
        next(self._epochs)


def our_loop(
    network: str,
    batch: int,
    images: int,
    *,
    augmented: bool = False,
    threads: int = 1,
    change: Callable[[MultiHeadNet], None] = lambda net: None,
) -> Loop:
    """Our loop on a first task, in a process prepared as the command line prepares it; `change` the network first."""
    speed_up_process(threads)
    net = made_net(network)
    change(net)
    return Loop(net, Finetune().strategy(net), images, batch, flip=augmented, shift=4 if augmented else 0)
