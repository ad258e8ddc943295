"""Turn of a run: it takes batches, then closes rows, until other runs have theirs."""

import math
from collections.abc import Callable


class Turn:
    """Slice of time that is over between two parts of the work, never before the first one.

    Args:
        part: Approximate number of points that are taken, or of values that become rows, before a
            look at the clock.
        at_most: Approximate number of values that become rows.
        is_over: Whether the time is over.

    Attributes:
        has_rest: Whether complete rows were left.
    """

    def __init__(
        self,
        part: float = math.inf,
        at_most: float = math.inf,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.part = part
        self.is_over = is_over
        self.has_rest = False
        self._at_most = at_most
        self._made = 0
        self._look_at = part

    def made(self, values: int) -> None:
        """Count values that became rows."""
        self._made += values

    def leaves_rest(self) -> bool:
        """Return whether a complete row is left to the next turn. Call it if there is one."""
        if self._made >= self._look_at and not self.has_rest:
            self.has_rest = self._made >= self._at_most or self.is_over()
            self._look_at = self._made + self.part
        return self.has_rest
