"""Forks of the process of the test runner."""

# First of all: a child whose parent made an SDK's MeterProvider before this import waits for ever
# for the lock of this module.
import concurrent.futures.thread  # noqa: F401
import faulthandler
import gc
import os
import signal
import traceback
from collections.abc import Callable

_MOST_S = 120


def forked(child: Callable[[], object]) -> int:
    """Call ``child`` in a forked child, and return its exit status: 0 if the call returns.

    A child never comes back into the test runner. One that hangs prints its stack and ends.
    """
    pid = os.fork()
    if pid == 0:
        try:
            _end_if_it_hangs()
            # What other tests left may wait, at its end, for threads that only the parent has.
            gc.freeze()
            child()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # it ends here, whatever it is
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _end_if_it_hangs() -> None:
    """Set a signal: a thread of ``faulthandler`` hangs itself in a child of a child."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(_MOST_S)
