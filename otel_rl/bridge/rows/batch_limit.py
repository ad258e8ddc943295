"""Bound on the values taken out at a time, so that one experiment does not delay the others."""

import math
from dataclasses import dataclass

__all__ = ["BatchLimit"]


@dataclass(slots=True)
class BatchLimit:
    """Room for values.

    Attributes:
        values: Approximate number of further values.
        is_used_up: Whether an item found no room.
    """

    values: float = math.inf
    is_used_up: bool = False

    def take(self, values: int) -> bool:
        """Take room for values. Returns whether there was any; the first call always succeeds."""
        if self.values <= 0:
            self.is_used_up = True
            return False
        self.values -= values
        return True
