"""Settings of the whole process: made by the command line and its workers, never by importing gescl."""

from __future__ import annotations

import ctypes
import os

import torch

# glibc's names for mallopt
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
ONE_GIB = 1 << 30


def prepare_process(threads: int | None = None) -> int:
    """Fix the number of CPU threads, what is asked for or all cores up to four, and keep freed memory for reuse.

    The networks are small: beyond four threads they gain little, and a fixed rule keeps results comparable.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = threads or min(4, cores)
    torch.set_num_threads(threads)
    _keep_freed_memory()
    return threads


def _keep_freed_memory() -> None:
    """Every step allocates the same activations. glibc would give them back to the system and fault them in again."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another libc
        return
    mallopt(M_MMAP_THRESHOLD, ONE_GIB)
    mallopt(M_TRIM_THRESHOLD, 2 * ONE_GIB - 1)
