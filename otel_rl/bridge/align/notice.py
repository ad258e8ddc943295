"""When values that change now and then are written: after a change, and sometimes between. Pure."""

from collections.abc import Mapping

__all__ = ["Notice"]

_NS_PER_S = 1_000_000_000

# So often they are repeated, in rows that are written anyway: a chart of them is no single dot.
_REPEAT_NS = 10 * _NS_PER_S

# So long a change waits for a row that is written anyway. Workers that start together make one row.
_PATIENCE_NS = 5 * _NS_PER_S


class Notice:
    """Remembers what was written. Can be pickled."""

    def __init__(self) -> None:
        self._told: Mapping[str, float] = {}
        self._told_ns = 0
        self._changed_ns: int | None = None

    def needs_a_row(
        self, values: Mapping[str, float], now_ns: int, *, everything: bool = False
    ) -> bool:
        """Whether ``values`` have changed and waited long enough.

        Args:
            values: As they are now.
            now_ns: As at every call.
            everything: Nothing is worth waiting for any more.
        """
        if values == self._told:
            self._changed_ns = None
            return False
        if self._changed_ns is None or self._changed_ns > now_ns:
            self._changed_ns = now_ns
        return everything or now_ns - self._changed_ns >= _PATIENCE_NS

    def take(self, values: Mapping[str, float], now_ns: int) -> Mapping[str, float]:
        """What of ``values`` belongs into a row that is written now: all of them, or nothing."""
        if values == self._told and 0 <= now_ns - self._told_ns < _REPEAT_NS:
            return {}
        self._told, self._told_ns, self._changed_ns = values, now_ns, None
        return values
