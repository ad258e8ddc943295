"""Shares of right answers, and how far few cases can be trusted."""

import math
from typing import Final

_Z: Final = 1.96


def wilson(right: int, n: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share, after Wilson."""
    if not n:
        return 0.0, 1.0
    share, z2 = right / n, _Z * _Z
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)
