"""Writing of one run: its openings in the tracker, one after the other, each with a new writer."""

import contextlib

from otel_rl.bridge.delivery.delivery_interfaces import RunState, Writer
from otel_rl.bridge.delivery.one_run.requests import Requests
from otel_rl.bridge.delivery.one_run.retries import Retries
from otel_rl.bridge.delivery.one_run.shared_objects import Shared
from otel_rl.bridge.delivery.one_run.standing import Standing
from otel_rl.bridge.delivery.one_run.tracker_session import TrackerSession
from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.errors import JournalFull, RunDiverged, TrackerUnavailable
from otel_rl.records import ExperimentStatus

__all__ = ["RunWriting"]

# Exit code of a run, unless the bridge itself ends it with an error. W&B's own SDK uses 255 for a
# run stopped by its user.
_EXIT_CODES = {
    ExperimentStatus.COMPLETE: 0,
    ExperimentStatus.CRASHED: 1,
    ExperimentStatus.ABORTED: 255,
}


class RunWriting:
    """Writes the rows of one run through one writer after the other.

    The thread of the delivery calls the methods; any thread may call ``kill`` and ``positions``.
    """

    def __init__(
        self,
        info: RunInfo,
        shared: Shared,
        requests: Requests,
        standing: Standing,
        retries: Retries,
    ) -> None:
        self._info = info
        self._shared = shared
        self._settings = shared.settings
        self._requests = requests
        self._standing = standing
        self._retries = retries
        self._diverged: RunDiverged | None = None
        # The lock of the requests guards everything below.
        self._writer: Writer | None = None
        self._opened: TrackerSession | None = None  # the last one that succeeded
        self._pruned_row = 0  # all rows below were confirmed before this process began
        self._closed_at: tuple[int, int] | None = None  # next row and exit code

    def positions(self, *, is_held: bool) -> tuple[int, int]:
        """Return the next row to hand over and the first one that is not safe at the tracker.

        Args:
            is_held: The writer has failed: unconfirmed rows are handed over again.
        """
        with self._requests.changed:
            opened = self._opened
            if opened is None:
                return self._pruned_row, 0
            next_row = max(opened.held_row, self._pruned_row) if is_held else opened.next_row
            return next_row, opened.safe_row

    def is_closed(self) -> bool:
        """Return whether the run was closed and not opened since."""
        with self._requests.changed:
            return self._closed_at is not None

    def lacks(self, numbered: int, exit_code: int | None) -> bool:
        """Return whether the tracker's run lacks rows below ``numbered``, or its end."""
        with self._requests.changed:
            if self._closed_at is None:
                return True
            rows, code = self._closed_at
            return rows < numbered or exit_code not in {None, code}

    def exit_code(self) -> int | None:
        """Return the run's exit code; None while neither the experiment nor the bridge ends."""
        ended = _EXIT_CODES.get(self._shared.source.description(self._info.key).status)
        wanted = self._requests.exit_code()
        return ended if wanted is None else ended or wanted

    def kill(self) -> None:
        """End the present writer at once."""
        with self._requests.changed:
            writer = self._writer
        if writer is not None:
            writer.kill()

    def find_pruned_rows(self) -> None:
        """Note which rows were confirmed before this process began."""
        if self._opened is None:
            kept = self._shared.source.rows(self._info.key, start=0, limit=1)
            with self._requests.changed:
                self._pruned_row = kept[0].number if kept else 0

    def write(self) -> None:
        """Open the run with a new writer and write rows until the run is to be closed."""
        if self._diverged is not None:
            raise self._diverged
        with self._shared.writer() as writer:
            if not self._take(writer):
                return
            try:
                self._pump(self._open(writer))
            except RunDiverged as exc:
                self._diverged = exc
                raise
            finally:
                with self._requests.changed:
                    self._writer = None

    def _take(self, writer: Writer) -> bool:
        """Make the writer the present one, unless the delivery is to end."""
        with self._requests.changed:
            if self._requests.is_killed():
                return False
            self._writer = writer
            self._requests.clear_room_wanted()
            self._closed_at = None
            self._standing.enter(RunState.OPENING)
            return True

    def _open(self, writer: Writer) -> TrackerSession:
        opened = TrackerSession(
            writer,
            self._info,
            self._shared.source,
            self._shared.record,
            self._settings,
            self._shared.count,
            self._shared.monotonic,
            before=self._opened,
            project=self._shared.project,
        )
        opened.open()
        self._shared.slots.started(self._requests)
        with self._requests.changed:
            self._standing.enter(RunState.LIVE)
            is_elsewhere = self._standing.move(opened.location)
            self._opened = opened
        if is_elsewhere:
            with contextlib.suppress(JournalFull):  # the next opening stores it
                self._shared.record.opened(self._info.key, opened.location)
            self._shared.opened(self._info.key, opened.location)
        return opened

    def _pump(self, opened: TrackerSession) -> None:
        """Write rows as they come, until the run is to be closed."""
        opened_at = wrote_at = self._shared.monotonic()
        while True:
            # Read before the rows, so that rows that preceded the request to close are seen.
            exit_code = self._exit_code_if_drained(opened_at, wrote_at)
            before = opened.next_row
            more = opened.step()
            if opened.next_row > before:
                self._shared.slots.used(self._requests)
                wrote_at = self._shared.monotonic()
            if opened.is_well():
                self._retries.store(self._standing.recover(), "")
            if self._shared.monotonic() - opened_at > self._settings.max_retry_s:
                self._retries.reset()
            if more:
                continue
            if exit_code is not None:
                opened.close(exit_code=exit_code)
                self._closed(opened.next_row, exit_code)
                return
            self._wait(opened.due_in_s(), opened_at, wrote_at)

    def _exit_code_if_drained(self, opened_at: float, wrote_at: float) -> int | None:
        now = self._shared.monotonic()
        exit_code = self.exit_code()
        has_ended = exit_code is not None and now - wrote_at >= self._settings.end_grace_s
        with self._requests.changed:
            self._requests.take_news()
            is_asked = (
                self._requests.is_room_wanted() and now - opened_at >= self._settings.min_hold_s
            )
            if has_ended or is_asked or self._requests.exit_code() is not None:
                return exit_code or 0
        return None

    def _closed(self, position: int, exit_code: int) -> None:
        self._retries.reset()
        with self._requests.changed:
            self._closed_at = (position, exit_code)
        has_ended = self.exit_code() is not None
        self._standing.enter(RunState.FINISHED if has_ended else RunState.WAITING)

    def _wait(self, due_in_s: float, opened_at: float, wrote_at: float) -> None:
        now = self._shared.monotonic()
        if self.exit_code() is not None:
            due_in_s = min(due_in_s, wrote_at + self._settings.end_grace_s - now)
        hold_s = opened_at + self._settings.min_hold_s - now
        with self._requests.changed:
            self._requests.wait(due_in_s, hold_s)
            if self._requests.is_killed():
                raise TrackerUnavailable("The bridge stopped before all rows were written.")
