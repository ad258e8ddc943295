"""Throttles rows of slowly changing values: written after a change, and sometimes between. Pure."""

from collections.abc import Mapping

from otel_rl.bridge.journal.formats import state_format as wire

__all__ = ["ChangeThrottle"]

_NS_PER_S = 1_000_000_000

# Interval of repeats in rows that are written anyway: a chart of them is no single dot.
_REPEAT_NS = 10 * _NS_PER_S

# How long a change waits for another row. Workers that start together then make one row.
_PATIENCE_NS = 5 * _NS_PER_S


class ChangeThrottle:
    """Remembers the values last written."""

    def __init__(self) -> None:
        self._written: Mapping[str, float] = {}
        self._written_ns = 0
        self._changed_ns: int | None = None

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

    def to_wire(self) -> wire.Throttle:
        """Return the state for the journal."""
        return wire.Throttle(self._written, self._written_ns, self._changed_ns)

    @classmethod
    def from_wire(cls, kept: wire.Throttle) -> "ChangeThrottle":
        """Undo ``to_wire``."""
        notice = cls()
        notice._written = {key: wire.number(one) for key, one in kept.told.items()}
        notice._written_ns, notice._changed_ns = kept.told_ns, kept.changed_ns
        return notice
