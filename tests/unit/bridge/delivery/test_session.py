"""Batches of rows have a bound on their memory; options take what the program of a run names."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.manager import DeliverySettings
from otel_rl.bridge.delivery.session import Route, TrackerSession, filled
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.journal.state import decode_row, encode_row
from otel_rl.records import Description, ExperimentKey, Row
from otel_rl.run_id import run_id
from tests.unit.bridge.delivery.bench import Rows

KEY = ExperimentKey("e")
NAMED = Description(project="bandit", entity="team", mode="offline")


class Stored(Rows):
    """Rows as they come from a journal: each fifth is wide."""

    def __init__(self, keys: int) -> None:
        super().__init__()
        wide = Row(0, 0, 10**18, {f"metric_{n}": n / 7 for n in range(keys)})
        self._bodies = [encode_row(wide), *[encode_row(Row(0, 0, 10**18, {"metric_0": 1.0}))] * 4]

    def rows(self, key: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        found = super().rows(key, start=start, limit=limit)
        return [decode_row(row.number, self._bodies[row.number % 5]) for row in found]


class Batches:
    """Writer that notes the numbers of the rows that it is given together."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []

    def open(self, run: RunInfo) -> int:
        return 0

    def write(self, rows: Sequence[Row]) -> None:
        self.given.append([row.number for row in rows])

    def describe(self, description: Description) -> None:
        pass

    def flush(self, *, timeout_s: float) -> int | None:
        return None

    def location(self) -> str:
        return ""


def handed_over(keys: int, directory: Path) -> list[list[int]]:
    source, writer = Stored(keys), Batches()
    source.add(KEY, 1_500)
    session = TrackerSession(
        writer,  # type: ignore[arg-type]  # it is never left or killed
        RunInfo(KEY, run_id(KEY.experiment, KEY.trial), directory),
        Route(
            source,
            source,
            DeliverySettings(tracker="jsonl", directory=directory, attributes={}),
            lambda *_, **__: None,
        ),
    )
    session.open()
    while session.step():
        pass
    return writer.given


@pytest.mark.parametrize("keys", [20, 1_000])
def test_every_row_is_handed_over_once(keys: int, tmp_path: Path) -> None:
    given = handed_over(keys, tmp_path)
    assert [number for batch in given for number in batch] == list(range(1_500))


def test_narrow_rows_are_handed_over_together(tmp_path: Path) -> None:
    assert max(map(len, handed_over(20, tmp_path))) == 500


def test_wide_rows_are_handed_over_by_few(tmp_path: Path) -> None:
    first, *later = handed_over(1_000, tmp_path)
    assert 5 <= max(map(len, later)) <= 60
    assert len(first) <= 16  # nothing is known of them


def test_a_placeholder_is_what_the_program_names() -> None:
    options = (("entity", "{entity}"), ("mode", "{mode}"), ("project", "rl-{project}"))
    assert filled(options, NAMED) == (
        ("entity", "team"),
        ("mode", "offline"),
        ("project", "rl-bandit"),
    )


def test_an_option_without_a_placeholder_is_the_operators() -> None:
    options = (("entity", "us"), ("project", "ours"))
    assert filled(options, NAMED) == options


def test_only_the_option_of_its_name_takes_it() -> None:
    options = (("base_url", "{project}"), ("entity", "{project}"))
    assert filled(options, NAMED) == options


def test_a_run_of_another_process_is_where_that_has_it() -> None:
    options = (("attach", "run-7"), ("mode", "{mode}"), ("project", "{project}"))
    assert filled(options, NAMED) == options


def test_what_the_program_does_not_name_stays_open() -> None:
    options = (("mode", "{mode}"), ("project", "{project}"))
    assert filled(options, Description(mode="shared")) == options


def test_a_program_that_wants_to_be_online_is_where_there_is_a_key() -> None:
    assert filled((("mode", "{mode}"),), Description(mode="online")) == (("mode", "keyed"),)
