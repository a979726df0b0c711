"""A learned task as a network of its own, without the filters it does not need: a plain module or an ONNX file."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from ..errors import UnavailableError, UsageError, missing_extra
from ..learner import Learner
from ..networks.compact import copied, shrunk, whole_groups
from ..networks.filters.graph import FilterGraph
from ..networks.multihead import MultiHeadNet
from ..store import write_bytes


class TaskNet(nn.Module):
    """One task's network, from images (N×C×H×W, 0…255) to logits: normalisation, trunk and head."""

    mean: Tensor
    std: Tensor

    def __init__(self, trunk: nn.Module, head: nn.Linear, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.trunk((images.to(self.mean.dtype) - self.mean) / self.std))
        return logits


@dataclass(frozen=True)
class Cost:
    """The number of weights of a network, and the multiply-accumulates per image."""

    parameters: int
    macs: int


def cost(net: nn.Module, *inputs: object) -> Cost:
    """Parameters, and multiply-accumulates of convolutions and linear layers on these inputs."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        net(*inputs)
    return Cost(sum(p.numel() for p in net.parameters()), counter.get_total_flops() // 2)


def task_net(learner: Learner, task: str, *, compact: bool = True) -> TaskNet:
    """One task's network, in eval mode; `compact` leaves out every filter the task does not need."""
    index = learner.index(task)
    net = learner.net
    net.eval()
    net.select(index)
    keep = _needed(net, [index]) if compact else torch.ones(net.graph.size, dtype=torch.bool, device=net.mean.device)
    trunk = _fold(copied(net.graph), net.graph, net.gates.get(index))
    return TaskNet(shrunk(trunk, net.graph, keep), _head(net, index, keep), net.mean.clone(), net.std.clone()).eval()


def compact(learner: Learner, tasks: Sequence[str] | None = None) -> MultiHeadNet:
    """A smaller network for several tasks, all learned ones unless given, without the filters that none of them needs.

    `compact(learner)(images, task)` gives a task's logits, tasks counted in the order given.
    """
    net = learner.net
    chosen = [learner.index(task) for task in (learner.tasks if tasks is None else tasks)]
    if not chosen:
        raise UsageError("compact: name at least one task")
    net.eval()
    keep = _needed(net, chosen)
    small: MultiHeadNet | None = None
    for number, index in enumerate(chosen):
        net.select(index)
        trunk = shrunk(copied(net.graph), net.graph, keep)
        if small is None:
            small = MultiHeadNet(trunk, net.shape, net.mean.flatten().clone(), net.std.flatten().clone())
        head = small.add_head(net.head(index).out_features)
        head.load_state_dict(_head(net, index, keep).state_dict())
        for ours, its in zip(small.trunk.buffers(), trunk.buffers(), strict=True):
            ours.copy_(its)  # the task's statistics, kept when the next head is added
        if index in net.gates:
            small.gates[number] = net.gates[index][_renumbered(net.graph, small.graph, keep)]
    assert small is not None
    return small.eval()


def export_onnx(learner: Learner, task: str, path: Path, *, compact: bool = False) -> None:
    """Write a task's network as ONNX: images in as uint8 N×H×W×C, calibrated probabilities out.

    Class names, task and image size are in the file's metadata.
    """
    if path.suffix != ".onnx":  # a typing error could otherwise overwrite the model
        raise UsageError(f"an ONNX file's name ends in .onnx, got {path}")
    try:
        import onnx
        import onnxscript  # noqa: F401 (torch's exporter needs it, and says so less clearly)
    except ImportError as error:
        raise UnavailableError(missing_extra(f"ONNX ({error.name})", "onnx")) from error
    record = learner.records[learner.index(task)]
    model = _Served(task_net(learner, task, compact=compact), record.temperature).eval().cpu()
    channels, height, width = learner.net.shape
    sample = torch.zeros(2, height, width, channels, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself, as is what it logs
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            model,
            (sample,),
            dynamo=True,
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            verbose=False,
        )
    assert program is not None
    proto = onnx.ModelProto()
    proto.CopyFrom(program.model_proto)
    notes = {"task": task, "classes": list(record.classes), "image_size": [height, width], "channels": channels}
    for key, value in notes.items():
        proto.metadata_props.add(key=f"gescl.{key}", value=json.dumps(value, ensure_ascii=False))
    write_bytes(path, proto.SerializeToString())


class _Served(nn.Module):
    """What an exported file computes."""

    def __init__(self, net: TaskNet, temperature: float) -> None:
        super().__init__()
        self.net = net
        self.temperature = temperature

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images.permute(0, 3, 1, 2))
        return torch.softmax(logits / self.temperature, 1)


def _needed(net: MultiHeadNet, tasks: Sequence[int]) -> Tensor:
    """Filters that any of the tasks needs: not at zero or gated off, and with a path of weights to a head."""
    graph = net.graph
    alive = ~torch.cat([layer.dead() for layer in graph.layers])
    result = torch.zeros_like(alive)
    for task in tasks:
        heard = net.gates[task] != 0 if task in net.gates else torch.ones_like(alive)
        result |= graph.served(nn.ModuleList([net.head(task)])) & heard
    result &= alive
    for layer in graph.layers:
        if not result[layer.slice].any():
            result[layer.slice.start] = True  # a layer without a filter cannot be run
    return whole_groups(graph, result)


def _fold(trunk: fx.GraphModule, graph: FilterGraph, gate: Tensor | None) -> fx.GraphModule:
    """Multiply a task's gates into the weights of the layers that emit the filters."""
    if gate is None:
        return trunk
    for name, filters in graph.named(graph.outlets):
        module, factor = trunk.get_submodule(name), gate[filters]
        if getattr(module, "weight", None) is None:  # a batch-norm without γ and β
            module.weight, module.bias = nn.Parameter(factor.clone()), nn.Parameter(torch.zeros_like(factor))
            continue
        for parameter in (module.weight, module.bias):
            if isinstance(parameter, Tensor):
                parameter.data.mul_(factor.view(-1, *[1] * (parameter.ndim - 1)))
    return trunk


def _head(net: MultiHeadNet, task: int, keep: Tensor) -> nn.Linear:
    old = net.head(task)
    columns = torch.cat([keep, keep.new_ones(1)])[net.graph.feature_source]
    head = nn.Linear(int(columns.sum()), old.out_features, device=old.weight.device)
    with torch.no_grad():
        head.weight.copy_(old.weight[:, columns])
        head.bias.copy_(old.bias)
    return head


def _renumbered(large: FilterGraph, small: FilterGraph, keep: Tensor) -> Tensor:
    """The number in the large graph of each filter of the small one: the order of filters is the same."""
    kept = keep.nonzero().squeeze(1)
    assert len(kept) == small.size and [a.name for a in large.layers] == [b.name for b in small.layers]
    return kept
