"""What `make dist` builds: the wheel has all that gescl needs at work, the sdist all that is in the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel_holds_the_package_its_recipes_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    about = f"gescl-{PROJECT['version']}.dist-info"
    package = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "gescl").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    recipes = {f"gescl/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "recipes").rglob("*.toml")}
    assert {name for name in names if not name.startswith(about)} == package | recipes
    assert {"gescl/py.typed", "gescl/report/template/page.html", "gescl/recipes/scripts.toml"} <= names

    metadata = message_from_bytes(zipfile.ZipFile(wheel).read(f"{about}/METADATA"))
    assert metadata["Version"] == PROJECT["version"] and metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert zipfile.ZipFile(wheel).read(f"{about}/entry_points.txt").decode().split() == [
        *("[console_scripts]", "gescl", "=", "gescl.cli:main")
    ]
    assert f"{about}/licenses/LICENSE" in names


def test_the_wheel_works_where_there_is_no_checkout(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)  # noqa: S202 - built a moment ago
    code = "import gescl; from gescl import load_recipe; print(gescl.__file__, load_recipe('scripts').network)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{tmp_path / 'gescl' / '__init__.py'} small\n", done.stderr


def test_the_sdist_is_the_repository(built: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: what is in the repository is not known")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - {"PKG-INFO"} == {name for name in listed if (ROOT / name).exists()}


def test_the_version_stands_in_one_place() -> None:
    version = re.escape(PROJECT["version"])
    written = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in written
        if re.search(rf"(?<![\d.]){version}(?![\d.])", path.read_text(encoding="utf-8"))
    }
    generated = {"docs/results.md"}  # says which version made a run
    assert found - generated == {"CHANGELOG.md"}
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+?),? ", changelog, re.MULTILINE)[0] == PROJECT["version"], "its section comes first"
