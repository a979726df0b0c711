"""MultiHeadNet: one trunk that all tasks share, and one head per task."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..errors import UsageError
from .cnn import Shape
from .filters.graph import FilterGraph
from .filters.operations import BatchNorm

T = TypeVar("T")

FLOATS_PER_VECTOR = 16  # of AVX-512
#: The attribute in which a trunk keeps the hooks that gate its filters.
HOOKS = "_gescl_gates"


class MultiHeadNet(nn.Module):
    """A trunk, its heads, and what belongs to one task alone: a head, gates, batch-norm statistics.

    net = MultiHeadNet(trunk, shape=(3, 32, 32), mean=mean, std=std)
    net.add_head(10)
    logits = net(images, task=0)            # images: uint8, N×C×H×W
    """

    mean: Tensor
    std: Tensor

    def __init__(self, trunk: nn.Module, shape: Shape, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        for hook in getattr(trunk, HOOKS, ()):  # of a net that had this trunk before
            hook.remove()
        self.trunk = trunk
        self.shape = shape
        self.heads = nn.ModuleList()
        self.register_buffer("mean", mean.view(1, -1, 1, 1))
        self.register_buffer("std", std.view(1, -1, 1, 1))
        #: Per task a factor on every filter's output; tasks without one use the filters unchanged.
        self.gates: dict[int, Tensor] = {}
        #: True if all tasks are learned together, so that none has its own batch-norm statistics.
        self.shared_statistics = False
        self._gate: Tensor | None = None
        self._selected = 0
        self._statistics: dict[int, list[Tensor]] = {}
        self.layout, self.features = self._tried(trunk)
        self.to(memory_format=self.layout)  # type: ignore[call-overload]  # torch's stubs lack this one

    @torch.no_grad()
    def _tried(self, trunk: nn.Module) -> tuple[torch.memory_format, int]:
        """The layout that the trunk can read images in, and the number of its features; refused if it gives none."""
        training, layout = trunk.training, _layout(trunk)
        try:
            trunk.eval()
            try:
                features = trunk(self._sample().to(memory_format=layout))
            except Exception:  # x.view(n, -1), by which many networks flatten, cannot read that layout
                layout = torch.contiguous_format
                features = trunk(self._sample())
            one = trunk(self._sample()[:1].to(memory_format=layout))
        except Exception as error:  # the user's network may raise anything
            raise UsageError(_refusal(trunk, self.shape, error)) from error
        finally:
            trunk.train(training)
        if not isinstance(features, Tensor):
            raise UsageError(f"a trunk must give flat features N×D, this one gives a {type(features).__name__}")
        if features.ndim != 2:
            raise UsageError(f"a trunk must give flat features N×D, this one gives shape {tuple(features.shape)}")
        if one.ndim != 2:
            raise UsageError(
                "a trunk must give flat features N×D also of a single image, this one drops a dimension then: "
                "write .flatten(1) for .squeeze()"
            )
        return layout, features.shape[1]

    @cached_property
    def graph(self) -> FilterGraph:
        """The filters of the trunk."""
        graph = FilterGraph(self.trunk, self._sample())
        hooks = [module.register_forward_hook(self._gating(filters)) for module, filters in graph.gated]
        setattr(self.trunk, HOOKS, hooks)
        return graph

    def add_head(self, classes: int) -> nn.Linear:
        """Add a head for the next task, initialised from torch's global generator."""
        if self.heads:
            self.select(len(self.heads) - 1)  # the statistics of a new task start from those of the task before
        head = nn.Linear(self.features, classes).to(self.mean.device)
        self.heads.append(head)
        self.select(len(self.heads) - 1)
        return head

    def drop_heads(self, kept: int, task_state: Mapping[str, Tensor]) -> None:
        """Remove all heads but the first `kept`. `task_state` is the state of the tasks before they were added."""
        del self.heads[kept:]
        self.load_task_state(task_state)

    def drop_head(self, task: int) -> None:
        """Remove a task's head, gates and statistics; later tasks move up by one. Another task must be left."""
        newest = len(self.heads) - 1
        self.select(newest - 1 if task == newest else newest)  # whose statistics the buffers hold from now on
        del self.heads[task]
        self.gates, self._statistics = _without(self.gates, task), _without(self._statistics, task)
        self._selected = newest - 1

    def head(self, task: int) -> nn.Linear:
        """The head of a task."""
        head = self.heads[task]
        assert isinstance(head, nn.Linear)
        return head

    def forward(self, images: Tensor, task: int) -> Tensor:
        logits: Tensor = self.heads[task](self.embed(images, task))
        return logits

    def all_heads(self, images: Tensor, tasks: int) -> list[Tensor]:
        """What the heads of the first tasks say of images, from one pass where all have the same features."""
        if self.gates or (self._running() and not self.shared_statistics):
            return [self(images, task) for task in range(tasks)]
        features = self.embed(images, 0)
        return [self.heads[task](features) for task in range(tasks)]

    def embed(self, images: Tensor, task: int) -> Tensor:
        """The trunk's features of images, with the gates and statistics of the task."""
        self.select(task)
        features: Tensor = self.trunk(self.normalise(images))
        return features

    def normalise(self, images: Tensor) -> Tensor:
        """Images as the trunk takes them: zero mean and unit deviation per channel."""
        pixels = images.to(self.mean.device, self.mean.dtype, memory_format=self.layout)
        # Expanded to images: broadcasting along three innermost channels is five times slower.
        mean, std = (
            moment.expand(-1, -1, *self.shape[1:]).contiguous(memory_format=self.layout)
            for moment in (self.mean, self.std)
        )
        return pixels.sub_(mean).div_(std)

    def select(self, task: int) -> None:
        """Put the task's gates and batch-norm statistics in place."""
        self._gate = self.gates.get(task)
        if task == self._selected or self.shared_statistics:
            return
        self._statistics[self._selected] = [s.clone() for s in self._running()]
        for current, kept in zip(self._running(), self._statistics.get(task, []), strict=False):
            current.copy_(kept)
        self._selected = task

    @torch.no_grad()
    def share_statistics(self, which: Tensor) -> None:
        """Give earlier tasks the newest task's batch-norm statistics of the marked filters.

        Theirs were measured before those filters were redrawn, often at zero: dividing by a variance near zero would
        let the filter dominate an old task.
        """
        earlier, filters = self._earlier(), self._filters_of_norms()
        for place, norm in self.norms():
            marked = which[filters[norm]]
            for kept in earlier:
                for offset, now in enumerate(statistics_of(norm)):
                    kept[place + offset] = torch.where(marked, now, kept[place + offset])

    @torch.no_grad()
    def follow_statistics(
        self, which: Tensor | None, before: list[tuple[Tensor, Tensor]], now: list[tuple[Tensor, Tensor]]
    ) -> None:
        """Update earlier tasks' batch-norm statistics of the marked filters, or of all, by what other images show.

        `before` are the means and variances of those images with the old trunk, to which the earlier tasks' statistics
        belong, `now` with the current one. The output of a filter is assumed to be a multiple of its former output plus
        a constant; if it is, the result is exact.
        """
        earlier, filters = self._earlier(), {} if which is None else self._filters_of_norms()
        for (place, norm), then, there in zip(self.norms(), before, now, strict=True):
            marked = None if which is None else which[filters[norm]]
            (mean, variance), (now_mean, now_variance) = then, there
            grown = (now_variance + norm.eps) / (variance + norm.eps)
            for kept in earlier:
                taken_along = now_mean + grown.sqrt() * (kept[place] - mean), kept[place + 1] * grown
                for offset, value in enumerate(taken_along):
                    old = kept[place + offset]
                    kept[place + offset] = value if marked is None else torch.where(marked, value, old)

    def norms(self) -> list[tuple[int, BatchNorm]]:
        """The batch-norms that keep statistics, and their place in `_running`."""
        places = {id(buffer): place for place, buffer in enumerate(self._running())}
        found = [norm for norm in self.trunk.modules() if isinstance(norm, BatchNorm) and norm.track_running_stats]
        return [(places[id(norm.running_mean)], norm) for norm in found]

    def _filters_of_norms(self) -> dict[BatchNorm, Tensor]:
        return dict(self.graph.norms)

    def _earlier(self) -> list[list[Tensor]]:
        """The statistics of the tasks before the newest."""
        newest = len(self.heads) - 1
        self.select(newest)
        return [self._statistics[task] for task in range(newest)]

    def task_state(self) -> dict[str, Tensor]:
        """Gates and statistics of every task, to be saved with the weights."""
        if self.heads:
            self.select(len(self.heads) - 1)
        state = {f"gates.{task}": gate.detach() for task, gate in self.gates.items()}
        for task, kept in self._statistics.items():
            state |= {f"statistics.{task}.{k}": tensor for k, tensor in enumerate(kept) if task < len(self.heads) - 1}
        return state

    def task_state_like(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that a state must have: gates of all tasks or none, statistics of all but the last."""
        tasks = range(len(self.heads))
        gate = torch.zeros(self.graph.size) if any(name.startswith("gates.") for name in state) else None
        expected = {f"gates.{task}": gate for task in tasks if gate is not None}
        if not self.shared_statistics:
            for task in tasks[:-1]:
                expected |= {f"statistics.{task}.{k}": buffer for k, buffer in enumerate(self._running())}
        return expected

    def load_task_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `task_state` returned. Weights and buffers must be the newest task's, and all heads exist."""
        self._selected = max(0, len(self.heads) - 1)
        self.gates = {int(key.split(".")[1]): gate for key, gate in state.items() if key.startswith("gates.")}
        places = range(len(self._running()))
        earlier = [] if self.shared_statistics else range(len(self.heads) - 1)
        self._statistics = {task: [state[f"statistics.{task}.{k}"] for k in places] for task in earlier}

    def _running(self) -> list[Tensor]:
        return [buffer for buffer in self.trunk.buffers() if buffer is not None]

    def _gating(self, filters: Tensor):  # type: ignore[no-untyped-def]  # torch names no type for a hook
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if self._gate is None:
                return None
            gate = self._gate[filters]
            return output * gate.view(1, -1, *[1] * (output.ndim - 2))

        return hook

    def _sample(self) -> Tensor:
        return torch.zeros(2, *self.shape, device=self.mean.device)


def _without(by_task: dict[int, T], task: int) -> dict[int, T]:
    return {number - (number > task): value for number, value in by_task.items() if number != task}


def _refusal(trunk: nn.Module, shape: Shape, error: Exception) -> str:
    size = "×".join(map(str, shape))
    words = f"{type(trunk).__name__} cannot take images of {size} (channels×height×width): {error}"
    first = next((layer.in_channels for layer in trunk.modules() if isinstance(layer, nn.Conv2d)), shape[0])
    hint = f". Its first convolution takes {first} channels: read the images with channels={first}"
    return words if first == shape[0] else words + hint


def _layout(trunk: nn.Module) -> torch.memory_format:
    """The memory layout of images: convolutions on a CPU are faster with channels last.

    The exception is a strided 1×1 convolution that reads few channels: with channels last and several threads, oneDNN's
    gradient of it writes beyond its memory and the process dies (github.com/uxlfoundation/oneDNN/issues/6035).
    """
    convolutions = [layer for layer in trunk.modules() if isinstance(layer, nn.Conv2d)]
    skipping = [layer for layer in convolutions if layer.kernel_size == (1, 1) and layer.stride != (1, 1)]
    narrow = any(layer.in_channels // layer.groups < FLOATS_PER_VECTOR for layer in skipping)
    return torch.contiguous_format if narrow else torch.channels_last


def statistics_of(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Running mean and variance of a batch-norm that keeps them."""
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.running_mean, norm.running_var
