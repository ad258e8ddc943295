"""Several trackers as one delivery: one that is away delays no other."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.delivery.manager import DeliveryManager, DeliverySettings, RunState
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import Writer
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.errors import TrackerUnavailable
from otel_rl.records import Description, ExperimentKey, Row
from tests.support import waiting

wait_until = partial(waiting.wait_until, timeout_s=90)

KEY = ExperimentKey("grpo")


class Memory(Writer):
    """A tracker in memory, which can be away. It outlives its writers."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.rows: list[int] = []
        self.is_away = False

    def __exit__(self, *_: object) -> None: ...

    def kill(self) -> None: ...

    def _ask(self, method: str, *arguments: object, timeout_s: float) -> object: ...

    def open(self, run: RunInfo, /) -> int:
        if self.is_away:
            raise TrackerUnavailable("It is away.")
        return len(self.rows)

    def write(self, rows: Sequence[Row], /) -> None:
        self.rows += [row.number for row in rows]

    def describe(self, description: Description, /) -> None: ...

    def flush(self, *, timeout_s: float) -> int:
        return len(self.rows)

    def location(self) -> str:
        return "memory"

    def close(self, *, exit_code: int) -> int:
        return len(self.rows)


class Site:
    """A journal with rows of one run, and two trackers."""

    def __init__(self, directory: Path) -> None:
        self.journal = SqliteJournal(directory / "data")
        self.run_store = RunStore(self.journal)
        self.trackers = {"jsonl": Memory(), "tensorboard": Memory()}
        record = DeliveryStore(self.journal, "jsonl", others=["tensorboard"])
        settings = [
            DeliverySettings(
                name,
                directory,
                {},
                confirm_interval_s=0.05,
                keep_confirmed_s=0,
                first_retry_s=0.05,
                max_retry_s=0.2,
            )
            for name in self.trackers
        ]
        self.delivery = DeliveryManager(
            self.run_store,
            [(one, record.of(one.tracker)) for one in settings],
            Counters().add,
            writer=self.trackers.__getitem__,
        )

    def add(self, n: int) -> None:
        first = self.run_store.next_row(KEY)
        rows = [Row(i, i, i, {"x": 1.0}) for i in range(first, first + n)]
        self.run_store.commit([Commit(KEY, rows, first + n, b"")])
        self.delivery.notify(KEY)

    def kept(self) -> int:
        return len(self.run_store.rows(KEY, start=0, limit=1_000))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.delivery.stop(timeout_s=30, exit_code=0)
    site.journal.close()


def test_one_that_is_away_holds_up_none_and_gets_every_row_later(site: Site) -> None:
    here, away = site.trackers.values()
    away.is_away = True
    site.add(10)
    wait_until(lambda: len(here.rows) == 10)
    assert away.rows == []
    assert site.kept() == 10, "the other one needs them"
    away.is_away = False
    wait_until(lambda: away.rows == list(range(10)))
    assert here.rows == list(range(10))
    wait_until(lambda: site.kept() == 0, "the rows go")


def test_every_run_has_a_status_for_each_tracker(site: Site) -> None:
    site.add(3)
    wait_until(lambda: all(len(tracker.rows) == 3 for tracker in site.trackers.values()))
    assert [status.tracker for status in site.delivery.status()] == ["jsonl", "tensorboard"]
    assert site.delivery.pending(KEY) == 0


def test_a_stopping_bridge_finishes_the_run_where_it_can(site: Site) -> None:
    _, away = site.trackers.values()
    away.is_away = True
    site.add(3)
    assert site.delivery.busy() == [KEY]
    assert site.delivery.over() == []
    with ThreadPoolExecutor(1) as stopping:
        stopped = stopping.submit(site.delivery.stop, timeout_s=90, exit_code=0)
        wait_until(lambda: site.delivery.status()[0].state is RunState.FINISHED)
        site.delivery.abandon(tracker="tensorboard")  # as when its time is over
        statuses = stopped.result()
    assert [status.state for status in statuses] == [RunState.FINISHED, RunState.RETRYING]
    assert site.delivery.pending(KEY) == 3
