"""One life of a simulated bridge: the real stages over simulated ends, without threads."""

import contextlib
import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import count
from typing import Self

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.delivery.manager import DeliverySettings
from otel_rl.bridge.delivery.session import Route, TrackerSession
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.wandb.tracker import WandbTracker
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.interface import SoleOwner
from otel_rl.bridge.journal.leases import BridgeLeases
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.validate import validate
from otel_rl.bridge.rows.scheduler import Around, Pace, Scheduler
from otel_rl.errors import JournalFull, LeaseLost, TrackerError, TrackerUnavailable
from otel_rl.records import Description, ExperimentKey, Row, Signal
from otel_rl.run_id import run_id
from tests.simulation.clock import Clock
from tests.simulation.journal import Crash, Way
from tests.simulation.knobs import Knobs
from tests.simulation.library import Library
from tests.support.stores import runs_of

_LIMITS = ReceiveLimits()

_RETRY_S = 1.0


class Writer:
    """A writer process: the real tracker over a simulated library.

    Args:
        library: Of all writers.
        chance: Decides where it dies, and whether the bridge does so too.
        death_rate: How many of its calls, and rows, are the last thing that it does.
        pause: Called before rows are handed over: its bridge may fall asleep there.
    """

    def __init__(
        self,
        library: Library,
        chance: random.Random,
        death_rate: Callable[[], float],
        pause: Callable[[], None],
    ) -> None:
        self._library = library
        self._chance = chance
        self._death_rate = death_rate
        self._pause = pause
        self._tracker = WandbTracker()
        self._is_killed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def kill(self) -> None:
        self._is_killed = True
        self._library.kill(self)

    def open(self, run: RunInfo, /) -> int:
        self._library.opening = self
        position = self._tracker.open(run)
        self._may_die()
        return position

    def write(self, rows: Sequence[Row], /) -> None:
        self._pause()
        if self._is_killed:
            raise TrackerUnavailable("The simulated writer was killed.")
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
        knobs: What was chosen.
        clock: Seconds.
        now_ns: The bridge's own clock, which may jump.
        writer: Starts a writer for a run.
        owner: Names it among bridges that share the journal; empty if it has the journal alone.
        gained: Told of each run that becomes its own.
    """

    def __init__(
        self,
        journal: Way,
        knobs: Knobs,
        clock: Clock,
        now_ns: Callable[[], int],
        writer: Callable[[], Writer],
        *,
        owner: str,
        gained: Callable[[ExperimentKey], None],
    ) -> None:
        self._knobs = knobs
        self._clock = clock
        self._now_ns = now_ns
        self._writer = writer
        self._gained = gained
        self.counters = Counters()
        self._journal = journal
        self.leases: BridgeLeases | None = None
        if owner:
            self.leases = BridgeLeases(
                journal,
                owner=owner,
                trackers=[knobs.delivery.tracker],
                lease_s=knobs.lease_s,
                gained=self._gain,
                lost=self._drop,
                monotonic=clock,
            )
        owners = self.leases or SoleOwner()
        self._spool = Spool(journal, owners=owners)
        self.run_store = RunStore(journal, owners=owners)
        self._record = DeliveryStore(
            journal, knobs.delivery.tracker, owners=owners, has_room=self.run_store.has_room
        )
        self._drain = Scheduler(
            self._spool,
            self.run_store,
            knobs.align,
            self.counters,
            around=Around(owners=owners),
            pace=Pace(
                commit_every_s=knobs.commit_every_s,
                clock_s=partial(next, count(0.0, 0.001)),  # so that a world happens again
                slice_s=knobs.slice_s,
                part=knobs.part,
            ),
        )
        self._deliveries: dict[ExperimentKey, _Delivery] = {}

    def keep(self) -> None:
        """Look after its leases."""
        if self.leases is not None:
            with contextlib.suppress(JournalFull):
                self.leases.turn()
            self.leases.let_go()

    def owned(self) -> frozenset[ExperimentKey]:
        """The runs that it may write now."""
        return frozenset(key for key in runs_of(self._journal) if self.run_store.is_ours(key))

    def accept(self, request: bytes) -> None:
        """Take a request. If this returns, it was acknowledged."""
        admitted = validate(Signal.METRICS, request, _LIMITS, self._now_ns())
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
        ours = [key for key in runs_of(self._journal) if self.run_store.is_ours(key)]
        has_more = [self._delivery(key).step() for key in ours]
        return any(has_more)

    def finish_rows(self) -> None:
        """Make rows of everything, and of what then still waits."""
        self._drain.finish(self._now_ns())
        if self._spool.pending():
            self._drain.finish(self._now_ns())

    def stop(self) -> None:
        """End in order, as far as possible."""
        with contextlib.suppress(JournalFull):
            if self.leases is None:
                self.finish_rows()
            else:
                self.leases.claim_no_more()
                while self._drain.round(self._now_ns()):
                    pass
        for delivery in [*self._deliveries.values()]:
            delivery.close()
        if self.leases is not None:
            self.leases.stop()
        self.die()

    def die(self) -> None:
        """End, whatever it does."""
        for delivery in [*self._deliveries.values()]:
            delivery.kill()

    def failures(self) -> int:
        """How often something went wrong that should not."""
        return sum(n for (name, _), n in self.counters.snapshot().items() if "exceptions" in name)

    def _gain(self, key: ExperimentKey, _has_rows: bool) -> None:  # a callback
        self.run_store.forget(key)
        self._drop([key])
        self._drain.begin(key)
        self._gained(key)

    def _drop(self, keys: Collection[ExperimentKey]) -> None:
        for key in sorted(keys):
            if key in self._deliveries:
                self._deliveries.pop(key).kill()

    def _delivery(self, key: ExperimentKey) -> "_Delivery":
        if key not in self._deliveries:
            run = RunInfo(
                key,
                run_id(key.experiment, key.trial),
                self._knobs.delivery.directory,
                tuple(self._knobs.delivery.attributes.items()),
                journal=self._journal.identity,
            )
            self._deliveries[key] = _Delivery(
                run,
                self.run_store,
                self._record,
                self._knobs.delivery,
                self.counters,
                self._clock,
                self._writer,
            )
        return self._deliveries[key]


class _Delivery:
    """Opens a run as often as it takes: what the threads of ``run_delivery.py`` do."""

    def __init__(
        self,
        run: RunInfo,
        run_store: RunStore,
        record: DeliveryStore,
        settings: DeliverySettings,
        counters: Counters,
        clock: Clock,
        writer: Callable[[], Writer],
    ) -> None:
        self._run = run
        self._run_store = run_store
        self._record = record
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._start_writer = writer
        self._writer: Writer | None = None
        self._opened: TrackerSession | None = None
        self._before: TrackerSession | None = None
        self._retry_s = 0.0

    def step(self) -> bool:
        if self._clock() < self._retry_s:
            return True
        try:
            opened = self._opened or self._open()
            opened.step()
        except (TrackerError, JournalFull, LeaseLost):
            self._fail()
            return True
        return opened.safe_row < self._run_store.next_row(self._run.key)

    def close(self) -> None:
        try:
            while self._opened and self._opened.step():
                pass
            if self._opened:
                self._opened.close(exit_code=0)
        except (TrackerError, JournalFull, LeaseLost):
            self._fail()

    def kill(self) -> None:
        if self._writer is not None:
            self._writer.kill()
        self._writer = self._opened = None

    def _open(self) -> TrackerSession:
        self._writer = self._start_writer()
        opened = TrackerSession(
            self._writer,
            self._run,
            Route(
                self._run_store,
                self._record,
                self._settings,
                self._counters.add,
                self._clock,
            ),
            before=self._before,
        )
        opened.open()
        self._opened = self._before = opened
        return opened

    def _fail(self) -> None:
        self.kill()
        self._retry_s = self._clock() + _RETRY_S
