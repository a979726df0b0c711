"""Where the time of a training step goes: CPU time by kind of operation, as PyTorch's profiler counts it.

    python bench/operations.py [--repeats 3] [--out results/bench-operations.json]

Fine-tuning by our loop, batch 64, one thread. How much faster convolutions could be at all is told by their arithmetic
per second over that of a large convolution by the same library.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from subjects import our_loop
from timing import arguments, write

NETWORKS, BATCH, IMAGES = ("paper3", "ags6", "resnet20"), 64, 256
SPEED = "convolutions' speed"
#: What an operation's name contains, and the kind it counts as. The optimiser is counted as a whole.
KINDS = {
    "convolution_backward": "convolutions, backward",
    "mkldnn_convolution": "convolutions, forward",
    "max_pool2d": "pooling",
    "fill_": "pooling",  # of its gradient with zeros
    "batch_norm": "batch-norm",
    "clamp_min": "activations and dropout",
    "threshold_backward": "activations and dropout",
    "aten::ge": "activations and dropout",
    "random_": "activations and dropout",
    "mm": "matrix products",
}


def measure(network: str) -> dict[str, float]:
    """The share of every kind in one epoch, and the speed of its convolutions over that of a large one."""
    loop = our_loop(network, BATCH, IMAGES)
    loop.epoch()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        loop.epoch()
    events = found.key_averages()
    whole = sum(event.self_cpu_time_total for event in events)
    result = dict.fromkeys(dict.fromkeys(KINDS.values()), 0.0)
    for event in events:
        kind = next((kind for part, kind in KINDS.items() if part in event.key), None)
        if kind is not None:
            result[kind] += event.self_cpu_time_total / whole
    result["Adam"] = sum(event.cpu_time_total for event in events if event.key.startswith("Optimizer.step")) / whole
    result["all else"] = 1 - sum(result.values())
    with FlopCounterMode(display=False) as counter:
        loop.epoch()
    counts = counter.get_flop_counts()["Global"]
    operations = sum(count for operation, count in counts.items() if "convolution" in str(operation))
    seconds = whole / 1e6 * sum(share for kind, share in result.items() if kind.startswith("convolutions"))
    return {**result, SPEED: operations / seconds / best_speed()}


@torch.inference_mode()
def best_speed(images: int = 16, filters: int = 256, size: int = 32) -> float:
    """Additions and multiplications per second of a large convolution, forward."""
    layer = nn.Conv2d(filters, filters, 3, padding=1)
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this one
    batch = torch.rand(images, filters, size, size).to(memory_format=torch.channels_last)
    layer(batch)
    started = time.process_time()
    for _ in range(5):
        layer(batch)
    return 5 * 2 * 9 * filters**2 * size**2 * images / (time.process_time() - started)


def main() -> None:
    options = arguments(__doc__, "operations", repeats=3)
    results = []
    for network in NETWORKS:
        found = [measure(network) for _ in range(options.repeats)]
        middle = {kind: statistics.median(each[kind] for each in found) for kind in found[0]}
        print(network, ", ".join(f"{kind} {share:.1%}" for kind, share in middle.items()), flush=True)
        results.append({"network": network, "convolution_speed": middle.pop(SPEED), "shares": middle})
    write(options.out, options.repeats, {"batch": BATCH, "results": results})


if __name__ == "__main__":
    main()
