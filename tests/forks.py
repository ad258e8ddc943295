"""Help for tests that fork."""

import faulthandler
import signal

__all__ = ["end_if_it_hangs"]


def end_if_it_hangs(after_s: int = 120) -> None:
    """Print the stack and end this forked child by SIGALRM after ``after_s``.

    Unlike a thread of ``faulthandler``, it works in a child that has forked from such a child.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(after_s)
