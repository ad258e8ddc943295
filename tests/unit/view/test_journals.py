"""Names of runs that are not there: those that may have been meant come first."""

from pathlib import Path

import pytest

from otel_rl.bridge.journal.places import JournalPlace
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey
from otel_rl.view.journals import Journals
from tests.view_runs import LookedAt, write_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many")
    for number in range(30):
        write_run(path / str(number), LookedAt(ExperimentKey(f"run-{number:02}"), steps=2))
    write_run(path / "last", LookedAt(ExperimentKey("zephyr", "seed-7"), steps=2))
    return path


@pytest.mark.parametrize("wanted", ["zephir/seed-7", "ZEPHYR/seed", "zephyr/sede-7"])
def test_of_many_runs_a_similar_name_is_told_first(data: Path, wanted: str) -> None:
    with pytest.raises(ConfigError, match=r"There are: zephyr/seed-7, .* and 11 more"):
        Journals(JournalPlace(data, None, 1 << 30)).named(wanted)
