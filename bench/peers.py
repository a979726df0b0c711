"""Whole runs of the same methods by Avalanche and by us: training, importance, and tests of all tasks so far.

    python bench/peers.py [--repeats 5] [--out results/bench-peers.json]

The same images, network (`paper3`), optimiser, batch and epochs. Avalanche is installed into an environment of its own
under .cache/peers, on top of the packages of this one; if that fails, the result says so, and nothing else.
"""

from __future__ import annotations

import site
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import IO, Any

import torch

from gescl import Learner, Task, Training
from gescl.observers import Observer
from gescl.runtime import speed_up_process
from gescl.streams.task import Split
from subjects import CLASSES, made_split
from timing import arguments, ratio, write

PEER = "avalanche-lib==0.6.0"
METHODS = ("finetune", "ewc", "si", "mas")
TASKS, IMAGES, TESTED, EPOCHS, BATCH = 2, 640, 128, 5, 64

Tasks = list[dict[str, tuple[torch.Tensor, torch.Tensor]]]


def made_stream() -> Tasks:
    tasks = []
    for number in range(TASKS):
        train, test = made_split(IMAGES, seed=2 * number), made_split(TESTED, seed=2 * number + 1)
        tasks.append({"train": (train.images, train.labels), "test": (test.images, test.labels)})
    return tasks


def installed(folder: Path, peer: str) -> Path | str:
    """The Python of a peer's environment, or why there is none."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        (inside,) = folder.glob("lib/python*/site-packages")
        (inside / "beneath.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        peer,
        f"torch=={_torch()}",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return python if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]


def _torch() -> str:
    return torch.__version__.split("+")[0]


def ours(name: str, tasks: Tasks) -> None:
    learner = Learner("paper3", name, training=Training(epochs=EPOCHS, batch_size=BATCH), observer=Observer())
    for number, task in enumerate(tasks):
        train, test = Split(*task["train"]), Split(*task["test"])
        classes = tuple(map(str, range(CLASSES)))
        learner.learn(Task(str(number), classes, train, val=test[slice(1)], test=test))  # the peer does not validate


def serve_ours(stream: str) -> None:
    """Our side: a method's name per line in, the CPU seconds of a whole run of it per line out."""
    speed_up_process(threads=1)
    tasks: Tasks = torch.load(stream)
    for line in sys.stdin:
        started = time.process_time()
        ours(line.strip(), tasks)
        print(f"seconds {time.process_time() - started}", flush=True)


class Server:
    """A process that answers lines: each with one that begins with a word, after any number of others."""

    def __init__(self, *command: str | Path) -> None:
        self.log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process lives)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )

    def run(self, line: str, word: str) -> str:
        """Send a line, and return what follows the word in the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        for answer in self.process.stdout:
            if answer.startswith(word + " "):
                return answer.removeprefix(word).strip()
        self.log.seek(0)
        raise RuntimeError((self.log.read().strip().splitlines() or ["it ended without a word"])[-1])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(python: Path, stream: Path, repeats: int) -> list[dict[str, Any]]:
    here = Path(__file__)
    peer = Server(python, here.with_name("peer_avalanche.py"), stream, str(EPOCHS), str(BATCH))
    us = Server(sys.executable, here, "--serve", stream)
    try:
        results: list[dict[str, Any]] = []
        print("method     Avalanche's CPU seconds / ours")
        for name in METHODS:
            theirs, own = [], []
            for repeat in range(repeats + 1):
                pair = float(peer.run(name, "seconds")), float(us.run(name, "seconds"))
                if repeat:
                    theirs.append(pair[0])
                    own.append(pair[1])
            results.append({"method": name, "faster_than_avalanche": ratio(theirs, own)})
            print(f"{name:9}  {results[-1]['faster_than_avalanche']['median']:.2f}", flush=True)
        return results
    finally:
        peer.close()
        us.close()


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve_ours(sys.argv[2])
        return
    options = arguments(__doc__, "peers", repeats=5)
    content: dict[str, Any] = {"peer": PEER, "tasks": TASKS, "images": IMAGES, "epochs": EPOCHS, "batch": BATCH}
    python = installed(Path(".cache/peers/avalanche"), PEER)
    if isinstance(python, str):
        content["not_installed"] = python
        print(f"{PEER} could not be installed: {python}")
    else:
        with tempfile.TemporaryDirectory() as folder:
            stream = Path(folder) / "stream.pt"
            torch.save(made_stream(), stream)
            try:
                content["results"] = measure(python.absolute(), stream, options.repeats)
            except RuntimeError as error:
                content["not_running"] = str(error)
                print(f"{PEER} does not run here: {error}")
    write(options.out, options.repeats, content)


if __name__ == "__main__":
    main()
