"""One run in several processes: each takes a part of every batch, and all have the same weights, bit by bit.

`torchrun` starts the processes and tells them of each other; `joined` lets this process take part. What is computed
from images is then summed over the processes, in one order for all, so that whatever follows from it (an optimiser's
step, a prox, a mask) is the same everywhere without being sent. In a single process nothing here does anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from .errors import LostProcessError, UnavailableError
from .runtime import find_device

Item = TypeVar("Item")
#: The most dimensions of a tensor that is sent without its receivers knowing its shape.
DIMENSIONS = 8


class _Group:
    """The processes of this run, and which of them this one is."""

    rank, size = 0, 1
    #: Through which torchrun introduces them; it outlives them.
    store: Any = None


_group = _Group()


def started_together() -> bool:
    """Whether `torchrun` has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


@contextmanager
def joined(device: str = "auto") -> Iterator[None]:
    """Inside the block this process trains together with those that were started with it, if there are any."""
    if not started_together():
        yield
        return
    kind = find_device(device).type
    if kind not in ("cpu", "cuda"):
        raise UnavailableError(f"several processes can train on CPUs and on CUDA GPUs, not on device {kind!r}")
    if kind == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise UnavailableError(
                f"process {local} of this machine has no GPU: it has {torch.cuda.device_count()}; start one process "
                "per GPU"
            )
        torch.cuda.set_device(local)
    with _told():
        store, _group.rank, _group.size = next(rendezvous("env://"))
        backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=_group.rank, world_size=_group.size)
    _group.store = store
    yield  # after an error the others may be gone, and a farewell would wait for them: no `finally`
    dist.destroy_process_group()
    _group.rank, _group.size, _group.store = 0, 1, None


def rank() -> int:
    """The number of this process; process 0 leads: it writes, and it speaks."""
    return _group.rank


def processes() -> int:
    """How many processes train together."""
    return _group.size


def first_to_tell() -> bool:
    """Whether no other process of this run has told its user anything yet: what ends one ends all."""
    if _group.store is None:
        return not started_together() or os.environ["RANK"] == "0"
    with suppress(RuntimeError):  # whoever kept the store is gone
        return int(_group.store.add("told", 1)) == 1
    return True


def part_of(count: int) -> slice:
    """This process's part of so many things in a row."""
    return slice(count * _group.rank // _group.size, count * (_group.rank + 1) // _group.size)


def own_turns(items: Sequence[Item]) -> Sequence[Item]:
    """Those items that are this process's if all take turns, beginning with process 0."""
    return items if _group.size == 1 else items[_group.rank :: _group.size]


def sum_(*tensors: Tensor) -> None:
    """Replace each tensor by its sum over all processes, the same bits in each."""
    if _group.size == 1:
        return
    with _told():
        for _, same in groupby(sorted(tensors, key=lambda t: str(t.dtype)), key=lambda t: t.dtype):
            parts = list(same)
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in parts])  # one message, not one per tensor
            dist.all_reduce(flat)
            with torch.no_grad():
                for tensor, total in zip(parts, torch.split(flat, [t.numel() for t in parts]), strict=True):
                    tensor.copy_(total.view_as(tensor))


def total(count: int) -> int:
    """The sum of a number over all processes."""
    result = torch.tensor(count)
    sum_(result)
    return int(result)


def gathered(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """What all processes have made of batches that they took in turns, as one tensor in the order of the batches.

    `like` is an empty result, for a process that had no batch.
    """
    if _group.size == 1:
        return torch.cat(list(parts))
    rounds = max(total(len(parts) if number == _group.rank else 0) for number in range(_group.size))
    sizes = torch.zeros(rounds, _group.size, dtype=torch.long)
    sizes[: len(parts), _group.rank] = torch.tensor([len(part) for part in parts], dtype=torch.long)
    sum_(sizes)
    ends = sizes.flatten().cumsum(0).view_as(sizes)
    result = like.new_zeros(int(sizes.sum()), *like.shape[1:])
    for part, end in zip(parts, ends[:, _group.rank].tolist(), strict=False):
        result[end - len(part) : end] = part
    sum_(result)  # where this process has its part, all others have zeros
    return result


def from_first(tensor: Tensor) -> Tensor:
    """The tensor of process 0. Those of the others must only have its type and device."""
    if _group.size == 1:
        return tensor
    shape = torch.tensor([tensor.ndim, *tensor.shape, *[0] * (DIMENSIONS - tensor.ndim)])
    with _told():
        dist.broadcast(shape, 0)
        dimensions, *sides = shape.tolist()
        result = tensor.contiguous() if _group.rank == 0 else tensor.new_empty(sides[:dimensions])
        dist.broadcast(result, 0)
    return result


def files_from_first(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of process 0, by name."""
    if _group.size == 1:
        return dict(files)
    names = _bytes_from_first("\n".join(files).encode()).decode()
    return {name: _bytes_from_first(files.get(name, b"")) for name in names.splitlines()}


def _bytes_from_first(content: bytes) -> bytes:
    return from_first(torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0).byte()
                      ).numpy().tobytes()  # fmt: skip


def same_everywhere(text: str) -> bool:
    """Whether all processes have the same text; all get the same answer."""
    return total(int(_bytes_from_first(text.encode()) != text.encode())) == 0


@contextmanager
def _told() -> Iterator[None]:
    """Tell what a failed exchange means."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            "another process of this run was lost: it failed, was killed, or does not answer, so all stop. Nothing "
            "finished is lost: continue by the same torchrun command with resume=True"
        ) from error


class SummedOverProcesses(torch.autograd.Function):
    """The sum over all processes, of values and in the backward pass of gradients."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        result = value.clone()
        sum_(result)
        return result

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        result = gradient.clone()
        sum_(result)
        return result
