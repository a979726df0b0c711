"""The command as a person types it: in its own process, by exit code and words."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gescl import load_recipe
from gescl.store import read_tensors

QUICK = ["--set", "training.epochs=1", "--set", "stream.tasks=2", "--threads", "1"]


def gescl(*arguments: str | Path, cwd: Path, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("gescl")

    def small_files() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [command, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        preexec_fn=small_files,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    done = gescl("--version", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(f"gescl {version('gescl')} (torch 2.")


def test_run_writes_a_result_and_says_where(tmp_path: Path) -> None:
    done = gescl("run", "digits", "--method", "finetune", "--seed", "1", "--seed", "2", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for seed in (1, 2):
        folder = Path("runs/digits/finetune") / f"seed-{seed}"
        assert (tmp_path / folder / "result.json").is_file()
        assert f"written to {folder}" in done.stdout


def test_a_run_with_another_setting_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    quick = ["--set", "training.epochs=1", "--set", "stream.tasks=1", "--method", "ewc", "--threads", "1"]
    assert gescl("run", "digits", *quick, cwd=tmp_path).returncode == 0
    again = gescl("run", "digits", *quick, cwd=tmp_path)
    assert again.returncode == 0 and "digits · ewc · seed 0: finished before, 20" in again.stdout
    other = gescl("run", "digits", *quick, "--set", "method.lam=3", cwd=tmp_path)
    folder = tmp_path / "runs" / "digits" / "ewc+lam=3.0"
    assert other.returncode == 0 and (folder / "seed-0" / "result.json").is_file()
    assert "runs/digits/ewc/seed-0 holds a run with other settings; this one is written to" in other.stdout
    assert load_recipe(folder / "seed-0" / "recipe.toml").method.model_dump()["lam"] == 3
    plain = gescl("run", "digits", *quick[:2], *quick[4:], cwd=tmp_path)
    assert plain.returncode == 0, "also where a setting is left out"
    assert (tmp_path / "runs" / "digits" / "ewc+stream.tasks=default" / "seed-0" / "result.json").is_file()


def test_a_method_named_by_a_setting_is_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\nnetwork = "small"\nmethod.name = "gescl"\nmethods.ewc.lam = 77\n'
        'stream = {name = "digits", tasks = 1}\ntraining.epochs = 1\n'
    )
    first = gescl("run", "mine.toml", "--set", "method.name=ewc", "--threads", "1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    (result,) = tmp_path.rglob("result.json")
    assert result == tmp_path / "runs/mine/ewc/seed-0/result.json"
    written = result.stat().st_mtime_ns
    again = gescl("run", "mine.toml", "--method", "ewc", "--threads", "1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert result.stat().st_mtime_ns == written, "a finished run is not run again"
    assert load_recipe(result.with_name("recipe.toml")).method.model_dump()["lam"] == 77


def test_a_sweep_without_a_grid_runs_every_method_as_the_recipe_has_it(tmp_path: Path) -> None:
    small = ("--set", "training.epochs=1", "--set", "stream.tasks=2")
    both = ("sweep", "digits", "--method", "finetune", "--method", "frozen", *small)
    done = gescl(*both, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for heading in ("method", "validation", "forgetting", "test"):
        assert heading in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("✓ ")]
    assert [row[1:3] for row in rows[:2]] == [["finetune", "1"], ["frozen", "1"]]
    assert (tmp_path / "sweeps/digits/frozen/seed-0/result.json").is_file()
    refused = gescl(*both, "--random", "3", cwd=tmp_path)
    assert refused.returncode != 0 and "--random draws settings from a grid" in refused.stderr


def test_streams_are_listed(tmp_path: Path) -> None:
    done = gescl("data", "list", cwd=tmp_path)
    assert done.returncode == 0
    assert "scripts" in done.stdout and "digits" in done.stdout


def test_a_broken_image_stops_a_run_by_name_or_is_left_out_and_listed(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 255, (2, 8, 16, 16, 3), dtype=np.uint8)
    for label, images in zip(("bolt", "nut"), colours, strict=True):
        folder = tmp_path / "photos" / "january" / "train" / label
        folder.mkdir(parents=True)
        for number, pixels in enumerate(images):
            Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "broken.jpg").write_text("not an image")
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\nnetwork = "small"\n[stream]\nname = "folder"\npath = "photos"\nimage_size = 16\n'
        "[training]\nepochs = 1\n"
    )
    stopped = gescl("run", "mine.toml", "--method", "finetune", "--threads", "1", cwd=tmp_path)
    assert stopped.returncode == 1 and "broken.jpg" in stopped.stderr and "Traceback" not in stopped.stderr
    again = ("--skip-broken", "--out", "again")
    done = gescl("run", "mine.toml", "--method", "finetune", "--threads", "1", *again, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "broken.jpg" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "nothing"], 2, "unknown recipe 'nothing'"),
        (["run", "digits", "--method", "gesl"], 2, "did you mean 'gescl'"),
        (["run", "digits", "--set", "training.epochs=-1"], 2, "training.epochs must be > 0, got -1"),
        (["run", "digits", "--set", "stream.name=digit"], 2, "unknown stream 'digit'"),
        (["run", "digits", "--set", "training.epoks=1"], 2, "did you mean 'epochs'"),
        (["run", "digits", "--set", "network=papr3"], 2, "unknown network 'papr3'; did you mean 'paper3'"),
        (["run", "digits", "--device", "abacus"], 2, "unknown device 'abacus'"),
        (["run", "digits", "--seed", "x"], 2, "Invalid value for '--seed'"),
        (["fly"], 2, "No such command"),
        (["reproduce", "svnh"], 2, "did you mean 'svhn'"),
        (["reproduce", "svhn", "--budget", "large"], 2, "unknown budget 'large'"),
        (["run", "digits", "--set", "training.epochs=1", "--out", "file/runs"], 1, "cannot write"),
    ],
)
def test_a_mistake_gets_one_message_and_an_exit_code(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "file").write_text("")
    done = gescl(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_an_error_that_loses_nothing(tmp_path: Path) -> None:
    first = gescl("run", "digits", "--method", "finetune", *QUICK, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    kept = (tmp_path / "runs/digits/finetune/seed-0/result.json").read_bytes()
    done = gescl("run", "digits", "--method", "finetune", "--seed", "5", *QUICK, cwd=tmp_path, limit=20_000)
    assert done.returncode == 1
    assert "cannot write" in done.stderr and "Traceback" not in done.stderr
    assert not list((tmp_path / "runs").rglob(".*")), "temporary files stay behind"
    assert (tmp_path / "runs/digits/finetune/seed-0/result.json").read_bytes() == kept
    resumed = gescl("run", "digits", "--method", "finetune", "--seed", "5", *QUICK, "--resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.parametrize(
    ("command", "number", "hint"),
    [("run", signal.SIGINT, " --resume"), ("run", signal.SIGTERM, " --resume"), ("sweep", signal.SIGTERM, "")],
)
def test_an_interrupted_command_keeps_a_checkpoint_and_says_how_to_continue(
    command: str, number: signal.Signals, hint: str, tmp_path: Path
) -> None:
    arguments = [command, "digits", "--method", "finetune", "--set", "training.epochs=100000", "--out", "here"]
    run = subprocess.Popen(
        [str(Path(sys.executable).with_name("gescl")), *arguments, "--set", "training.patience=100000"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background may ignore it
    )
    folder = tmp_path / "here/digits/finetune/seed-0"
    while run.poll() is None and epochs_in(folder) < 3:
        time.sleep(0.05)
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 128 + number
    written = f"gescl {' '.join(arguments)} --set training.patience=100000{hint}"
    assert errors.splitlines()[-1] == f"interrupted; continue with: {written}"
    assert "Traceback" not in errors
    _, header = read_tensors(folder / "model.gescl.checkpoint")
    assert epochs_in(folder) - len(header["epochs"]) <= 1, "only the epoch under way is repeated"


def epochs_in(folder: Path) -> int:
    log = folder / "events.jsonl"
    return log.read_text().count("\n") if log.is_file() else 0
