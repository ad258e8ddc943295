"""A journal is opened again, and what was left in it goes on exactly once."""

import math
import sqlite3
from collections import Counter as Counts
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from otel_rl.bridge.archive.file_writer import FileHead, table_of
from otel_rl.bridge.counters import Counter
from otel_rl.bridge.journal.archive_store import ArchiveStore
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.schema import FORMAT
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.bridge.journal.state import decode
from otel_rl.bridge.rows.stored_run import StoredRun
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey, ExperimentStatus, Row
from otel_rl.version import __version__
from tests.journals.fields import fields_of_state
from tests.journals.small_run import (
    ENDED,
    HALF,
    LIVE,
    RANKS,
    STEPS,
    Life,
    S,
    end,
    leave,
    start_ns,
    step,
)


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Directory of a journal that was left in the middle of a run."""
    leave(tmp_path)
    return tmp_path


def rows(life: Life, key: ExperimentKey) -> Sequence[Row]:
    return life.runs.rows(key, start=0, limit=10_000)


def test_the_state_has_the_fields_that_are_written_down() -> None:
    """A change of a stored class is a change of the format; ``python -m tests.journals`` notes it.

    A field that one adds to a class without a thought of the journal shows here.
    """
    assert Path(__file__).with_name(f"format_{FORMAT}.txt").read_text() == fields_of_state()


@pytest.mark.parametrize("repeats", [0, 2], ids=["once", "and repeated"])
def test_a_run_goes_on_from_a_journal_that_was_left(left: Path, repeats: int) -> None:
    life = Life(left)
    before = rows(life, LIVE)
    begun_ns = start_ns(LIVE)
    late = begun_ns + (HALF + 1) * S
    # Senders whose answer was lost send it again.
    for number in range(HALF - repeats, HALF):
        for rank in range(RANKS):
            life.take(*step(LIVE, rank, number), now_ns=late)
    life.take(*step(LIVE, 1, HALF), now_ns=late)
    for number in range(HALF + 1, STEPS):
        for rank in range(RANKS):
            life.take(*step(LIVE, rank, number), now_ns=begun_ns + (number + 1) * S)
    end_ns = begun_ns + (STEPS + 1) * S
    life.take(*(end(LIVE, rank, end_ns) for rank in range(RANKS)), now_ns=end_ns)
    life.processor.finish(end_ns + 60 * S)
    after = rows(life, LIVE)
    assert repr(after[: len(before)]) == repr(before)
    assert [row.number for row in after] == list(range(len(after)))
    for key in (LIVE, ENDED):
        check_whole(life, key)
    assert life.counters.value(Counter.STATES_LOST) == 0
    assert life.counters.value(Counter.EXCEPTIONS) == 0
    assert life.spool.pending() == 0
    life.journal.close()


def check_whole(life: Life, key: ExperimentKey) -> None:
    """Everything that was sent is in the rows once."""
    found = rows(life, key)
    assert {
        (row.step, row.values["trainer/loss"]) for row in found if "trainer/loss" in row.values
    } == {(number, number + 0.25) for number in range(STEPS)}
    for rank in range(RANKS):
        own = f"workers/trainer/{rank}/loss"
        assert Counts(row.values[own] for row in found if own in row.values) == {
            number + rank / 2: 1 for number in range(STEPS)
        }
    totals = [row.values["trainer/tokens"] for row in found if "trainer/tokens" in row.values]
    assert totals[-1] == RANKS * STEPS * 100
    measured = [row.values.get("trainer/latency/count", 0) for row in found]
    assert sum(measured) == RANKS * STEPS * 3
    key_of_growth = "trainer/updates/per_step"
    grown = {row.step: row.values for row in found if key_of_growth in row.values}
    assert {step: values[key_of_growth] for step, values in grown.items()} == dict.fromkeys(
        range(STEPS), 10 * RANKS
    )
    assert {values["trainer/updates/rate"] for values in grown.values()} == {10.0 * RANKS}
    assert {values["trainer/waits/count"] for values in grown.values()} == {2 * RANKS}
    depths = [row.values["trainer/depth"] for row in found if "trainer/depth" in row.values]
    assert sum(map(math.isnan, depths)) == 1
    assert archived(life, key) == {
        "loss": {number + rank / 2: 1 for rank in range(RANKS) for number in range(STEPS)},
        "tokens": {100.0 * (number + 1): RANKS for number in range(STEPS)},
        "latency": {2.5 * (number + 1): RANKS for number in range(STEPS)},
        # What each step counted, and the totals beside it.
        "updates": Counts({10.0: RANKS * STEPS})
        + Counts({10.0 * (number + 1): RANKS for number in range(STEPS)}),
        "waits": {3.0: 2 * RANKS * STEPS},
    }
    texts = [line[1] for row in found for table in row.tables.values() for line in table.rows]
    assert Counts(texts) == {
        f"{rank}-{number}": 1 for rank in range(RANKS) for number in range(STEPS)
    }
    explained = [row.step for row in found if "critical_path/trainer/train" in row.values]
    assert sorted(explained) == list(range(STEPS))
    description = life.runs.description(key)
    assert description.config == {"lr": 0.1, "layers": [1, 2], "name": None, "seed": 2**62}
    assert (list(description.tags), description.status) == (["small"], ExperimentStatus.COMPLETE)


def archived(life: Life, key: ExperimentKey) -> dict[str, dict[float, int]]:
    """How often each value of a metric waits for the archive."""
    store = ArchiveStore(life.journal)
    file = store.begin_file(key, 1 << 30)
    assert file is not None
    bodies = [part.body for part in store.parts(key, file)]
    table = table_of(FileHead("", "", ""), [body for body in bodies if body is not None])
    found: dict[str, dict[float, int]] = {}
    for metric, value in zip(table["metric"].to_pylist(), table["value"].to_pylist(), strict=True):
        if metric != "depth":
            times = found.setdefault(metric, {})
            times[value] = times.get(value, 0) + 1
    return found


def test_something_of_every_kind_is_open_in_a_journal_that_was_left(left: Path) -> None:
    life = Life(left)
    saved = life.runs.saved(LIVE)
    assert saved.state is not None
    kept = decode(saved.state, StoredRun).state
    steps = kept.steps["trainer"].open
    windows = list(kept.windows._open.values())
    assert HALF in steps
    assert any(one.cells for one in steps.values())
    assert any(one.single for one in steps.values())
    assert any(one.counts is not None and one.counts.grown for one in steps.values())
    assert kept.table.with_shares
    assert all(
        any(getattr(window, name) for window in windows)
        for name in ("levels", "counted", "distributions", "single")
    )
    assert kept.tables._open
    assert kept.spans._waiting
    assert kept.spans._explained
    assert kept.table.counters
    assert kept.table.histograms
    assert kept.table.workers
    assert kept.axis.steps.times_ns
    assert kept.liveness._roles["trainer"].standing
    assert kept.history.parts
    assert {Log.DEDUP, Log.SPANS} <= saved.logs.keys()
    assert life.spool.pending() == 1
    life.journal.close()


def changed(directory: Path, statement: str) -> bytes:
    """Change the journal of a directory, which nobody has open. Returns its bytes."""
    SqliteJournal(directory).close()
    with closing(sqlite3.connect(directory / JOURNAL_FILE)) as connection:
        connection.execute(statement)
        connection.commit()
    return (directory / JOURNAL_FILE).read_bytes()


def test_a_journal_of_a_later_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    before = changed(tmp_path, f"UPDATE meta SET format = {FORMAT + 1}, version = '9.0.0'")
    with pytest.raises(ConfigError, match=f"has format {FORMAT + 1}, written by") as refused:
        SqliteJournal(tmp_path)
    assert "Install otel_rl 9.0.0, or start with another directory" in str(refused.value)
    assert (tmp_path / JOURNAL_FILE).read_bytes() == before


def test_a_journal_names_the_version_that_wrote_it_last(tmp_path: Path) -> None:
    changed(tmp_path, "UPDATE meta SET version = '0.0.1'")
    SqliteJournal(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as connection:
        found = connection.execute("SELECT format, version FROM meta").fetchall()
    assert found == [(FORMAT, __version__)]
