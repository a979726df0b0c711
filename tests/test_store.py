from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from gescl.store import locked

HOLDER = """
import sys
from pathlib import Path
from gescl.store import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_one_waits_until_the_first_has_left(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.lock"
    waits, entered = threading.Event(), threading.Event()

    def second() -> None:
        with locked(path, waits.set):
            entered.set()

    thread = threading.Thread(target=second)
    with locked(path):
        thread.start()
        assert waits.wait(30) and not entered.wait(0.2)
    assert entered.wait(30)
    thread.join()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        told: list[str] = []

        def waiting() -> None:
            told.append("waiting")
            holder.kill()

        with locked(path, waiting):
            assert told == ["waiting"]
