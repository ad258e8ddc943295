"""A run in the journal: everything that its next rows depend on, and how a page reads it."""

from typing import Final

from otel_rl.bridge.journal.interface import Connection, checksum
from otel_rl.bridge.journal.log import KeptParts
from otel_rl.bridge.journal.reader import KnownWorker, Standing
from otel_rl.bridge.journal.state import Count, Int64, StateRefused, Stored, decode, decompress
from otel_rl.bridge.rows.goodput import Goodput
from otel_rl.bridge.rows.liveness import Liveness
from otel_rl.bridge.rows.messages import (
    DataWarning,
    DroppedPoints,
    NewFindings,
    RunMetadata,
)
from otel_rl.bridge.rows.rollouts import KeptRollouts
from otel_rl.bridge.rows.run_counts import SampleCounts
from otel_rl.bridge.rows.run_values import ChangeThrottle
from otel_rl.bridge.rows.series.table_state import Identities, StoredTable
from otel_rl.bridge.rows.spans import SpanWindow
from otel_rl.bridge.rows.steps.role_steps import RoleSteps
from otel_rl.bridge.rows.steps.step_axis import Attempts, StepAxis
from otel_rl.bridge.rows.table_rows import OpenTables
from otel_rl.bridge.rows.window_rows import OpenWindows

_NONE: Final = "None"  # of a subject that lacks the part


class PausableClock(Stored):
    """The bridge's clock without the time in which the bridge could not receive.

    While a bridge is down, or its disk blocks all requests, workers cannot report. Such downtime
    does not count toward lateness or lost workers, so the clock stands still in between:

        bridge's clock   10 11 12 .............. 50 51 52
        this clock       10 11 12                12 13 14

    Attributes:
        deaf_ns: How far this clock is behind the bridge's.
        since_ns: Last restart of this clock, by the bridge's clock.
        latest_ns: The latest time that this clock has shown.
    """

    deaf_ns: Int64 = 0
    since_ns: Int64 = 0
    latest_ns: Int64 = 0

    @property
    def resumed_ns(self) -> int:
        return self.since_ns - self.deaf_ns

    def at(self, now_ns: int) -> int:
        shown_ns = max(now_ns, self.since_ns) - self.deaf_ns
        self.latest_ns = max(self.latest_ns, shown_ns)
        return shown_ns

    def clock_is(self, now_ns: int) -> int:
        """Adjust to a bridge's clock that was set back: later shown times were wrong.

        Args:
            now_ns: Time by the bridge's clock, not that of a batch, which may have waited.

        Returns:
            The time of this clock.
        """
        if now_ns < self.since_ns:
            self.deaf_ns -= self.since_ns - now_ns
            self.since_ns = now_ns
        shown_ns = now_ns - self.deaf_ns
        self.latest_ns = min(self.latest_ns, shown_ns)
        return shown_ns

    def go_on(self, now_ns: int) -> None:
        """Skip the time from ``latest_ns`` to ``now_ns``."""
        self.deaf_ns = now_ns - self.latest_ns if self.latest_ns else 0
        self.since_ns = now_ns


class StoredState(Stored, kw_only=True):
    """State of a run in the journal; see ``Run``."""

    next_number: Count
    sample_counts: SampleCounts
    counts: dict[tuple[str, str], int]
    newest_ns: Int64
    table: StoredTable
    axis: StepAxis
    steps: dict[str, RoleSteps]
    attempts: Attempts
    windows: OpenWindows
    tables: OpenTables
    spans: SpanWindow
    history: KeptParts
    findings: NewFindings
    warnings: list[DataWarning]
    dropped: dict[str, DroppedPoints]
    has_told_shared: bool
    has_told_sampled: bool
    clock: PausableClock
    liveness: Liveness
    throttle: ChangeThrottle
    is_watching: bool
    begun: tuple[bool, bool] | None
    goodput: Goodput
    first_ns: Int64
    rollouts: KeptRollouts


class StoredRun(Stored):
    """A run in the journal.

    Attributes:
        state: State from which the next rows are made.
        metadata: Metadata from the run's announcements.
        cut: A batch that is taken in part, with the number of its points, samples and spans taken.
    """

    state: StoredState
    metadata: RunMetadata
    cut: tuple[Int64, Count] | None


def read_standing(connection: Connection, run: str) -> Standing:
    """Return the processes and the verdict of a run; neither if the run's state cannot be read."""
    found = connection.execute("SELECT body, crc FROM states WHERE run_id = ?", (run,)).fetchone()
    if found is None or checksum(found[0], run) != found[1]:
        return Standing((), "")
    try:
        state = decode(found[0], StoredRun).state
        identities = decode(decompress(state.table.identities), Identities)
    except StateRefused:
        return Standing((), "")
    workers = [
        KnownWorker(
            who.instance,
            f"{of.role}/{of.label}",
            of.standing,
            of.first_ns,
            _by_the_bridges_clock(of.received_ns, of.event_ns, state.clock),
            of.newest_step,
        )
        for who, of in zip(identities.workers, state.table.workers, strict=False)
    ]
    subject = state.findings.last_subject or ("",)
    return Standing(
        workers,
        subject[0],
        state.goodput.written,
        _cause(*subject[1:]),
        is_full=state.spans.chosen.left_bytes <= 0,
    )


def _by_the_bridges_clock(time_ns: int, event_ns: int, clock: PausableClock) -> int:
    """Convert a time of the run's clock to the bridge's; ``event_ns`` is by the worker's clock."""
    if time_ns and time_ns > clock.since_ns - clock.deaf_ns:
        return time_ns + clock.deaf_ns
    return max(time_ns, min(event_ns, time_ns + clock.deaf_ns)) if time_ns else 0


def _cause(kind: str = _NONE, role: str = _NONE, worker: str = _NONE) -> str:
    where = next((one for one in (worker, role) if one not in {"", _NONE}), "")
    return "" if kind == _NONE else f"{kind} {where}".rstrip()
