"""Values of a run as a whole, in rows of steps and windows: living workers, goodput, a report.

These values change slowly, and one wide row costs a tracker less than two rows.
"""

from collections.abc import Mapping

from msgspec import field

from otel_rl.bridge.journal.state import Int64, Number, Stored
from otel_rl.bridge.rows.intake import PointIntake
from otel_rl.bridge.rows.key_catalogue import TIME, KeyCatalogue
from otel_rl.bridge.rows.liveness import Liveness
from otel_rl.bridge.rows.series.key_groups import GroupIdentity
from otel_rl.bridge.rows.steps.step_closing import ClosedStep
from otel_rl.bridge.rows.window_rows import ClosedWindow
from otel_rl.goodput import Spent
from otel_rl.records import RoleStanding
from otel_rl.semconv import names
from otel_rl.semconv.names import RlGoodputPartValues
from otel_rl.semconv.spec import Reduction

_NS_PER_S = 1_000_000_000

# Interval of repeats in rows that are written anyway: a chart of them is no single dot.
_REPEAT_NS = 10 * _NS_PER_S

# How long a change waits for another row. Workers that start together then make one row.
_PATIENCE_NS = 5 * _NS_PER_S


class ChangeThrottle(Stored):
    """Holds back values that change often, by remembering the values written last."""

    _written: Mapping[str, Number] = field(default_factory=dict)
    _written_ns: Int64 = 0
    _changed_ns: Int64 | None = None

    def needs_a_row(
        self, values: Mapping[str, float], now_ns: int, *, everything: bool = False
    ) -> bool:
        """Return whether ``values`` have changed and were held back long enough."""
        if values == self._written:
            self._changed_ns = None
            return False
        if self._changed_ns is None or self._changed_ns > now_ns:
            self._changed_ns = now_ns
        return everything or now_ns - self._changed_ns >= _PATIENCE_NS

    def take(self, values: Mapping[str, float], now_ns: int) -> Mapping[str, float]:
        """Return ``values`` if a row with them is due now, else nothing."""
        if values == self._written and 0 <= now_ns - self._written_ns < _REPEAT_NS:
            return {}
        self._written, self._written_ns, self._changed_ns = values, now_ns, None
        return values


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
    """Adds the run's values to its latest row, and makes a row where there is none."""

    def __init__(
        self,
        intake: PointIntake,
        liveness: Liveness,
        throttle: ChangeThrottle,
        catalogue: KeyCatalogue,
    ) -> None:
        self._intake = intake
        self._liveness = liveness
        self._throttle = throttle
        self._catalogue = catalogue

    def add_to(
        self,
        rows: list[ClosedStep | ClosedWindow],
        report: Mapping[str, float],
        *,
        newest_ns: int,
        clock_ns: int,
        now_ns: int,
        everything: bool,
    ) -> None:
        """Add the values to the latest of ``rows``, or append a row if one is due or all closes.

        Args:
            report: The bridge's report, by tracker key.
            newest_ns: Event time of the latest earlier row.
            now_ns: The bridge's clock without its downtime.
            everything: Whether no more data will come.
        """
        if report and everything and not rows and newest_ns:
            rows.append(ClosedWindow(newest_ns, {}))
        standings = self._standings(self._liveness.roles())
        is_due = self._throttle.needs_a_row(standings, now_ns, everything=everything)
        if not rows and is_due:
            rows.append(ClosedWindow(max(newest_ns, clock_ns), {}))
        if not rows:
            return
        latest = max(rows, key=lambda row: row.time_ns)
        self._note(report)
        latest.values.update(report)
        latest.values.update(self._throttle.take(standings, now_ns))
        is_over = everything or not self._liveness.has_living
        goodput = self._goodput(self._intake.goodput.take(now_ns, is_over=is_over))
        self._note(goodput)
        latest.values.update(goodput)

    def _standings(self, roles: Mapping[str, RoleStanding]) -> dict[str, float]:
        values: dict[str, float] = {}
        for role, standing in roles.items():
            for (name, suffix), value in zip(STANDING_METRICS, standing, strict=True):
                self._put(values, role, name, value, suffix=suffix)
        return values

    def _goodput(self, spent: Mapping[str, Spent]) -> dict[str, float]:
        """Return the goodput of the run and of its roles, by tracker key.

        A part that spent no time has no key.
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
        keys = self._intake.series.keys
        identity = GroupIdentity(role, name + suffix, attributes, Reduction.LAST)
        if value is not None and keys.has_room_for(identity, self._intake.settings):
            values[keys.group(identity, suffix=suffix).key] = value

    def _note(self, values: Mapping[str, float]) -> None:
        self._catalogue.note(values, TIME, self._intake.series.keys.find)
