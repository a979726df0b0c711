"""How long the small commands take, from nothing to the answer, and how much of it is importing torch.

python bench/startup.py --before OTHER/src      writes results/bench-startup.json

`--before` is the source folder of a checkout of an earlier version. All commands are run alternately; seconds are
medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from gescl.runtime import hardware
from gescl.store import write_json

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "bench-startup.json"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the start of small commands.")
    parser.add_argument("--before", type=Path, required=True, help="source folder of an earlier version")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        image = model(Path(folder), arguments.before)
        commands = {
            "predict": ["-m", "gescl", "predict", "model.gescl", image],
            "help": ["-m", "gescl", "--help"],
            "version": ["-m", "gescl", "--version"],
        }
        seconds: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                for when, source in (("before", arguments.before), ("after", ROOT / "src")):
                    seconds.setdefault(f"{name}_{when}", []).append(timed(command, source, folder))
            seconds.setdefault("torch", []).append(timed(["-c", "import torch"], ROOT / "src", folder))
            seconds.setdefault("python", []).append(timed(["-c", "pass"], ROOT / "src", folder))
    medians = {name: statistics.median(of_rounds) for name, of_rounds in seconds.items()}
    ratios = {f"{name}_before_over_after": medians[f"{name}_before"] / medians[f"{name}_after"] for name in commands}
    about = {"rounds": arguments.rounds, "torch_version": torch.__version__, **hardware(torch.device("cpu"))}
    shares = {"torch_share_of_predict": medians["torch"] / medians["predict_after"]}
    write_json(OUT, {"seconds": medians, **ratios, **shares, "about": about})
    print(medians, ratios, shares)


def model(folder: Path, before: Path) -> str:
    """A model of two tasks that the earlier version has learned, and the name of an image."""
    timed(["-m", "gescl", "data", "export", "scripts", "story", "--tasks", "2"], before, str(folder))
    new = ["--network", "small", "--image-size", "28", "--images", "grey", "--epochs", "1"]
    for task, settings in (("digits", new), ("latin-capitals", [])):
        timed(["-m", "gescl", "learn", "model.gescl", f"story/{task}", *settings], before, str(folder))
    return "story/digits/test/7/0001.png"


def timed(command: list[str], source: Path, folder: str) -> float:
    """Seconds that a command of Python takes with that source."""
    environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
    started = time.perf_counter()
    subprocess.run([sys.executable, *command], cwd=folder, env=environment, check=True, capture_output=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
