"""What can go wrong between a server and the data folder."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest

from gescl.errors import DataError
from gescl.streams.files.transfer import Patience

from .archives import EXPECTED, WHOLE, contents, data_files, get
from .server import Site, serving

PART = "set.tar.gz.gescl-part"
HASTY = Patience(timeout=1, pause=0.001, tries=2)  # a second: a busy machine must not look like a stall


def test_a_broken_connection_is_resumed_where_it_ended(site: Site, tmp_path: Path) -> None:
    site.faults = ["cut 100000", "status 503"]
    told = get(data_files(site), tmp_path)
    assert [wanted for _, wanted in site.asked] == [None, "bytes=100000-", "bytes=100000-"]
    assert contents(tmp_path) == EXPECTED and site.sent == len(WHOLE)  # no byte twice
    assert f"the connection ended after 100,000 of {len(WHOLE):,} bytes; trying again" in told[0]
    assert "the server says 503" in told[1]


def test_a_connection_that_breaks_often_but_brings_much_is_not_given_up(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gescl.streams.files.transfer.ENOUGH", 1000)
    site.faults = ["cut 1000"] * 20
    get(data_files(site), tmp_path)
    assert contents(tmp_path) == EXPECTED and len(site.asked) == 21


def test_a_later_run_goes_on_where_an_earlier_one_gave_up(site: Site, tmp_path: Path) -> None:
    site.faults = ["cut 1000", "cut 1000", "cut 1000"]
    with pytest.raises(
        DataError, match=r"cannot get .*The 3,000 bytes received are kept; the next download continues there"
    ):
        get(data_files(site), tmp_path)
    assert contents(tmp_path) == {PART: WHOLE[:3000]}
    get(data_files(site), tmp_path)
    assert contents(tmp_path) == EXPECTED and site.sent == len(WHOLE)


def test_a_server_without_ranges_is_asked_for_all_of_it(site: Site, tmp_path: Path) -> None:
    site.ranges, site.faults = False, ["cut 100000"]
    get(data_files(site), tmp_path)
    assert contents(tmp_path) == EXPECTED and site.sent == 100_000 + len(WHOLE)


def test_a_server_that_does_not_say_the_size_is_believed_by_the_checksum(site: Site, tmp_path: Path) -> None:
    site.faults = ["unsized"]
    get(data_files(site), tmp_path)
    assert contents(tmp_path) == EXPECTED


def test_a_stalled_connection_is_given_up_and_resumed(site: Site, tmp_path: Path) -> None:
    site.faults = ["stall 100000"]
    assert "no answer for 1 s; trying again" in get(data_files(site), tmp_path, HASTY)[0]
    assert contents(tmp_path) == EXPECTED and site.asked[1] == ("set.tar.gz", "bytes=100000-")


def test_a_server_that_only_stalls_is_an_error_in_the_end(site: Site, tmp_path: Path) -> None:
    site.faults = ["stall 0"] * 2
    with pytest.raises(DataError, match=r"no answer for 1 s\.\n  By hand: download http://127"):
        get(data_files(site), tmp_path, HASTY)
    assert len(site.asked) == 2 and contents(tmp_path) == {}


def test_wrong_bytes_are_not_unpacked_and_nothing_of_the_users_is_deleted(site: Site, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "meta").write_bytes(b"my own")
    (tmp_path / "set.tar.gz").write_bytes(b"mine, too")
    wrong = bytearray(WHOLE)
    wrong[1000] ^= 1
    site.files["set.tar.gz"] = bytes(wrong)
    with pytest.raises(
        DataError, match=r"is not the published file: its SHA-256 is .* nothing else was deleted"
    ) as error:
        get(data_files(site), tmp_path)
    assert hashlib.sha256(wrong).hexdigest() in str(error.value) and "By hand" in str(error.value)
    assert contents(tmp_path) == {"set/meta": b"my own", "set.tar.gz": b"mine, too"}


def test_a_file_of_another_size_is_refused_before_it_is_fetched(site: Site, tmp_path: Path) -> None:
    site.files["set.tar.gz"] = b"<html>log in first</html>"
    with pytest.raises(DataError, match=f"is not the published file: 25 bytes, not {len(WHOLE):,}"):
        get(data_files(site), tmp_path)
    assert len(site.asked) == 1 and contents(tmp_path) == {}


def test_left_over_bytes_that_do_not_fit_are_fetched_again(site: Site, tmp_path: Path) -> None:
    for left in (b"x" * 1000, b"x" * len(WHOLE), b"x" * (len(WHOLE) + 1)):
        data = tmp_path / str(len(left))
        data.mkdir()
        (data / PART).write_bytes(left)
        get(data_files(site), data)
        assert contents(data) == EXPECTED


def test_a_missing_file_is_not_asked_for_again(site: Site, tmp_path: Path) -> None:
    site.files = {}
    with pytest.raises(
        DataError, match=r"the server says 404 Not Found\.\n  By hand: download .*/set\.tar\.gz, put it in"
    ):
        get(data_files(site), tmp_path)
    assert len(site.asked) == 1 and contents(tmp_path) == {}


def test_without_a_network_it_says_what_to_put_where(site: Site, tmp_path: Path) -> None:
    with serving(Site()) as gone:
        pass
    with pytest.raises(
        DataError, match=f"the connection failed .*\n  By hand: download .*set.tar.gz, put it in {tmp_path}"
    ):
        get(data_files(gone), tmp_path)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_a_terminal_only(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    get(data_files(site), tmp_path / "a")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr", screen := Screen())
    get(data_files(site), tmp_path / "b")
    assert "set.tar.gz" in screen.getvalue()
