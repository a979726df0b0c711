"""Where data sets are looked for, what is said when they are not there, and the commands about them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gescl.cli.app import app
from gescl.errors import DataError, UsageError
from gescl.streams import STREAMS, load_stream
from gescl.streams.files.catalogue import DATA_SETS, STREAM_SETS, sets_of

from ..tiny import write_cifar_10, write_cifar_100
from .archives import EXPECTED, contents, data_files
from .server import Site


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GESCL_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("stream", STREAM_SETS)
def test_a_missing_data_set_is_named_with_the_ways_to_get_it(stream: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as missing:
        load_stream(stream, data=tmp_path / "mine")
    message = str(missing.value)
    assert f"not found in {tmp_path / 'mine'}." in message and "data=DIR or GESCL_DATA=DIR" in message
    if stream != "imagenet-50":
        assert f"gescl data download {stream} --data {tmp_path / 'mine'}" in message
    for each in sets_of(stream):
        assert each.files[0].split("/")[0] in message and all(remote.url in message for remote in each.remotes)


def test_of_a_set_that_is_there_in_part_the_missing_files_are_named(tmp_path: Path) -> None:
    write_cifar_100(tmp_path)
    (tmp_path / "cifar-100-python" / "test").unlink()
    with pytest.raises(DataError, match="stream 'cifar-100': cifar-100-python/test not found"):
        load_stream("cifar-100", data=tmp_path)
    with pytest.raises(DataError, match=r"cifar-10-batches-py \(all 7 files\), cifar-100-python/test not found"):
        load_stream("cifar10-100", data=tmp_path)


def test_the_folder_is_the_one_given_else_the_environments_else_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar_100(tmp_path / "data")
    assert len(load_stream("cifar-100")) == 10
    monkeypatch.setenv("GESCL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere \(named by GESCL_DATA\)"):
        load_stream("cifar-100")
    assert len(load_stream("cifar-100", data=tmp_path / "data")) == 10


def test_every_file_is_listed_once_and_every_remote_has_a_checksum() -> None:
    assert STREAM_SETS.keys() <= STREAMS.keys()
    for each in DATA_SETS.values():
        assert len({*each.files}) == len(each.files)
        for remote in each.remotes:
            assert len(remote.sha256) == 64 and int(remote.sha256, 16) and remote.bytes > 10**3


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False, env={"COLUMNS": "150"})
    assert result.exit_code == 0
    return result.stdout


def test_the_list_says_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    write_cifar_10(tmp_path / "mine")
    lines = {line.split()[0]: line for line in invoke("list", "--data", "mine").splitlines() if line}
    assert "missing: cifar-100" in lines["cifar10-100"] and "missing: svhn" in lines["svhn"]
    assert lines["digits"].rstrip().endswith("built in") and lines["folder"].rstrip().endswith("yours")
    assert str(tmp_path / "mine") in lines["Data"]
    write_cifar_100(tmp_path / "mine")
    assert invoke("list", "--data", "mine").count(" there") == 2


def test_a_stream_is_downloaded_by_its_name(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATA_SETS, "svhn", data_files(site))
    assert "set is in " in invoke("download", "svhn")
    assert contents(tmp_path / "data") == EXPECTED
    assert "needs no download" in invoke("download", "digits")
    with pytest.raises(UsageError, match="unknown data set 'shvn'; did you mean 'svhn'"):
        invoke("download", "shvn")
