"""Distillation: keep the old heads' answers to the new images as they were before the task.

Images of old tasks are gone, but their heads are not, and their answers to the new images show how far the trunk has
moved. This is the idea of learning without forgetting (Li and Hoiem 2016): the answers of the old heads are recorded
once, before a task is learned, and moving away from them is penalised. Augmented images are never the same twice, and
neither are features after dropout. There the old trunk is kept while the task is learned, and asked in every step about
the same images with the same features dropped, in the same precision: answers to anything else would teach the trunk to
move. Nothing is carried from task to task.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..distributed import gathered
from ..networks.filters.operations import BatchNorm
from ..networks.multihead import MultiHeadNet
from ..randomness import drawn_again
from ..runtime import images_at_once
from .base import Batch, TaskContext

#: The usual temperature at which answers are compared, so that the order of unlikely classes counts too.
TEMPERATURE = 2.0

#: The most old heads asked per step, drawn again each time: the cost does not grow with the number of tasks.
HEADS_PER_STEP = 8
EVERYONE = slice(None)

#: The logit of a class that a head does not have: heads are padded to the same number of classes.
NEVER = -1e9


class Distillation:
    """The recorded answers of all old heads to one task's training images."""

    def __init__(self, net: MultiHeadNet, context: TaskContext) -> None:
        heads = [net.head(task) for task in range(context.index)]
        self._weight = pad_sequence([head.weight.detach() for head in heads], batch_first=True)
        self._bias = pad_sequence([head.bias.detach() for head in heads], batch_first=True, padding_value=NEVER)
        self._net, self._context = net, context
        if not context.numbered:  # answers cannot be looked up: the old trunk is kept, and asked in every step
            net.select(context.index)
            self._old = {name: tensor.detach().clone() for name, tensor in net.trunk.state_dict().items()}
            return
        net.eval()
        batches = context.batches(images_at_once(net.mean.device))
        with torch.no_grad():
            answers = [self._ask(net.embed(images, context.index)) for images, _ in batches]
        #: Log-probabilities, images × heads × classes.
        self.answers = gathered(answers, like=self._bias.new_empty(0, *self._bias.shape))

    def _ask(self, features: Tensor, heads: Tensor | slice = EVERYONE) -> Tensor:
        """The log-probabilities of several heads, from one matrix product."""
        weight, bias = self._weight[heads].flatten(0, 1), self._bias[heads].flatten()
        logits = F.linear(features, weight, bias).view(len(features), -1, self._bias.shape[1])
        return F.log_softmax(logits / TEMPERATURE, dim=2)

    @torch.no_grad()
    def _recorded(self, batch: Batch) -> Tensor:
        """The old heads' answers to the batch before the task."""
        if batch.index is not None:
            return self.answers[batch.index]
        assert batch.images is not None and batch.random_state is not None
        trunk, device = self._net.trunk, batch.images.device
        modes = {module: module.training for module in trunk.modules()}
        for module in modes:
            if isinstance(module, BatchNorm):
                module.eval()
        precision = torch.autocast(device.type, torch.bfloat16, enabled=batch.features.dtype == torch.bfloat16)
        with drawn_again(batch.random_state, device), precision:
            features = torch.func.functional_call(trunk, self._old, (self._net.normalise(batch.images),))
        for module, training in modes.items():
            module.training = training
        return self._ask(features.float())

    def loss(self, batch: Batch) -> Tensor:
        """How far the old heads' answers to the batch have moved: Σ over heads of T²·KL(recorded ‖ now).

        If there are more old heads than are asked per step, the sum is estimated from those asked.
        """
        there = len(self._bias)
        heads = self._some_heads() if there > HEADS_PER_STEP else EVERYONE
        recorded, now = self._recorded(batch)[:, heads], self._ask(batch.features.float(), heads)
        moved = F.kl_div(now, recorded, reduction="sum", log_target=True) / len(now)
        return TEMPERATURE**2 * max(1.0, there / HEADS_PER_STEP) * moved

    def _some_heads(self) -> Tensor:
        """The heads that are asked in this step."""
        draw = self._context.generator(f"heads to ask in step {self._context.step}")
        return torch.randperm(len(self._bias), generator=draw)[:HEADS_PER_STEP]
