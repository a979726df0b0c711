"""What a second thread buys, and a fourth, as far as the machine has cores: seconds by the clock, not of the CPU.

    python bench/threads.py [--repeats 7] [--out results/bench-threads.json]

Needs an idle machine: threads wait for each other, so other work on one core holds up all of them.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import product
from typing import Any

from gescl.runtime import cores
from subjects import our_loop
from timing import Work, arguments, ratio, turns, write

IMAGES = 512


def ours(threads: int, network: str, batch: int) -> Work:
    return our_loop(network, batch, IMAGES, threads=threads).epoch


def main() -> None:
    options = arguments(__doc__, "threads", repeats=7)
    counts = [count for count in (1, 2, 4, 8) if count <= cores()]
    results: list[dict[str, Any]] = []
    print("network  batch  threads  faster than one")
    with turns({str(count): partial(ours, count) for count in counts}, time.perf_counter) as alternately:
        for network, batch in product(("paper3", "ags6"), (64, 256)):
            seconds = alternately((network, batch), options.repeats)
            for count in counts[1:]:
                faster = ratio(seconds["1"], seconds[str(count)])
                results.append({"network": network, "batch": batch, "threads": count, "faster": faster})
                print(f"{network:7}  {batch:5}  {count:7}  {faster['median']:15.2f}", flush=True)
    write(options.out, options.repeats, {"images": IMAGES, "results": results})


if __name__ == "__main__":
    main()
