"""What survives each kind of damage to the files of a journal.

Two runs, each with rows, a state, what was seen, and batches that wait. The table says what is done
to the files, and what is there afterwards; the second one does it to what the files say.
"""

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import DAMAGED_ROW, Commit, RunStore, SavedRun
from otel_rl.bridge.journal.schema import FORMAT
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.errors import JournalError, OtelRLError
from otel_rl.records import Batch, Row
from otel_rl.run_id import run_id
from tests.disk.model import RUNS, batch, key, row

ROWS = 12
BATCHES = 4
SEEN = (b"first seen" * 20, b"then seen" * 20)

WAL = f"{JOURNAL_FILE}-wal"
SHM = f"{JOURNAL_FILE}-shm"
FRAME_BYTES = 4096 + 24  # a page in the write-ahead log
RUN_A = run_id(key("a").experiment, key("a").trial)


@dataclass
class Content:
    """What is in a journal, of one run.

    Attributes:
        batches: Those that wait, without the damaged ones.
        damaged: How many of the batches are.
        rows: All that are kept.
        saved: What it goes on from.
    """

    batches: list[Batch] = field(default_factory=list)
    damaged: int = 0
    rows: list[Row] = field(default_factory=list)
    saved: SavedRun = field(default_factory=lambda: SavedRun(None, 0))


