"""What a download leaves in the data folder, and what it does not touch there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gescl
from gescl.errors import DataError
from gescl.streams.files.catalogue import DATA_SETS, DataFiles

from .archives import EXPECTED, FILES, LINK, NOISE, WHOLE, archive, contents, data_files, get, remote
from .server import Site


def test_an_archive_is_fetched_checked_and_unpacked_and_nothing_else_is_left(site: Site, tmp_path: Path) -> None:
    data = tmp_path / "not there yet"
    assert get(data_files(site), data)[-1] == f"set is in {data}"
    assert contents(data) == EXPECTED and site.asked == [("set.tar.gz", None)]
    get(data_files(site), data)
    assert len(site.asked) == 1  # all is there: the server is not asked


def test_plain_files_go_to_their_folder(site: Site, tmp_path: Path) -> None:
    site.files = {"train.mat": b"a" * 500, "test.mat": b"b" * 50}
    wanted = DataFiles("set", ("s/train.mat", "s/test.mat"), tuple(remote(site, *file) for file in site.files.items()))
    get(wanted, tmp_path)
    assert contents(tmp_path) == {"s/train.mat": b"a" * 500, "s/test.mat": b"b" * 50}
    (tmp_path / "s" / "test.mat").unlink()
    get(wanted, tmp_path)
    assert [name for name, _ in site.asked] == ["train.mat", "test.mat", "test.mat"]


def test_an_archive_put_there_by_hand_is_used_if_it_is_the_published_one(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(WHOLE)
    get(data_files(site), tmp_path)
    assert contents(tmp_path) == {**EXPECTED, "set.tar.gz": WHOLE} and site.asked == []


def test_another_archive_put_there_is_left_alone_and_not_used(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(b"something else")
    assert "its checksum differs); it is neither used nor changed" in get(data_files(site), tmp_path)[0]
    assert contents(tmp_path) == {**EXPECTED, "set.tar.gz": b"something else"}


def test_files_that_are_there_are_not_replaced(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "meta").write_bytes(b"my own")
    get(data_files(site), tmp_path)
    assert contents(tmp_path) == {**EXPECTED, "set/meta": b"my own"}


def test_only_the_files_of_the_set_are_unpacked(site: Site, tmp_path: Path) -> None:
    members = {"../evil": b"e", "/tmp/evil": b"e", "set/../../evil": b"e", "extra": b"e", "link/a": LINK}
    site.files["set.tar.gz"] = odd = archive(**members, meta=b"names", train=NOISE, test=b"more pixels")
    get(data_files(site, odd), tmp_path / "data")
    assert contents(tmp_path) == {f"data/{name}": content for name, content in EXPECTED.items()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive(meta=b"names", train=LINK, test=b"more"), "does not hold set/train"),
        (archive(meta=b"names"), "does not hold set/test, set/train"),
        (WHOLE[:-1000], "cannot be unpacked"),
        (b"not an archive", "cannot be unpacked"),
    ],
    ids=["a link", "too little", "cut off", "no archive"],  # an archive's bytes change with the clock
)
def test_an_archive_without_the_files_is_refused(content: bytes, message: str, site: Site, tmp_path: Path) -> None:
    site.files["set.tar.gz"] = content
    with pytest.raises(DataError, match=message):
        get(data_files(site, content), tmp_path)
    assert not (tmp_path / "set" / "train").exists()


def test_a_data_folder_that_cannot_be_written_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(DataError, match=r"cannot write to .*data: "):
        get(data_files(site), tmp_path / "data")


def test_imagenet_is_not_downloaded_and_the_folder_to_make_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=f"can only be downloaded with an account .* {tmp_path}/imagenet-50/train/CLASS"
    ):
        get(DATA_SETS["imagenet-50"], tmp_path)


PROCESS = """
import sys
from pathlib import Path
from types import ModuleType
for name in ("gescl", "gescl.streams", "gescl.streams.files"):  # without __init__: torch is slow to import
    sys.modules[name] = package = ModuleType(name)
    package.__path__ = [str(Path(sys.argv[1], *name.split(".")))]
from gescl.streams.files.catalogue import DataFiles
from gescl.streams.files.download import download
from gescl.streams.files.transfer import Remote
url, size, sha256, data, *files = sys.argv[2:]
print("ready", flush=True)
sys.stdin.readline()
download(DataFiles("set", tuple(files), (Remote(url, int(size), sha256),)), Path(data), print)
"""


def test_of_two_processes_one_fetches_and_the_other_waits(site: Site, tmp_path: Path) -> None:
    wanted = data_files(site).remotes[0]
    arguments = [Path(gescl.__file__).parents[1], wanted.url, wanted.bytes, wanted.sha256, tmp_path, *FILES]
    command = [sys.executable, "-c", PROCESS, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    site.faults = ["hold"]
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as two:  # type: ignore[call-overload]
        for process in (one, two):
            assert process.stdout.readline() == "ready\n"
        one.stdin.write("go\n")
        one.stdin.flush()
        assert site.holding.wait(60)
        two.stdin.write("go\n")
        two.stdin.flush()
        assert two.stdout.readline() == "another process is downloading it: waiting\n"
        site.release.set()
        assert [process.communicate()[0] for process in (one, two)] == [f"set is in {tmp_path}\n"] * 2
    assert site.sent == len(WHOLE) and contents(tmp_path) == EXPECTED
