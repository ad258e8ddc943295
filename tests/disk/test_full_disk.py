"""A disk without room: what is not taken is refused, and nothing that was taken suffers."""

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import backend
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.errors import JournalError, JournalFull
from otel_rl.records import Batch, Signal
from tests.disk.child import drain_of
from tests.disk.model import key
from tests.simulation import otlp

pytestmark = pytest.mark.process


KEY = key("a")
SIZE = 2 << 20
NOW_NS = 1_700_000_000_000_000_000

MakeRoom = Callable[[], None]


@contextlib.contextmanager
def short_files(directory: Path) -> Iterator[tuple[Path, MakeRoom]]:
    """No file may grow beyond a bound, as with a quota."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)

    def make_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))

    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, most))
    try:
        yield directory, make_room
    finally:
        make_room()


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[tuple[Path, MakeRoom]]:
    """A file system of its own, which somebody else has filled in part."""
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={2 * SIZE}", "tmpfs", directory],
        check=False,
        capture_output=True,
    )
    if done.returncode:
        pytest.skip("a small disk cannot be mounted here")
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(SIZE))
    try:
        yield directory / "data", ballast.unlink
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.fixture(params=[short_files, small_disk], ids=lambda disk: disk.__name__)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, MakeRoom]]:
    """A directory, and what makes room there."""
    with request.param(tmp_path) as found:
        yield found


def request(values: range) -> Batch:
    """Measurements of these values, and some ballast."""
    resource: dict[str, str | int] = {
        "rl.experiment.name": "a",
        "rl.worker.index": 0,
        "service.instance.id": "one",
        "ballast": "." * 4096,
    }
    marks = [(NOW_NS + value, value, None) for value in values]
    metric = otlp.measurements("value", NOW_NS + values.start - 1, NOW_NS + values.stop - 1, marks)
    return Batch(KEY, Signal.METRICS, otlp.piece(resource, metric), NOW_NS)


def fill(spool: Spool) -> int:
    """Append requests of one value each until one is refused; how many were taken."""
    value = 0
    with contextlib.suppress(JournalFull):
        while value * 4096 < 4 * SIZE:
            spool.append([request(range(value, value + 1))])
            value += 1
    return value


def test_what_finds_no_room_is_refused_and_what_was_taken_stays(
    disk: tuple[Path, MakeRoom],
) -> None:
    directory, make_room = disk
    journal = SqliteJournal(directory)
    try:
        spool = Spool(journal)
        taken = fill(spool)
        assert taken * 4096 < 2 * SIZE
        with pytest.raises(JournalFull):
            spool.append([request(range(taken, taken + 1))])
        assert spool.pending() == taken
        make_room()
        spool.append([request(range(taken, taken + 1))])
        assert spool.pending() == taken + 1
    finally:
        journal.close()


def test_rows_that_find_no_room_are_made_once_there_is_some(disk: tuple[Path, MakeRoom]) -> None:
    directory, make_room = disk
    journal = SqliteJournal(directory)
    try:
        spool, drain = Spool(journal), drain_of(journal)
        taken = fill(spool)
        with pytest.raises(JournalFull):
            drain.round(NOW_NS + 1)
        assert spool.pending() == taken
        make_room()
        while drain.round(NOW_NS + 2):
            pass
        drain.finish(NOW_NS + 3)
        rows = RunStore(journal).rows(KEY, start=0, limit=1 << 30)
        own = "workers/worker/0/value"
        assert sorted(row.values[own] for row in rows if own in row.values) == list(range(taken))
    finally:
        journal.close()


def test_a_journal_on_a_full_disk_is_opened_again_once_there_is_room(
    disk: tuple[Path, MakeRoom],
) -> None:
    directory, make_room = disk
    journal = SqliteJournal(directory)
    try:
        taken = fill(Spool(journal))
    finally:
        journal.close()
    make_room()
    journal = SqliteJournal(directory)
    try:
        assert Spool(journal).pending() == taken
    finally:
        journal.close()


def test_a_journal_without_room_for_its_tables_says_so_and_leaves_no_file(tmp_path: Path) -> None:
    with small_disk(tmp_path) as (directory, make_room):
        directory.mkdir()
        more = tmp_path / "more"
        more.write_bytes(bytes(shutil.disk_usage(tmp_path).free - 64 * 1024))
        with pytest.raises(JournalError) as caught:
            SqliteJournal(directory)
        assert "Free disk space" in caught.value.hint
        assert [path.name for path in directory.iterdir()] == ["lock"]
        assert [check.ok for check in backend("jsonl").check({}, directory)] == [False]
        make_room()
        SqliteJournal(directory).close()
