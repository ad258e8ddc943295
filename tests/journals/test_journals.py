"""A journal of every format since 15 is opened, and what was left in it goes on exactly once."""

import math
import sqlite3
from collections import Counter as Counts
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from otel_rl.bridge.archive.file_writer import FileHead, tables_of
from otel_rl.bridge.counters import Counter
from otel_rl.bridge.journal.archive_store import ArchiveStore
from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.journal.formats.schema import FORMAT
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey, ExperimentStatus, Row
from tests.journals.fields import fields_of_state
from tests.journals.small_run import ENDED, HALF, LIVE, RANKS, STEPS, Life, S, end, start_ns, step

JOURNALS = sorted(Path(__file__).parent.glob("format_*.sql"))


def life_of(journal: Path, directory: Path) -> Life:
    connection = sqlite3.connect(directory / JOURNAL_FILE)
    connection.executescript(journal.read_text())
    connection.close()
    return Life(directory)


def rows(life: Life, key: ExperimentKey) -> Sequence[Row]:
    return life.runs.rows(key, start=0, limit=10_000)


def test_there_is_a_journal_of_the_format_of_today() -> None:
    assert f"format_{FORMAT}.sql" in {path.name for path in JOURNALS}


def test_the_format_of_today_has_the_tables_and_fields_that_were_kept(tmp_path: Path) -> None:
    """A change of either raises FORMAT and needs ``python -m tests.journals``."""
    kept = Path(__file__).with_name(f"format_{FORMAT}.sql")
    SqliteJournal(tmp_path).close()
    with (
        closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as today,
        closing(sqlite3.connect(":memory:")) as then,
    ):
        then.executescript(kept.read_text())
        assert tables(then) == tables(today)
    assert kept.with_suffix(".txt").read_text() == fields_of_state()


def tables(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY sql")
    return [sql for (sql,) in found]


@pytest.mark.parametrize("journal", JOURNALS, ids=lambda path: path.stem)
@pytest.mark.parametrize("repeats", [0, 2], ids=["once", "and repeated"])
def test_a_run_goes_on_from_a_journal_that_was_kept(
    journal: Path, tmp_path: Path, repeats: int
) -> None:
    life = life_of(journal, tmp_path)
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
    (table,) = tables_of(FileHead("", "", ""), [body for body in bodies if body is not None])
    found: dict[str, dict[float, int]] = {}
    for metric, value in zip(table["metric"].to_pylist(), table["value"].to_pylist(), strict=True):
        if metric != "depth":
            times = found.setdefault(metric, {})
            times[value] = times.get(value, 0) + 1
    return found


@pytest.mark.parametrize("journal", JOURNALS, ids=lambda path: path.stem)
def test_something_of_every_kind_is_open_in_a_journal_that_was_kept(
    journal: Path, tmp_path: Path
) -> None:
    life = life_of(journal, tmp_path)
    saved = life.runs.saved(LIVE)
    assert saved.state is not None
    kept = wire.decode(saved.state, wire.Run).aligner
    steps = kept.steps["trainer"].open
    windows = list(kept.windows.open.values())
    assert HALF in steps
    assert any(one.cells for one in steps.values())
    assert any(one.single for one in steps.values())
    assert any(one.counts is not None and one.counts.grown for one in steps.values())
    assert kept.table.with_shares
    assert all(
        any(getattr(window, name) for window in windows)
        for name in ("levels", "counted", "distributions", "single")
    )
    assert kept.tables.open
    assert kept.spans.waiting
    assert kept.spans.explained
    assert kept.table.counters
    assert kept.table.histograms
    assert kept.table.workers
    assert kept.axis.steps.times_ns
    assert kept.liveness.roles["trainer"].standing
    assert kept.history.kept
    assert (bool(saved.seen), bool(saved.spans)) == (True, True)
    assert life.spool.pending() == 1
    life.journal.close()


@pytest.mark.parametrize("journal", JOURNALS, ids=lambda path: path.stem)
def test_a_journal_that_was_kept_has_the_format_of_today_once_it_is_opened(
    journal: Path, tmp_path: Path
) -> None:
    life_of(journal, tmp_path).journal.close()
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)


def test_a_journal_of_a_later_version_is_refused(tmp_path: Path) -> None:
    SqliteJournal(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / JOURNAL_FILE)) as connection:
        connection.execute(f"PRAGMA user_version={FORMAT + 1}")
    with pytest.raises(ConfigError, match=f"has format {FORMAT + 1}"):
        SqliteJournal(tmp_path)


def test_a_journal_of_pickles_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    SqliteJournal(tmp_path).close()
    connection = sqlite3.connect(tmp_path / JOURNAL_FILE)
    connection.execute("PRAGMA user_version=8")
    connection.close()
    with pytest.raises(ConfigError, match="has format 8") as refused:
        SqliteJournal(tmp_path)
    assert "let that version finish its runs" in str(refused.value)
    connection = sqlite3.connect(tmp_path / JOURNAL_FILE)
    assert connection.execute("PRAGMA user_version").fetchone() == (8,)
    connection.close()
