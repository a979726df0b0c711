"""Avalanche's side of bench/peers.py; run by the Python of its own environment.

    python peer_avalanche.py STREAM.pt EPOCHS BATCH        # then a method's name per line on standard input

Answers every line with the CPU seconds that a whole run of that method over the stream took.
"""

import random
import sys
import time

import torch
from torch import nn

# Its torchvision may be built for another torch, whose operators are then missing; declared, they are never called.
MISSING = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    MISSING.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.scenarios.supervised import with_classes_timeline
from avalanche.benchmarks.scenarios.task_aware import with_task_labels
from avalanche.benchmarks.utils.classification_dataset import (
    _make_taskaware_tensor_classification_dataset as dataset,
)
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.models import MultiHeadClassifier, MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import EWC, MAS, Naive, SynapticIntelligence


class Paper3(MultiTaskModule):
    def __init__(self):
        super().__init__()
        layers, before = [], 3
        for filters in (32, 64, 128):
            layers += [nn.Conv2d(before, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            before = filters
        self.trunk = nn.Sequential(*layers, nn.Flatten())
        self.heads = MultiHeadClassifier(2048, 10, masking=False)

    def forward(self, x, task_labels):
        return self.heads(self.trunk(x), task_labels)


METHODS = {
    "finetune": (Naive, {}),
    "ewc": (EWC, {"ewc_lambda": 1.0}),
    "si": (SynapticIntelligence, {"si_lambda": 1.0}),
    "mas": (MAS, {}),
}


def run(name, tasks, epochs, batch):
    torch.manual_seed(0)
    random.seed(0)
    splits = {
        kind: [
            dataset((images.float() / 255 - 0.5) / 0.29, labels, task_labels=number)
            for number, task in enumerate(tasks)
            for images, labels in [task[kind]]
        ]
        for kind in ("train", "test")
    }
    benchmark = with_task_labels(with_classes_timeline(benchmark_from_datasets(**splits)))
    model = Paper3()
    strategy_class, settings = METHODS[name]
    strategy = strategy_class(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=batch,
        train_epochs=epochs,
        eval_mb_size=1024,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
        **settings,
    )
    for number, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        strategy.eval(benchmark.test_stream[: number + 1])


def main():
    torch.set_num_threads(1)
    tasks, epochs, batch = torch.load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for line in sys.stdin:
        started = time.process_time()
        run(line.strip(), tasks, epochs, batch)
        print(f"seconds {time.process_time() - started}", flush=True)


if __name__ == "__main__":
    main()
