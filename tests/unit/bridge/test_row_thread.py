"""The thread that makes rows: woken by work, stopped by nothing but the bridge."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from otel_rl.bridge import row_thread
from otel_rl.bridge.config import load_settings
from otel_rl.bridge.counters import Counter, Counters, Where
from otel_rl.bridge.delivery.manager import RunState, RunStatus
from otel_rl.bridge.row_thread import RowThread, stop_timeout_s
from otel_rl.errors import JournalFull, JournalGone
from otel_rl.records import ExperimentKey
from tests.support.waiting import wait_until

DEADLINE_S = 90.0


class Work:
    """Rounds that end as a test says, and everything else that the thread asks."""

    def __init__(self, busy_s: float) -> None:
        self.rounds = 0
        self.finished: list[tuple[bool | None, str | None]] = []
        self.looks = 0
        self.looks_at_disk = 0
        self._busy_s = busy_s
        self.error: Exception | None = None

    @property
    def busy_s(self) -> float:
        self.looks_at_disk += 1
        return self._busy_s

    def round(self, _now_ns: int) -> bool:
        self.rounds += 1
        if self.error is not None:
            raise self.error
        return False

    def finish(self, _now_ns: int, *, failed: bool | None, by: str | None, is_over: object) -> None:
        self.finished.append((failed, by))

    def go_on(self, _now_ns: int) -> None: ...

    def look_last(self) -> bool:
        self.looks += 1
        return False

    def status(self) -> list[Any]:
        return []

    def pending(self) -> int:
        return 0


class Site:
    """A thread over such work."""

    def __init__(self, directory: Path, *, busy_s: float = 0.0, **journal: object) -> None:
        self.work = Work(busy_s)
        self.counters = Counters()
        self.thread = RowThread(
            load_settings(
                None, {"data": directory, "tracker": {"name": "jsonl"}, "journal": journal}
            ),
            cast("Any", SimpleNamespace(journal=self.work, spool=self.work)),
            cast("Any", self.work),
            delivery=cast("Any", self.work),
            diagnosis=cast("Any", self.work),
            counters=self.counters,
            clock_ns=time.time_ns,
        )
        self.thread.start()

    def stop(self, *, failed: bool | None = None, by: str | None = None) -> None:
        self.thread.stop(begun_s=time.monotonic(), failed=failed, by=by)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    running = Site(tmp_path)
    yield running
    running.stop()


def test_the_last_rows_are_made_with_what_became_of_the_workers(site: Site) -> None:
    site.stop(failed=True, by="SIGTERM")
    assert (site.work.finished, site.work.looks) == ([(True, "SIGTERM")], 1)


def test_where_bridges_share_the_journal_steps_stay_open_for_them(tmp_path: Path) -> None:
    shared = Site(tmp_path, url="postgresql://localhost/x")
    shared.stop(failed=True)
    assert (shared.work.finished, shared.work.rounds > 0) == ([], True)


@pytest.mark.parametrize(
    ("error", "counted"),
    [(ValueError("a bug"), 1), (JournalFull("no room"), 0), (JournalGone("it was removed"), 0)],
)
def test_a_failure_is_tried_again_and_a_bug_is_counted(
    site: Site, error: Exception, counted: int
) -> None:
    site.work.error = error
    rounds = site.work.rounds
    wait_until(
        lambda: site.work.rounds >= rounds + 2, "it is not tried again", timeout_s=DEADLINE_S
    )
    assert (site.counters.value(Counter.EXCEPTIONS, reason=Where.DRAIN) >= 1) == bool(counted)


def test_no_row_is_made_while_the_disk_keeps_every_request_waiting(tmp_path: Path) -> None:
    site = Site(tmp_path, busy_s=60.0)
    wait_until(lambda: site.work.looks_at_disk >= 3, "it does not look", timeout_s=DEADLINE_S)
    assert site.work.rounds == 0
    site.stop()


@pytest.mark.parametrize(
    ("journal", "timeout_s"), [({}, 30.0), ({"url": "postgresql://localhost/x"}, 4.0)]
)
def test_others_wait_for_the_runs_of_a_stopping_bridge(
    tmp_path: Path, journal: dict[str, object], timeout_s: float
) -> None:
    given = load_settings(
        None,
        {
            "data": tmp_path,
            "tracker": {"name": "jsonl"},
            "stop_timeout_s": 30.0,
            "journal": {"lease_s": 4.0, **journal},
        },
    )
    assert stop_timeout_s(given) == timeout_s


def run_status(**about: Any) -> RunStatus:
    fields: dict[str, Any] = {
        "key": ExperimentKey("e"),
        "tracker": "jsonl",
        "location": "",
        "state": RunState.OPENING,
        "next_row": 0,
        "safe_row": 0,
        "pending": 3,
        "last_error": "",
    }
    return RunStatus(**fields | about)


@pytest.mark.parametrize(
    ("of_run", "finished"),
    [
        ({}, 4),
        ({"state": RunState.LIVE, "next_row": 3, "pending": 0}, 4),
        ({"state": RunState.RETRYING, "last_error": "refused"}, 1),
        ({"state": RunState.LIVE, "pending": 0}, 1),
    ],
    ids=["opens", "confirms", "refuses", "has all"],
)
def test_batches_without_room_wait_for_a_tracker_that_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_run: dict[str, Any], finished: int
) -> None:
    monkeypatch.setattr(row_thread, "_NO_ROOM_S", 0.0)  # any time is too long
    site = Site(tmp_path)
    monkeypatch.setattr(site.work, "status", lambda: [run_status(**of_run)])
    monkeypatch.setattr(site.work, "pending", lambda: int(len(site.work.finished) < 4))
    site.stop()
    assert len(site.work.finished) == finished
