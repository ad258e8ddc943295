"""A wall clock that can be wrong, for a process that is started by way of :func:`run`.

Python's own clocks are replaced before anything else is imported, so all that the process ever
dates is dated wrong. Monotonic clocks are right, as they are on a real host.
"""

import runpy
import time

__all__ = ["install", "launch_code", "run", "set_ahead"]

_ahead_ns = 0
_true_time_ns = time.time_ns


def set_ahead(seconds: float) -> None:
    """From now on the clock is ahead of the true time by this; negative is behind."""
    global _ahead_ns  # there is one wall clock
    _ahead_ns = int(seconds * 1e9)


def install() -> None:
    """Make this the clock of the process, for all that asks :mod:`time` from now on."""
    time.time_ns = _time_ns
    time.time = _time


def run(module: str) -> None:
    """Run a module as the main program, by this clock."""
    install()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def launch_code(module: str) -> str:
    """For ``python -c``: what runs ``module`` so."""
    return f"from otel_rl.demo import wall_clock; wall_clock.run({module!r})"


def _time_ns() -> int:
    return _true_time_ns() + _ahead_ns


def _time() -> float:
    return _time_ns() / 1e9
