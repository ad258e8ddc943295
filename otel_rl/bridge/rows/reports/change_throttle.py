"""Throttles rows of slowly changing values: written after a change, and sometimes between. Pure."""

from collections.abc import Mapping

from msgspec import field

from otel_rl.bridge.journal.state import Int64, Number, Stored

__all__ = ["ChangeThrottle"]

_NS_PER_S = 1_000_000_000

# Interval of repeats in rows that are written anyway: a chart of them is no single dot.
_REPEAT_NS = 10 * _NS_PER_S

# How long a change waits for another row. Workers that start together then make one row.
_PATIENCE_NS = 5 * _NS_PER_S


class ChangeThrottle(Stored):
    """Remembers the values last written."""

    _written: Mapping[str, Number] = field(default_factory=dict)
    _written_ns: Int64 = 0
    _changed_ns: Int64 | None = None

    def needs_a_row(
        self, values: Mapping[str, float], now_ns: int, *, everything: bool = False
    ) -> bool:
        """Return whether ``values`` have changed and waited long enough.

        Args:
            values: Present values.
            now_ns: As at every call.
            everything: Do not wait any longer.
        """
        if values == self._written:
            self._changed_ns = None
            return False
        if self._changed_ns is None or self._changed_ns > now_ns:
            self._changed_ns = now_ns
        return everything or now_ns - self._changed_ns >= _PATIENCE_NS

    def take(self, values: Mapping[str, float], now_ns: int) -> Mapping[str, float]:
        """Return the part of ``values`` for a row that is written now: all of them, or nothing."""
        if values == self._written and 0 <= now_ns - self._written_ns < _REPEAT_NS:
            return {}
        self._written, self._written_ns, self._changed_ns = values, now_ns, None
        return values
