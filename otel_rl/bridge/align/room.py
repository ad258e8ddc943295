"""How much may be taken out at a time, so that nobody waits for one experiment's rows for long."""

import math
from dataclasses import dataclass

__all__ = ["Room"]


@dataclass(slots=True)
class Room:
    """Room for values.

    Attributes:
        values: For about so many more.
        is_used_up: Whether something did not find room.
    """

    values: float = math.inf
    is_used_up: bool = False

    def take(self, values: int) -> bool:
        """Whether there is room for something, which is then taken: for at least one always."""
        if self.values <= 0:
            self.is_used_up = True
            return False
        self.values -= values
        return True
