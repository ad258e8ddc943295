"""Each stage of a bridge gets what the settings say."""

from pathlib import Path
from unittest.mock import patch

import pytest

from otel_rl.bridge import stages
from otel_rl.bridge.config import BridgeSettings, load_settings
from otel_rl.bridge.counters import Counters
from otel_rl.bridge.receive.tokens import TokenShares
from otel_rl.bridge.stores import Stores
from otel_rl.errors import ConfigError, MissingExtra


def settings(directory: Path, **more: object) -> BridgeSettings:
    return load_settings(None, {"data": directory, "tracker": {"name": "jsonl"}, **more})


def test_bridges_that_share_a_journal_share_the_trackers_locks(tmp_path: Path) -> None:
    shared = {"url": "postgresql://localhost/x"}
    alone, several = settings(tmp_path), settings(tmp_path, journal=shared)
    assert stages.delivery_settings(alone, "jsonl").scratch == tmp_path
    assert stages.delivery_settings(several, "jsonl").scratch is None
    elsewhere = {"name": "jsonl", "directory": tmp_path / "runs"}
    given = settings(tmp_path, journal=shared, tracker=elsewhere)
    assert stages.delivery_settings(given, "jsonl").scratch == tmp_path / "runs"


@pytest.mark.parametrize("enabled", [None, True, False])
def test_an_archive_without_its_library_fails_only_where_it_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: bool | None
) -> None:
    monkeypatch.delenv("OTEL_RL_BRIDGE__ARCHIVE__ENABLED", raising=False)
    given = settings(tmp_path, archive={"enabled": enabled})
    stores = Stores(
        given,
        TokenShares(given.team),
        tenant=lambda _: "",
        gained=lambda *_: None,
        lost=lambda _: None,
    )
    try:
        with patch("importlib.util.find_spec", return_value=None):
            if enabled:
                with pytest.raises(MissingExtra, match="archive"):
                    stages.archiver(given, stores, Counters(), lambda: 0)
            else:
                assert stages.archiver(given, stores, Counters(), lambda: 0) is None
    finally:
        stores.close()


def test_several_trackers_have_options_of_their_own(tmp_path: Path) -> None:
    options = {"mode": "offline", "trackio": {"project": "p"}, "mlflow.experiment": "e"}
    given = settings(tmp_path, tracker={"name": "wandb, trackio,mlflow", "options": options})
    attributes = {
        name: stages.delivery_settings(given, name).attributes for name in given.tracker.trackers
    }
    assert attributes == {
        "wandb": {"mode": "offline"},
        "trackio": {"project": "p"},
        "mlflow": {"experiment": "e"},
    }


def test_a_list_names_several_trackers_each_once(tmp_path: Path) -> None:
    given = settings(tmp_path, tracker={"name": ["jsonl", "trackio", "jsonl"]})
    assert given.tracker.trackers == ["jsonl", "trackio"]


def test_an_option_of_no_tracker_of_the_bridge_is_an_error(tmp_path: Path) -> None:
    given = settings(tmp_path, tracker={"name": "jsonl", "options": {"trackio.project": "p"}})
    with pytest.raises(ConfigError, match="trackio is not a tracker of this bridge"):
        given.tracker.check_options()


@pytest.mark.parametrize("name", ["", " , "])
def test_a_bridge_has_at_least_one_tracker(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="must name a tracker"):
        settings(tmp_path, tracker={"name": name})
