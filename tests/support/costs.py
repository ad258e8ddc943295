"""How the cost of something grows, in CPU time of this process, whatever else the machine does."""

import gc
import math
import time
from collections.abc import Callable

_ATTEMPTS = 8


def cost_ratio(work_of: Callable[[int], Callable[[], object]], size: int, *, most: float) -> float:
    """How many times as much four times the size costs.

    What is linear costs four times as much, a square sixteen times. What comes out under ``most``
    is seldom measured twice.

    Args:
        work_of: Gives the work of a size; what it does to prepare it does not count.
        size: The smaller one.
        most: What is aimed at.
    """
    least = {size: math.inf, 4 * size: math.inf}
    found = math.inf
    for _ in range(_ATTEMPTS):
        for n in least:
            work = work_of(n)
            gc.collect()  # what others have left is not paid for here
            begun_s = time.process_time()
            work()
            least[n] = min(least[n], time.process_time() - begun_s)
        found = least[4 * size] / least[size]
        if found < most:
            break
    return found
