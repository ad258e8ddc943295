"""Peak matrix multiplication rate of this process, the reference of the utilisation."""

import time

import numpy as np

__all__ = ["peak_flops_per_s"]

SIDE = 256
ROUNDS = 8


def peak_flops_per_s() -> float:
    """Return the best of a few float32 matrix products, in floating-point operations per second.

    The best round is the one least disturbed by other processes.
    """
    left = np.ones((SIDE, SIDE), np.float32)
    best_s = float("inf")
    for _ in range(ROUNDS):
        begun_s = time.perf_counter()
        left @ left
        best_s = min(best_s, time.perf_counter() - begun_s)
    return 2 * SIDE**3 / best_s
