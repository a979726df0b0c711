"""Torch-Pruning's side of bench/sparsity.py; run by the Python of its own environment.

    python peer_torch_pruning.py TASK.pt EPOCHS BATCH        # then a request per line on standard input, in JSON

A request is {"pruner": "group-norm" or "magnitude", "reg": R, "scope": "local" or "global", "prune_at": SHARE,
"ratios": [...], "seed": N}. The network is trained until that share of the epochs (with the pruner's regulariser, if it
has one), pruned by each ratio in turn, and each pruned network is trained for the rest of the epochs. Answers with one
line per request: a list of what came of each ratio.
"""

import copy
import functools
import json
import math
import sys

import torch
import torch.nn.functional as F
import torch_pruning as tp
from torch import nn

LR = 1e-3
FILTERS = (32, 64, 128)
#: As in the package's own experiments, a ratio is reached in many small steps, importance computed anew after each.
STEPS = 20
#: No layer loses more than this share of its filters: with global pruning one could lose all.
MOST = 0.9
#: As in our loop: faster on a CPU.
FORMAT = torch.channels_last


def paper3():
    layers, before = [], 3
    for filters in FILTERS:
        layers += [nn.Conv2d(before, filters, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
        before = filters
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))


class Trainer:
    def __init__(self, task, epochs, batch):
        self.epochs, self.batch = epochs, batch
        mean, std = (task[moment].view(-1, 1, 1) for moment in ("mean", "std"))
        self.splits = {
            kind: (((task[kind][0].float() - mean) / std).contiguous(memory_format=FORMAT), task[kind][1])
            for kind in ("train", "val", "test")
        }

    def train(self, model, first, last, seed, regularize=None):
        """Epochs from `first` to before `last`, the rate along one cosine; returns the weights of the best epoch."""
        images, labels = self.splits["train"]
        model.to(memory_format=FORMAT)
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        best = (math.inf, None)
        for epoch in range(first, last):
            for group in optimizer.param_groups:
                group["lr"] = LR * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
            model.train()
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1000 * seed + epoch))
            for rows in order.split(self.batch):
                optimizer.zero_grad()
                F.cross_entropy(model(images[rows]), labels[rows]).backward()
                if regularize:
                    regularize(model)
                optimizer.step()
            loss, _ = self.test(model, "val")
            if loss < best[0]:
                best = (loss, copy.deepcopy(model.state_dict()))
        return best[1]

    @torch.no_grad()
    def test(self, model, kind):
        model.eval()
        loss = correct = 0
        images, labels = self.splits[kind]
        for rows in torch.arange(len(labels)).split(1000):
            scores = model(images[rows])
            loss += float(F.cross_entropy(scores, labels[rows], reduction="sum"))
            correct += int((scores.argmax(1) == labels[rows]).sum())
        return loss / len(labels), correct / len(labels)

    @torch.no_grad()
    def active(self, model):
        """Filters per layer whose output is not the same for all training images, as GESCL counts them."""
        spread = {}
        hooks = [
            module.register_forward_hook(lambda module, _, maps: spread.setdefault(module, []).append(_range(maps)))
            for module in model
            if isinstance(module, nn.ReLU)
        ]
        self.test(model, "train")
        for hook in hooks:
            hook.remove()
        counts = []
        for parts in spread.values():
            low, high = (torch.stack(ends) for ends in zip(*parts, strict=True))
            counts.append(int((high.amax(0) > low.amin(0)).flatten(1).any(1).sum()))
        return counts


def _range(maps):
    return maps.amin(0), maps.amax(0)


def make_pruner(model, request, ratio):
    settings = {
        "example_inputs": torch.zeros(1, 3, 32, 32),
        "pruning_ratio": ratio,
        "global_pruning": request["scope"] == "global",
        "ignored_layers": [model[-1]],
        "iterative_steps": STEPS,
        "max_pruning_ratio": MOST,
    }
    if request["pruner"] == "magnitude":
        return tp.pruner.MagnitudePruner(model, importance=tp.importance.GroupMagnitudeImportance(p=2), **settings)
    # Normalised by the largest of a layer, as in the package's own experiments with CIFAR.
    importance = tp.importance.GroupMagnitudeImportance(p=2, normalizer="max")
    return tp.pruner.GroupNormPruner(model, importance=importance, reg=request["reg"], **settings)


def answer(request, trainer):
    # All requests that differ only in what comes after it share the training before pruning.
    before = json.dumps({key: request[key] for key in ("pruner", "reg", "prune_at", "seed")})
    trained, pruned_at = trained_until_pruning(before, trainer)
    found = []
    for ratio in request["ratios"]:
        model = copy.deepcopy(trained)
        pruner = make_pruner(model, request, ratio)
        for _ in range(STEPS if ratio else 0):
            pruner.step()
        left = [module.out_channels for module in model if isinstance(module, nn.Conv2d)]
        model.load_state_dict(trainer.train(model, pruned_at, trainer.epochs, request["seed"]))
        active = trainer.active(model)
        found.append(
            {
                "left": left,
                "gone": sum(FILTERS) - sum(active),
                "gone_by_layer": [all_ - alive for all_, alive in zip(FILTERS, active, strict=True)],
                "val_accuracy": trainer.test(model, "val")[1],
                "accuracy": trainer.test(model, "test")[1],
            }
        )
    return found


@functools.lru_cache(maxsize=8)
def trained_until_pruning(before, trainer):
    request = json.loads(before)
    pruned_at = round(request["prune_at"] * trainer.epochs)
    torch.manual_seed(request["seed"])
    model = paper3()
    regularize = None
    if request["pruner"] == "group-norm":
        pruner = make_pruner(model, {**request, "scope": "local"}, 0.5)
        pruner.update_regularizer()
        regularize = pruner.regularize
    trainer.train(model, 0, pruned_at, request["seed"], regularize)
    return model, pruned_at


def main():
    torch.set_num_threads(1)
    trainer = Trainer(torch.load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    for line in sys.stdin:
        print("answer " + json.dumps(answer(json.loads(line), trainer)), flush=True)


if __name__ == "__main__":
    main()