def fill(journal: SqliteJournal) -> None:
    spool, run_store = Spool(journal), RunStore(journal)
    for run in RUNS:
        for number, seen in enumerate(SEEN):
            first = number * ROWS // len(SEEN)
            rows = [row(n) for n in range(first, first + ROWS // len(SEEN))]
            state = f"state {number} of {run}".encode()
            commit = Commit(
                key(run), rows, rows[-1].number + 1, state, added={Log.DEDUP: (9, seen)}
            )
            run_store.commit([commit])
        for n in range(BATCHES):
            spool.append([batch(run, f"{run}{n}:1000")])


def content(journal: SqliteJournal, run: str) -> Content:
    spooled = Spool(journal).read(key(run), max_bytes=1 << 30)
    run_store = RunStore(journal)
    return Content(
        [one.batch for one in spooled if not one.is_damaged],
        sum(one.is_damaged for one in spooled),
        list(run_store.rows(key(run), start=0, limit=1 << 30)),
        run_store.saved(key(run)),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a journal whose bridge was killed: everything is in the log."""
    directory, copy = tmp_path_factory.mktemp("journal"), tmp_path_factory.mktemp("killed")
    journal = SqliteJournal(directory)
    try:
        fill(journal)
        for path in directory.iterdir():
            shutil.copy(path, copy)
    finally:
        journal.close()
    return copy


@pytest.fixture(scope="module")
def good(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Content]:
    with opened(whole, tmp_path_factory.mktemp("good")) as journal:
        return {run: content(journal, run) for run in RUNS}


@contextmanager
def opened(files: Path, directory: Path) -> Iterator[SqliteJournal]:
    """A journal on a copy of the files."""
    if files != directory:
        shutil.copytree(files, directory, dirs_exist_ok=True)
    journal = SqliteJournal(directory)
    try:
        yield journal
    finally:
        journal.close()


# What is done to the files.


def cut_the_last_frame(files: Path) -> None:
    with (files / WAL).open("r+b") as log:
        log.truncate((files / WAL).stat().st_size - FRAME_BYTES // 2)


def append_garbage(files: Path) -> None:
    with (files / WAL).open("ab") as log:
        log.write(random.Random(1).randbytes(3 * FRAME_BYTES))


def flip_a_bit_of_the_last_frame(files: Path) -> None:
    content = bytearray((files / WAL).read_bytes())
    content[-100] ^= 4
    (files / WAL).write_bytes(content)


def remove_shared_memory(files: Path) -> None:
    (files / SHM).unlink()


def fill_shared_memory_with_garbage(files: Path) -> None:
    (files / SHM).write_bytes(random.Random(2).randbytes(32768))


def remove_the_log(files: Path) -> None:
    (files / WAL).unlink()


def empty_everything(files: Path) -> None:
    for path in files.iterdir():
        path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "lost_batches"),
    [
        (append_garbage, 0),
        (remove_shared_memory, 0),
        (fill_shared_memory_with_garbage, 0),
        (cut_the_last_frame, 1),
        (flip_a_bit_of_the_last_frame, 1),
    ],
)
def test_a_damaged_log_is_cut_where_the_damage_begins(
    damage: Callable[[Path], None],
    lost_batches: int,
    whole: Path,
    good: dict[str, Content],
    tmp_path: Path,
) -> None:
    files = shutil.copytree(whole, tmp_path / "files")
    damage(files)
    with opened(files, tmp_path / "opened") as journal:
        assert content(journal, "a") == good["a"]
        left = content(journal, "b")
        # The last transaction was the last batch of the last run.
        assert left.batches == good["b"].batches[: BATCHES - lost_batches]
        assert (left.rows, left.saved) == (good["b"].rows, good["b"].saved)


@pytest.mark.parametrize("damage", [remove_the_log, empty_everything])
def test_a_journal_without_its_content_is_a_new_one(
    damage: Callable[[Path], None], whole: Path, tmp_path: Path
) -> None:
    with opened(whole, tmp_path / "before") as journal:
        identity = journal.identity
    files = shutil.copytree(whole, tmp_path / "files")
    damage(files)
    with opened(files, tmp_path / "opened") as journal:
        assert [content(journal, run) for run in RUNS] == [Content()] * len(RUNS)
        # By which a tracker knows that the rows to come do not follow those that it has.
        assert journal.identity != identity
        fill(journal)


def garbage(files: Path) -> None:
    (files / JOURNAL_FILE).write_bytes(random.Random(3).randbytes(40960))


def garbled_header(files: Path) -> None:
    content = bytearray((files / JOURNAL_FILE).read_bytes())
    content[:16] = b"no database here"
    (files / JOURNAL_FILE).write_bytes(content)


@pytest.mark.parametrize("damage", [garbage, garbled_header])
def test_what_is_no_database_is_left_alone(
    damage: Callable[[Path], None], whole: Path, tmp_path: Path
) -> None:
    files = shutil.copytree(whole, tmp_path / "files")
    with opened(files, tmp_path / "closed"):
        pass  # everything is in the database now
    files = tmp_path / "closed"
    damage(files)
    before = (files / JOURNAL_FILE).read_bytes()
    with pytest.raises(JournalError, match="Move the file away"):
        SqliteJournal(files)
    assert (files / JOURNAL_FILE).read_bytes() == before


# What is done to what the files say.


@dataclass(frozen=True)
class Flip:
    """A change of one stored thing of run a, and how the run differs then."""

    sql: str
    differs: Callable[[Content, Content], bool]


def _placeholder(found: Content, number: int) -> bool:
    others = [one for one in found.rows if one.number != number]
    return found.rows[number].values == {DAMAGED_ROW: 1} and others == [
        row(n) for n in range(ROWS) if n != number
    ]


FLIPS = {
    "batch payload": Flip(
        "UPDATE batches SET payload = 'x' || SUBSTR(payload, 2) WHERE position = 2",
        lambda found, good: (
            found.damaged == 1 and found.batches == [good.batches[0], *good.batches[2:]]
        ),
    ),
    "batch signal": Flip(
        "UPDATE batches SET signal = 'metribs' WHERE position = 2",
        lambda found, good: (
            found.damaged == 1 and found.batches == [good.batches[0], *good.batches[2:]]
        ),
    ),
    "batch time": Flip(
        "UPDATE batches SET received_ns = received_ns + 2 WHERE position = 2",
        lambda found, good: (
            found.damaged == 1 and found.batches == [good.batches[0], *good.batches[2:]]
        ),
    ),
    "row body": Flip(
        f"UPDATE rows SET body = '[' || SUBSTR(body, 2) || ' ' WHERE run_id = '{RUN_A}'"
        " AND number = 3",
        lambda found, good: _placeholder(found, 3),
    ),
    "row number": Flip(
        f"DELETE FROM rows WHERE run_id = '{RUN_A}' AND number = 3",
        lambda found, good: _placeholder(found, 3),
    ),
    "state": Flip(
        f"UPDATE states SET body = SUBSTR(body, 1, 4) WHERE run_id = '{RUN_A}'",
        lambda found, good: found.saved == SavedRun(None, ROWS, good.saved.logs),
    ),
    "dedup": Flip(
        f"UPDATE log SET body = 'x' || SUBSTR(body, 2) WHERE run_id = '{RUN_A}'"
        " AND number = (SELECT MIN(number) FROM log WHERE kind = 'dedup')",
        lambda found, good: found.saved == SavedRun(good.saved.state, ROWS, {Log.DEDUP: [SEEN[1]]}),
    ),
}


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
def test_what_is_damaged_is_told_and_harms_nothing_else(
    flip: Flip, whole: Path, good: dict[str, Content], tmp_path: Path
) -> None:
    with opened(whole, tmp_path / "opened") as journal:
        journal.write(lambda connection: connection.execute(flip.sql))
        found = content(journal, "a")
        assert content(journal, "b") == good["b"]
    assert flip.differs(found, good["a"]), found


def test_what_a_flipped_bit_changes_is_told_by_sqlite_or_by_a_checksum(
    whole: Path, good: dict[str, Content], tmp_path: Path
) -> None:
    with opened(whole, tmp_path / "closed"):
        pass  # everything is in the database now
    database = (tmp_path / "closed" / JOURNAL_FILE).read_bytes()
    chance = random.Random(4)
    outcomes = {_after_flip(database, chance, good, tmp_path / "flipped") for _ in range(150)}
    # Most bits are in free space; of the others, each outcome was met.
    assert outcomes == {"nothing", "told by sqlite", "told by a checksum"}


def _after_flip(
    database: bytes, chance: random.Random, good: dict[str, Content], directory: Path
) -> str:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    flipped = bytearray(database)
    flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
    (directory / JOURNAL_FILE).write_bytes(flipped)
    if not _is_sound(directory / JOURNAL_FILE):
        return "told by sqlite"
    try:
        with opened(directory, directory) as journal:
            found = {run: content(journal, run) for run in RUNS}
    except (OtelRLError, sqlite3.OperationalError):
        return "told by sqlite"  # the version, or a name in the schema
    for run in RUNS:
        _check_told(found[run], good[run])
    return "nothing" if found == good else "told by a checksum"


def _is_sound(database: Path) -> bool:
    """Whether SQLite finds its own structure whole: tables, indexes, the schema."""
    connection = sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True)
    try:
        formats = connection.execute("SELECT format FROM meta").fetchall()
        found = connection.execute("PRAGMA integrity_check").fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False
    finally:
        connection.close()
    return found == [("ok",)] and formats == [(FORMAT,)]


def _check_told(found: Content, good: Content) -> None:
    """Everything is as it was, or is said not to be."""
    assert all(one in good.batches for one in found.batches)
    assert len(found.batches) + found.damaged == BATCHES
    assert [one.number for one in found.rows] == list(range(ROWS))
    assert all(one in good.rows or DAMAGED_ROW in one.values for one in found.rows)
    assert found.saved.state in {good.saved.state, None}
    assert all(seen in SEEN for seen in found.saved.log(Log.DEDUP))
