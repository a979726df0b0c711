"""Torture runs, and write what came of it to results/torture.json.

Parts that have been done before are done again and replaced in the file; with --more they are added to.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from gescl.store import write_json

from . import inputs, kills, neighbours, storage, subjects
from .subjects import Run, Tally

Part = Callable[[Tally, float], None]


def parts(scale: float, seed: int) -> dict[str, Part]:
    """What there is to do; of scale 1 in about an hour."""

    def times(count: int) -> int:
        return max(1, round(count * scale))

    return {
        "kills": lambda tally, until: kills.at_random(tally, times(100), until, seed),
        "writes": lambda tally, until: kills.writes(tally, times(400), until, seed),
        "disks": lambda tally, until: storage.disks(tally, times(28), until),
        "damage": lambda tally, until: storage.damage(tally, times(25), until, seed),
        "two at once": lambda tally, until: neighbours.two_at_once(tally, times(5), until),
        "vanishing files": lambda tally, until: neighbours.vanishing(tally, times(5), until),
        "clock": lambda tally, until: neighbours.clock(tally, times(5), until, seed),
        "workers": lambda tally, until: neighbours.worker(tally, times(2), until),
        "inputs": lambda tally, until: inputs.inputs(tally, times(100_000), until, seed),
        "several processes": lambda tally, until: neighbours.several(tally, times(5), until, seed),
    }


def torture(out: Path, scale: float, minutes: float, only: list[str], seed: int, more: bool) -> bool:
    """Do the parts, write what came of them, and return whether all is well."""
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * minutes
    known = json.loads(out.read_text()) if out.exists() else {"parts": {}}
    fine = True
    with tempfile.TemporaryDirectory(prefix="gescl-torture-") as scratch:
        subjects.SCRATCH = Path(scratch)
        subjects.SCRATCH.chmod(0o755)  # for a part of it that is done as another user
        Run("gescl-distill").work(Path(scratch, "warm"))  # imports what is imported late, once for all processes
        for name, part in parts(scale, seed).items():
            if only and name not in only:
                continue
            before = known["parts"].get(name, {}) if more else {}
            tally = Tally(**{key: value for key, value in before.items() if key != "seconds"})
            started = time.monotonic() - before.get("seconds", 0)
            part(tally, until)
            seconds = round(time.monotonic() - started, 1)
            known["parts"][name] = {**asdict(tally), "seconds": seconds}
            known["versions"] = {"torch": torch.__version__, "python": platform.python_version()}
            write_json(out, known)
            print(f"{name}: {tally.survived} of {tally.tried} survived, {seconds:.0f} s {tally.skipped}", flush=True)
            for problem in [*tally.lost, *tally.wrong]:
                print(f"  {problem}", flush=True)
            fine &= tally.survived == tally.tried
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="do so many times the usual number of everything")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so many minutes")
    parser.add_argument("--only", action="append", default=[], help="do this part alone; repeatable")
    parser.add_argument("--more", action="store_true", help="add to what has been done before; give another --seed")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--out", type=Path, default=Path("results/torture.json"))
    given = parser.parse_args()
    raise SystemExit(not torture(given.out, given.scale, given.minutes, given.only, given.seed, given.more))


if __name__ == "__main__":
    main()
