"""Logs of a run, which are stored beside its state and only grow."""

from collections.abc import Mapping, Sequence

from otel_rl.bridge.rows.dedup.dedup_log import DedupLog
from otel_rl.bridge.rows.history.archived_points import ArchivedPoints
from otel_rl.bridge.rows.history.history_writer import HistoryRecords
from otel_rl.bridge.rows.history.span_log import SpanLog
from otel_rl.bridge.rows.open_run.run_standing import RunStanding
from otel_rl.bridge.rows.open_run.run_state import RunState
from otel_rl.bridge.rows.reports.data_warnings import DroppedPoints
from otel_rl.bridge.rows.steps.written_steps import StepLog

__all__ = ["RunLogs"]


class RunLogs:
    """New parts of each log of a run for a commit, and their restoration.

    Take them before the state, which includes what they forget.
    """

    def __init__(self, state: RunState, standing: RunStanding) -> None:
        self._intake = state.intake
        self._recent_spans = state.span_window.recent
        self._standing = standing

    @property
    def dedup_forgotten_ns(self) -> int:
        """Return the time up to which no log of points by ``newest_ns`` is needed any more."""
        return self._intake.series.memory.forgotten_ns

    def take_dedup(self) -> DedupLog | None:
        """Return the single points accepted since the last call; None if there are none."""
        table = self._intake.series
        return table.memory.take_log(
            self._intake.settings.max_remembered, table.ended.unknown_through_ns
        )

    def restore_dedup(self, body: bytes) -> None:
        """Restore the points of a ``DedupLog``.

        Raises:
            StateRefused: It is something else.
        """
        self._intake.series.memory.restore(body, self._intake.settings.max_remembered)

    @property
    def steps_forgotten(self) -> int:
        """Return the number up to which no log of steps is needed any more."""
        return self._intake.steps.logs.forgotten

    def take_steps(self) -> StepLog | None:
        """Return the steps that got a row or were taken again since the last call, if any."""
        return self._intake.steps.take_log()

    def restore_steps(self, body: bytes) -> None:
        """Restore the steps of a ``StepLog``, in the order of their numbers.

        Raises:
            StateRefused: It is something else.
        """
        self._intake.steps.restore_log(body, len(self._intake.series.keys.groups))

    def steps_are_restored(self) -> None:
        """Record that there is no further log of steps."""
        self._intake.steps.is_restored()

    @property
    def spans_forgotten_ns(self) -> int:
        """Return the time up to which no span log by ``newest_ns`` is needed any more."""
        return self._recent_spans.forgotten_ns

    def take_spans(self) -> SpanLog | None:
        """Return the spans since the last call; None if there are none."""
        return self._recent_spans.take_log()

    def restore_spans(self, body: bytes) -> None:
        """Restore the spans of a ``SpanLog``.

        Raises:
            StateRefused: It is something else.
        """
        too_old = self._recent_spans.restore(body, self._intake.settings)
        self._intake.sample_counts.spans_too_old += too_old

    @property
    def history_forgotten_ns(self) -> int:
        """Return the time up to which no history by ``newest_ns`` is needed any more."""
        return self._intake.history.forgotten_ns

    def take_history(self, now_ns: int, *, everything: bool = False) -> HistoryRecords | None:
        """Return the history records since the last call.

        Args:
            now_ns: The bridge's clock.
            everything: Also the most recent ones.
        """
        intake = self._intake
        return intake.history.take(
            now_ns,
            intake.axis.step_at(now_ns),
            intake.series.workers.states,
            intake.series.workers.names(),
            intake.settings.max_history_bytes,
            everything=everything,
            failures=self._standing.failures,
            status=self._standing.status or "",
            attempt=intake.steps.attempts.newest,
        )

    def begin_archive(self) -> None:
        """Collect every accepted value from now on."""
        self._intake.archived = ArchivedPoints()

    def take_archived(self) -> Sequence[tuple[int, bytes]]:
        """Return the values accepted since the last call, see ``ArchivedPoints.take``."""
        return [] if self._intake.archived is None else self._intake.archived.take()

    def take_folded(self) -> int:
        """Return the number of new series since the last call whose metric has too many keys."""
        series = self._intake.series
        folded, series.newly_folded = series.newly_folded, 0
        return folded

    def take_dropped(self) -> Mapping[str, DroppedPoints]:
        """Return, by worker, the points dropped by the series limit since the last call."""
        dropped, self._intake.dropped = self._intake.dropped, {}
        return dropped
