"""One life of a simulated bridge: the real stages over simulated ends, without threads."""

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from otel_rl.bridge.align import AlignSettings
from otel_rl.bridge.counters import Counters
from otel_rl.bridge.drain import Drain
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.ledger import Ledger
from otel_rl.bridge.receive.admit import admit
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.spool import Spool
from otel_rl.bridge.track import RunInfo
from otel_rl.bridge.track.contract import DeliverySettings
from otel_rl.bridge.track.open_run import OpenRun
from otel_rl.bridge.track.wandb import WandbTracker
from otel_rl.errors import JournalFull, TrackerError, TrackerUnavailable
from otel_rl.records import Description, ExperimentKey, Row, Signal
from otel_rl.semconv.run_id import run_id
from tests.simulation.clock import Clock
from tests.simulation.journal import Crash
from tests.simulation.library import Library

__all__ = ["DELIVERY", "Bridge", "Writer"]

_ALIGN = AlignSettings(
    window_s=1,
    allowed_lateness_s=3,
    lease_s=5,
    settle_s=0.25,
    quiet_s=0.5,
    forget_s=40,
    per_worker=True,
)

DELIVERY = DeliverySettings(
    tracker="wandb",
    directory=Path(),
    attributes={"stall_timeout_s": "20"},
    batch_rows=8,
    max_unconfirmed_rows=30,
    confirm_interval_s=1.0,
    keep_confirmed_s=2.0,
)
"""Bounds small enough to be met in a simulation."""

_LIMITS = ReceiveLimits()

_RETRY_S = 1.0


class Writer:
    """A writer process: the real tracker over a simulated library.

    Args:
        library: Of all writers.
        chance: Decides where it dies, and whether the bridge does so too.
        death_rate: How many of its calls, and rows, are the last thing that it does.
    """

    def __init__(
        self, library: Library, chance: random.Random, death_rate: Callable[[], float]
    ) -> None:
        self._library = library
        self._chance = chance
        self._death_rate = death_rate
        self._tracker = WandbTracker()
        self._run_id = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def kill(self) -> None:
        self._library.kill(self._run_id)

    def open(self, run: RunInfo, /) -> int:
        self._run_id = run.run_id
        position = self._tracker.open(run)
        self._may_die()
        return position

    def write(self, rows: Sequence[Row], /) -> None:
        for row in rows:
            self._may_die()
            self._tracker.write([row])
        self._may_die()

    def flush(self, *, timeout_s: float) -> int | None:
        self._may_die()
        return self._tracker.flush(timeout_s=timeout_s)

    def location(self) -> str:
        return self._tracker.location()

    def describe(self, description: Description, /) -> None:
        self._may_die()
        self._tracker.describe(description)

    def close(self, *, exit_code: int) -> int | None:
        self._may_die()
        return self._tracker.close(exit_code=exit_code)

    def _may_die(self) -> None:
        if self._chance.random() < self._death_rate():
            if self._chance.random() < 0.5:
                raise Crash
            raise TrackerUnavailable("The simulated writer has died.")


class Bridge:
    """From requests to the run, for as long as the process lives. It may die in every method.

    Args:
        journal: Outlives it.
        clock: Seconds.
        now_ns: The bridge's own clock, which may jump.
        writer: Starts a writer for a run.
    """

    def __init__(
        self,
        journal: SqliteJournal,
        clock: Clock,
        now_ns: Callable[[], int],
        writer: Callable[[], Writer],
    ) -> None:
        self._clock = clock
        self._now_ns = now_ns
        self._writer = writer
        self._counters = Counters()
        self._journal = journal.identity
        self._spool = Spool(journal)
        self.ledger = Ledger(journal)
        self._drain = Drain(
            self._spool,
            self.ledger,
            settings=_ALIGN,
            counters=self._counters,
            notify=lambda key: None,
        )
        self._deliveries: dict[ExperimentKey, _Delivery] = {}

    def accept(self, request: bytes) -> None:
        """Take a request. If this returns, it was acknowledged."""
        admitted = admit(Signal.METRICS, request, _LIMITS, self._now_ns())
        assert not admitted.refused
        self._spool.append(admitted.batches)

    def round(self) -> bool:
        """Make rows of some of what waits. Returns whether there may be more."""
        try:
            return self._drain.round(self._now_ns())
        except JournalFull:
            return True

    def deliver(self) -> bool:
        """Give every run a moment. Returns whether there may be more to do."""
        has_more = [self._delivery(key).step() for key in self.ledger.runs()]
        return any(has_more)

    def finish_rows(self) -> None:
        """Make rows of everything."""
        while self._drain.round(self._now_ns()):
            pass
        self._drain.finish(self._now_ns())

    def stop(self) -> None:
        """End in order, as far as possible."""
        with contextlib.suppress(JournalFull):
            self.finish_rows()
        for delivery in self._deliveries.values():
            delivery.close()
        self.die()

    def die(self) -> None:
        """End, whatever it does."""
        for delivery in self._deliveries.values():
            delivery.kill()

    def failures(self) -> int:
        """How often something went wrong that should not."""
        return sum(n for (name, _), n in self._counters.snapshot().items() if "exceptions" in name)

    def _delivery(self, key: ExperimentKey) -> "_Delivery":
        if key not in self._deliveries:
            run = RunInfo(
                key,
                run_id(key.experiment, key.trial),
                DELIVERY.directory,
                tuple(DELIVERY.attributes.items()),
                journal=self._journal,
            )
            self._deliveries[key] = _Delivery(
                run, self.ledger, self._counters, self._clock, self._writer
            )
        return self._deliveries[key]


class _Delivery:
    """Opens a run as often as it takes: what the threads of ``run_delivery.py`` do."""

    def __init__(
        self,
        run: RunInfo,
        ledger: Ledger,
        counters: Counters,
        clock: Clock,
        writer: Callable[[], Writer],
    ) -> None:
        self._run = run
        self._ledger = ledger
        self._counters = counters
        self._clock = clock
        self._start_writer = writer
        self._writer: Writer | None = None
        self._opened: OpenRun | None = None
        self._before: OpenRun | None = None
        self._retry_s = 0.0

    def step(self) -> bool:
        if self._clock() < self._retry_s:
            return True
        try:
            opened = self._opened or self._open()
            opened.step()
        except (TrackerError, JournalFull):
            self._fail()
            return True
        return opened.safe_row < self._ledger.next_row(self._run.key)

    def close(self) -> None:
        try:
            while self._opened and self._opened.step():
                pass
            if self._opened:
                self._opened.close(exit_code=0)
        except (TrackerError, JournalFull):
            self._fail()

    def kill(self) -> None:
        if self._writer is not None:
            self._writer.kill()
        self._writer = self._opened = None

    def _open(self) -> OpenRun:
        self._writer = self._start_writer()
        opened = OpenRun(
            self._writer,
            self._run,
            self._ledger,
            DELIVERY,
            self._counters.add,
            self._clock,
            before=self._before,
        )
        opened.open()
        self._opened = self._before = opened
        return opened

    def _fail(self) -> None:
        self.kill()
        self._retry_s = self._clock() + _RETRY_S
