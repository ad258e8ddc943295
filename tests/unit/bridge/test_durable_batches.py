"""Batches are durable before anyone is told so."""

import gc
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from otel_rl.bridge.counters import Counter, Counters
from otel_rl.bridge.durable_batches import DurableBatches, UnstoredBatches
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.bridge.otlp.columns import ResourceReading
from otel_rl.bridge.receive.journal_shares import JournalShares
from otel_rl.bridge.receive.tokens import TokenShares
from otel_rl.errors import JournalClosed, JournalFull, JournalGone
from otel_rl.records import Batch, ExperimentKey, Signal

KEY = ExperimentKey("a")


def batches(size: int = 1) -> Sequence[Batch]:
    return [Batch(KEY, Signal.METRICS, b"x" * size, received_ns=1)]


class Site:
    """A journal and what is told of it."""

    def __init__(self, directory: Path, shares: TokenShares, max_bytes: int) -> None:
        self.journal = SqliteJournal(directory, max_bytes=max_bytes)
        self.journal_file = directory / JOURNAL_FILE
        self.spool = Spool(self.journal)
        self.counters = Counters()
        self.kept = 0
        room = JournalShares(shares, max_bytes, self.spool.in_use, lambda _: "")
        self.batches = DurableBatches(self.spool, room, self.counters, self._kept)

    def _kept(self) -> None:
        assert self.spool.pending() > self.kept  # durable, and to be seen
        self.kept += 1


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "data", TokenShares(()), 10 << 20)
    yield made
    made.journal.close()


def test_batches_are_there_when_they_are_said_to_be(site: Site) -> None:
    site.batches.keep(batches()).result()
    site.batches.keep(batches()).result()
    assert (site.spool.pending(), site.kept) == (2, 2)
    assert site.counters.value(Counter.BATCHES_SPOOLED) == 2


def test_what_finds_no_room_is_an_error_and_not_counted(site: Site) -> None:
    with pytest.raises(JournalFull):
        site.batches.keep(batches(11 << 20)).result()
    assert (site.spool.pending(), site.kept) == (0, 0)
    assert site.counters.value(Counter.BATCHES_SPOOLED) == 0


def test_a_refused_request_is_freed_without_the_garbage_collector(site: Site) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert isinstance(site.batches.keep(batches(11 << 20)).exception(), JournalFull)
            assert isinstance(site.spool.submit(batches(), admit=_refuse).exception(), JournalFull)
        held = [one for one in gc.get_objects() if isinstance(one, JournalFull)]
    finally:
        gc.enable()
    assert held == []


def test_batches_that_are_refused_take_no_room_from_the_columns_of_others(site: Site) -> None:
    def read(received_ns: int) -> Sequence[Batch]:
        columns = cast("Sequence[ResourceReading]", [SimpleNamespace(points=1)])
        return [Batch(KEY, Signal.METRICS, b"x" * (1 << 20), received_ns, columns)]

    for n in range(20):
        assert site.spool.submit(read(n), admit=_refuse).exception() is not None
    site.spool.submit(read(100)).result()
    (found,) = site.spool.read(KEY, max_bytes=1)
    assert found.batch.columns


def _refuse(_: Sequence[Batch]) -> None:
    raise JournalFull("No room.")


def test_a_removed_journal_is_told_until_it_is_back(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "data" / JOURNAL_FILE
    file.rename(tmp_path / "elsewhere")
    with pytest.raises(JournalGone):
        site.batches.keep(batches()).result()
    assert site.journal.problem
    (tmp_path / "elsewhere").rename(file)
    site.batches.keep(batches()).result()
    assert not site.journal.problem


def test_a_closed_journal_takes_nothing(site: Site) -> None:
    site.journal.close()
    with pytest.raises(JournalClosed):
        site.batches.keep(batches()).result()


def test_nothing_is_said_before_the_disk_has_it(site: Site) -> None:
    begun, durable = threading.Event(), threading.Event()

    def block(_: object) -> None:
        begun.set()
        durable.wait(60)

    blocking = threading.Thread(target=site.journal.write, args=(block,))
    blocking.start()
    assert begun.wait(60)
    keeping = threading.Thread(target=lambda: site.batches.keep(batches()).result())
    keeping.start()
    assert (site.kept, site.counters.value(Counter.BATCHES_SPOOLED)) == (0, 0)
    durable.set()
    keeping.join()
    blocking.join()
    assert (site.spool.pending(), site.counters.value(Counter.BATCHES_SPOOLED)) == (1, 1)


def of(content: bytes) -> Sequence[Batch]:
    return [Batch(KEY, Signal.METRICS, content, received_ns=1)]


def refuse(site: Site, content: bytes) -> None:
    """Have a batch refused."""
    file = site.journal_file
    file.rename(file.with_suffix(".away"))
    with pytest.raises(JournalGone):
        site.batches.keep(of(content)).result()
    file.with_suffix(".away").rename(file)


def test_a_refused_batch_is_unstored_once_until_it_comes_again(site: Site) -> None:
    for content in (b"one", b"one", b"two"):
        refuse(site, content)
    assert site.batches.unstored.count == 2
    site.batches.keep(of(b"three")).result()
    assert site.batches.unstored.count == 2
    site.batches.keep(of(b"one")).result()
    assert site.batches.unstored.count == 1
    assert "was removed or replaced" in site.batches.unstored.reason


def test_a_batch_without_room_is_unstored(site: Site) -> None:
    with pytest.raises(JournalFull):
        site.batches.keep(batches(11 << 20)).result()
    assert site.batches.unstored.count == 1


def test_a_batch_that_a_stopping_bridge_refuses_is_not_counted(site: Site) -> None:
    site.journal.close()
    with pytest.raises(JournalClosed):
        site.batches.keep(batches()).result()
    assert site.batches.unstored.count == 0


def test_unstored_batches_beyond_the_bound_on_memory_are_counted() -> None:
    unstored = UnstoredBatches(max_remembered=2)
    for content in (b"one", b"two", b"three"):
        unstored.add(of(content), JournalFull("No room."))
    unstored.came_again([*of(b"one"), *of(b"three")])
    assert (unstored.count, unstored.reason) == (2, "No room.")
