"""Random state that belongs to the run, not to the process.

Every draw of task t comes from a generator made from (seed, t, purpose), those of training from (seed, t, epoch,
purpose). A model that was saved and reloaded therefore needs no generator state, and another run in the same process
changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def derived_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that differs for every purpose, the same on every machine and Python."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose: `generator(0, task, "shuffle")`."""
    return torch.Generator().manual_seed(derived_seed(seed, *purpose))


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed torch's global generators inside the block and put them back after it.

    For what only draws from them: `reset_parameters` and dropout.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(derived_seed(seed, *purpose))
        yield


def random_state(device: torch.device) -> Tensor:
    """The state of torch's global generator for a device."""
    state: Tensor = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return state


@contextmanager
def drawn_again(state: Tensor, device: torch.device) -> Iterator[None]:
    """Draw inside the block what was drawn from this state on, and put the generator back after it."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
        yield
