"""Trackers of other packages, by their entry points."""

import importlib.util
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.trackers import backend
from otel_rl.errors import ConfigError, MissingExtra
from tests.trackers.example import install_example, register


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = install_example(tmp_path)
    monkeypatch.syspath_prepend(str(place))
    return place


def test_a_registered_tracker_is_found_by_its_name(site: Path) -> None:
    assert backend("sqlite").name == "sqlite"


def test_an_unknown_name_is_answered_with_the_registered_ones_too(site: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        backend("wanbd")
    known = "wandb, jsonl, mlflow, trackio, tensorboard, sqlite"
    assert caught.value.hint == f"Known trackers: {known}."


def test_a_registered_tracker_never_takes_the_place_of_one_of_ours(site: Path) -> None:
    register(site, "taker", {"jsonl": "my_package.tracker:KIND"})
    assert backend("jsonl").name == "jsonl"


@pytest.mark.parametrize(
    ("value", "words"),
    [("gone.module:KIND", "cannot be loaded"), ("my_package.tracker:TABLES", "is no TrackerKind")],
)
def test_one_that_cannot_be_used_says_why(site: Path, value: str, words: str) -> None:
    register(site, "broken", {"broken": value})
    with pytest.raises(ConfigError, match=words) as caught:
        backend("broken")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("wandb", "wandb"),
        ("mlflow", "mlflow-skinny"),
        ("trackio", "trackio"),
        ("tensorboard", "tensorboard"),
    ],
)
def test_a_missing_library_is_named_with_its_package(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=rf"pip install .*\b{package}[<>]"):
        backend(name).validate({})


def test_files_of_runs_are_refused_because_they_have_no_key() -> None:
    with pytest.raises(ConfigError, match="must be a server or a database") as caught:
        backend("mlflow").validate({"tracking_uri": "file:./mlruns"})
    assert "sqlite:///mlflow.db" in caught.value.hint


def test_a_secret_among_the_options_is_never_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        backend("trackio").validate({"write_token": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "TRACKIO_WRITE_TOKEN" in caught.value.hint
