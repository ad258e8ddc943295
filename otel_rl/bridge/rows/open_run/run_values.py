"""Values of a run as a whole, in the rows of its steps and windows: who lives, goodput, a report.

They change slowly, and one wide row costs a tracker less than two.
"""

from collections.abc import Iterator, Mapping

from otel_rl.bridge.rows.key_catalogue import TIME
from otel_rl.bridge.rows.open_run.run_state import RunState
from otel_rl.bridge.rows.series.key_groups import GroupIdentity
from otel_rl.bridge.rows.steps.step_closing import ClosedStep
from otel_rl.bridge.rows.window_rows import ClosedWindow
from otel_rl.goodput import Spent
from otel_rl.records import RoleStanding
from otel_rl.semconv import names
from otel_rl.semconv.names import RlGoodputPartValues
from otel_rl.semconv.spec import Reduction

__all__ = ["STANDING_METRICS", "RunValues"]

# Metric and key suffix of each field of a ``RoleStanding``.
STANDING_METRICS = (
    (names.RL_SERVICE_EXPECTED, ""),
    (names.RL_SERVICE_ALIVE, ""),
    (names.RL_SERVICE_FAILURES, ""),
    (names.RL_SERVICE_RECOVERY, "_s"),
    (names.RL_SERVICE_SILENT, ""),
)

# Parts in the order of the fields of ``Spent``.
_GOODPUT_PARTS = (
    RlGoodputPartValues.PRODUCTIVE,
    RlGoodputPartValues.OVERHEAD,
    RlGoodputPartValues.IDLE,
    RlGoodputPartValues.WASTED,
)


class RunValues:
    """Adds the values of the run as a whole to the latest row, and makes one where none is."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._intake = state.intake

    def add_to(
        self,
        rows: list[ClosedStep | ClosedWindow],
        report: Mapping[str, float],
        *,
        clock_ns: int,
        now_ns: int,
        everything: bool,
    ) -> None:
        """Add to the latest of ``rows``, or append one if a change is due or all is closed.

        Args:
            rows: Of steps and windows.
            report: The bridge's report, by tracker key.
            clock_ns: The bridge's clock.
            now_ns: That without its downtime.
            everything: No more data will come.
        """
        state = self._state
        if report and everything and not rows and state.newest_ns:
            rows.append(ClosedWindow(state.newest_ns, {}))
        standings = self._standings(state.liveness.roles())
        if state.throttle.needs_a_row(standings, now_ns, everything=everything) and not rows:
            rows.append(ClosedWindow(max(state.newest_ns, clock_ns), {}))
        if not rows:
            return
        latest = max(rows, key=lambda row: row.time_ns)
        self._note(report)
        latest.values.update(report)
        latest.values.update(state.throttle.take(standings, now_ns))
        is_over = everything or not state.liveness.has_living
        goodput = self._goodput(self._intake.goodput.take(now_ns, is_over=is_over))
        self._note(goodput)
        latest.values.update(goodput)

    def take_dips(self) -> Iterator[ClosedWindow]:
        """Yield windows of moments when workers were missing, noticed only later."""
        for role, at_ns, alive in self._state.liveness.take_dips():
            values: dict[str, float] = {}
            self._put(values, role, names.RL_SERVICE_ALIVE, float(alive))
            if values:
                yield ClosedWindow(at_ns, values)

    def _standings(self, roles: Mapping[str, RoleStanding]) -> dict[str, float]:
        """Return the standings of the roles, by tracker key."""
        values: dict[str, float] = {}
        for role, standing in roles.items():
            for (name, suffix), value in zip(STANDING_METRICS, standing, strict=True):
                self._put(values, role, name, value, suffix=suffix)
        return values

    def _goodput(self, spent: Mapping[str, Spent]) -> dict[str, float]:
        """Return the goodput of the run and of its roles, by tracker key.

        A part without any time has no key.
        """
        values: dict[str, float] = {}
        for role, of in spent.items():
            for part, seconds in zip(_GOODPUT_PARTS, of, strict=True):
                attributes = ((names.RL_GOODPUT_PART, str(part)),)
                self._put(values, role, names.RL_GOODPUT_TIME, seconds or None, attributes)
            self._put(values, role, names.RL_GOODPUT_RATIO, of.ratio)
        return values

    def _put(
        self,
        values: dict[str, float],
        role: str,
        name: str,
        value: float | None,
        attributes: tuple[tuple[str, str], ...] = (),
        *,
        suffix: str = "",
    ) -> None:
        """Put a value under its key, if there is room for that."""
        keys = self._intake.series.keys
        identity = GroupIdentity(role, name + suffix, attributes, Reduction.LAST)
        if value is not None and keys.has_room_for(identity, self._intake.settings):
            values[keys.group(identity, suffix=suffix).key] = value

    def _note(self, values: Mapping[str, float]) -> None:
        self._state.row_maker.keys.note(values, TIME, self._intake.series.keys.find)
