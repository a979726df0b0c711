"""Small tasks, made in milliseconds, that a small network can learn."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import Phase, settings
from torch import nn

from gescl import Learner, Task, load_stream

# `make mutants`: that a test fails is enough, no simpler example is looked for.
settings.register_profile("mutants", phases=[Phase.generate], database=None)

# Whoever runs the tests may have data sets; no test needs them.
os.environ.pop("GESCL_DATA", None)


@pytest.fixture(autouse=True, scope="module")
def one_thread_for_what_a_module_shares() -> None:
    """Models that a module's tests share are made before `one_thread` of the first of them."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run in parallel: one thread each, so that they do not get in each other's way.

    A command that was run within the process has also made it flush denormals, which hypothesis refuses to work with.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.set_flush_denormal(False)


def stripes(name: str, classes: int = 4, *, shape: tuple[int, int, int] = (3, 16, 16), seed: int = 0) -> Task:
    """Noisy stripes; the class is their direction and width. Different seeds give different colours."""
    generator = torch.Generator().manual_seed(seed)
    channels, height, width = shape
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angles = torch.arange(classes) * torch.pi / classes + 0.2 * seed
    colours = torch.rand(classes, channels, 1, 1, generator=generator) + 0.5

    def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % classes
        phases = torch.rand(count, 1, 1, generator=generator) * 6.28
        along = torch.cos(angles[labels]).view(-1, 1, 1) * x + torch.sin(angles[labels]).view(-1, 1, 1) * y
        waves = torch.sin(along + phases).unsqueeze(1) * colours[labels]
        noise = torch.randn(count, *shape, generator=generator) * 0.3
        return (((waves + noise) * 40) + 128).clamp(0, 255).to(torch.uint8), labels

    return Task.from_arrays(name, *images(160), *images(80), classes=[f"{name}-{k}" for k in range(classes)])


@pytest.fixture(scope="session")
def digits() -> list[Task]:
    return list(load_stream("digits"))


def conv(learner: Learner, name: str) -> nn.Conv2d:
    """A convolution of the learner's trunk."""
    module = learner.net.trunk.get_submodule(name)
    assert isinstance(module, nn.Conv2d)
    return module
