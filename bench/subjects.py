"""What the benchmarks set up alike: made-up images, and one of our training loops over them."""

from __future__ import annotations

import torch

from gescl import Method, Task, Training
from gescl.methods import Finetune, TaskContext
from gescl.networks.cnn import build_trunk
from gescl.networks.multihead import MultiHeadNet
from gescl.runtime import prepare_process
from gescl.streams.task import Split
from gescl.training import Loop

SHAPE = (3, 32, 32)
CLASSES = 10


def made_split(images: int, seed: int = 0) -> Split:
    """Images of CIFAR's size, of noise: no benchmark asks what is on them."""
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (images, *SHAPE), dtype=torch.uint8, generator=draw)
    return Split(pixels, torch.randint(0, CLASSES, (images,), generator=draw))


def made_net(network: str) -> MultiHeadNet:
    torch.manual_seed(0)
    trunk = build_trunk(network, SHAPE)
    net = MultiHeadNet(trunk, SHAPE, torch.full((3,), 127.5), torch.full((3,), 73.6))
    net.add_head(CLASSES)
    return net


def made_lesson(net: MultiHeadNet, images: int, batch: int) -> TaskContext:
    """The context of the last head's task."""
    split, index = made_split(images), len(net.heads) - 1
    task = Task("made", tuple("abcdefghij"), split, split)
    return TaskContext(index, task, 0, batch, [(index, split)], [(index, split)])


def our_loop(
    network: str, batch: int, images: int, method: Method | None = None, augmented: bool = False, threads: int = 1
) -> Loop:
    """Our loop over a first task, in a process prepared as the command line prepares it."""
    prepare_process(threads)
    net = made_net(network)
    training = Training(batch_size=batch, flip=augmented, shift=4 if augmented else 0)
    return Loop(net, (method or Finetune()).strategy(net), made_lesson(net, images, batch), training)
