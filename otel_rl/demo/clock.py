"""Wall clock with an offset, for a process started through :func:`run`.

Python's clocks are replaced before any other import, so the offset applies to every timestamp of
the process. Monotonic clocks are right, as on a real host.
"""

import runpy
import time

_ahead_ns = 0
_true_time_ns = time.time_ns


def set_ahead(seconds: float) -> None:
    """Set the offset of the clock, in seconds; negative is behind."""
    global _ahead_ns  # one wall clock per process
    _ahead_ns = int(seconds * 1e9)


def install() -> None:
    """Replace the wall clock of :mod:`time` in this process."""
    time.time_ns = _time_ns
    time.time = _time


def run(module: str) -> None:
    """Run a module as the main program, with this clock."""
    install()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def launch_code(module: str) -> str:
    """Return the code for ``python -c`` that runs ``module`` with this clock."""
    return f"from otel_rl.demo import clock; clock.run({module!r})"


def _time_ns() -> int:
    return _true_time_ns() + _ahead_ns


def _time() -> float:
    return _time_ns() / 1e9
