"""The process and the machine: threads, memory, devices. Nothing here is set by importing gescl."""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from .errors import UnavailableError

# glibc's names for mallopt
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
ONE_GIB = 1 << 30


def speed_up_process(threads: int | None = None) -> int:
    """Set up this process for fast training: as the `gescl` command does, once, at the start of a notebook or service.

        import gescl
        gescl.speed_up_process()

    It fixes the number of CPU threads, which is returned: the one given, else OMP_NUM_THREADS, else all cores up to
    four, since the networks are small. It lets the process keep the memory that it has freed, which every step needs
    again. And denormal numbers become 0: closed gates and decayed averages are full of them, and some CPUs are many
    times slower with each. All of it holds for the whole process, which is why importing gescl does none of it.
    """
    torch.set_flush_denormal(True)  # before there are threads: they inherit it
    threads = threads or threads_in_environment() or min(4, cores())
    torch.set_num_threads(threads)
    _keep_freed_memory()
    return threads


def threads_in_environment() -> int:
    """The number of threads in OMP_NUM_THREADS; 0 without one."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() else 0


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = "meta"  # torch's word for nowhere
    if kind == "meta":
        raise UnavailableError(f"unknown device {name!r}; known are auto, cpu, cuda, cuda:1, mps")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, ImportError) as error:
        raise UnavailableError(f"device {name!r} is not available here: {str(error).splitlines()[0]}") from error


def images_at_once(device: torch.device) -> int:
    """How many images to pass through a network at a time where nothing is learned. On a CPU, few: what the layers hand
    on then stays in its caches."""
    return 64 if device.type == "cpu" else 1024


def reads_at_once(tensor: torch.Tensor) -> bool:
    """Whether its numbers can be looked at without waiting: on a GPU they may still have to be computed."""
    return tensor.is_cpu


@functools.cache
def bfloat16_crashes() -> bool:
    """Whether the system ends a process that multiplies bfloat16 on the CPU: some virtual machines name instructions
    that they do not have. Only another process can find out."""
    code = "import torch; ones = torch.ones(64, 64, dtype=torch.bfloat16); ones @ ones"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode < 0


def cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hardware(device: torch.device) -> dict[str, str | int | None]:
    """The hardware that a result on that device was measured on."""
    return {
        "cpu": _cpu_name(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def die_with_parent() -> None:
    """End this worker as soon as the process that started it is gone, even if that was killed outright.

    A pool's workers would otherwise finish what they have, and then wait for ever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Stop:
    """A signal that asks the process to stop, and whether it has to wait."""

    waiting: int | None = None
    in_step = False

    def heard(self, number: int, frame: object) -> None:
        if self.in_step and self.waiting is None:
            self.waiting = number
        else:
            self.obey(number)

    def obey(self, number: int) -> None:
        self.waiting = None
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


_stop = _Stop()


@contextmanager
def stop_between_steps() -> Iterator[None]:
    """Inside the block, Ctrl-C and SIGTERM raise KeyboardInterrupt and SystemExit(143), in training only after the step
    (`whole_step`). The second one does not wait."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, _stop.heard)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def whole_step() -> Iterator[None]:
    """Inside the block, a signal that asks the process to stop waits for the end of the block."""
    _stop.in_step = True
    try:
        yield
    finally:
        _stop.in_step = False
        if _stop.waiting is not None:
            _stop.obey(_stop.waiting)


def _keep_freed_memory() -> None:
    """Every step allocates the same activations. glibc would give them back to the system and fault them in again."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another libc
        return
    mallopt(M_MMAP_THRESHOLD, ONE_GIB)
    mallopt(M_TRIM_THRESHOLD, 2 * ONE_GIB - 1)
