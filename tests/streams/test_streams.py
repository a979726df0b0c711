from __future__ import annotations

import pytest

from gescl.errors import UsageError
from gescl.streams import STREAMS, StreamOptions, load_stream


def test_every_stream_says_what_it_is_and_takes_no_unknown_option() -> None:
    assert tuple(STREAMS) == (
        "scripts", "digits", "mnist", "svhn", "cifar10-100", "cifar-100", "domains", "imagenet-50", "folder",
    )  # fmt: skip
    for spec in STREAMS.values():
        assert issubclass(spec.options, StreamOptions)
        assert spec.summary and "\n" not in spec.summary and len(spec.summary) < 90
        assert all(field.description for field in spec.options.model_fields.values())


@pytest.mark.parametrize("name", STREAMS)
def test_options_survive_being_written_to_a_file_and_read_again(name: str) -> None:
    model = STREAMS[name].options
    assert model.model_validate_json(model().model_dump_json()) == model()


def test_an_unknown_stream_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"unknown stream 'script'; did you mean 'scripts'.*known: scripts, digits"):
        load_stream("script")


@pytest.mark.parametrize("name", STREAMS)
def test_an_unknown_option_is_refused_with_the_nearest_name(name: str) -> None:
    with pytest.raises(
        UsageError, match=f"stream '{name}': unknown option 'val_fractoin'; did you mean 'val_fraction'"
    ):
        load_stream(name, val_fractoin=0.2)


def test_loading_a_stream_loads_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gescl.streams.task.Task.from_arrays", pytest.fail)
    assert len(load_stream("scripts")) == 12 and len(load_stream("digits")) == 5
