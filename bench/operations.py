"""Where the time of a training step goes: CPU time by kind of operation, as PyTorch's profiler counts it.

    python bench/operations.py [--repeats 3] [--out results/bench-operations.json]

Fine-tuning by our loop, batch 64, one thread.
"""

from __future__ import annotations

import statistics

from torch.profiler import ProfilerActivity, profile

from subjects import our_loop
from timing import arguments, write

NETWORKS, BATCH, IMAGES = ("paper3", "ags6", "resnet20"), 64, 256
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


def shares(network: str) -> dict[str, float]:
    """The share of every kind in one epoch."""
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
    return {**result, "all else": 1 - sum(result.values())}


def main() -> None:
    options = arguments(__doc__, "operations", repeats=3)
    results = []
    for network in NETWORKS:
        found = [shares(network) for _ in range(options.repeats)]
        middle = {kind: statistics.median(each[kind] for each in found) for kind in found[0]}
        results.append({"network": network, "shares": middle})
        print(network, ", ".join(f"{kind} {share:.1%}" for kind, share in middle.items()), flush=True)
    write(options.out, options.repeats, {"batch": BATCH, "results": results})


if __name__ == "__main__":
    main()
