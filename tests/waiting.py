"""Waiting for what another thread or process does, in place of sleeping."""

import time
from collections.abc import Callable

__all__ = ["wait_until"]

_LOOK_S = 0.02


def wait_until(
    condition: Callable[[], object], what: str = "the condition", *, timeout_s: float
) -> None:
    """Look until ``condition`` holds; fail once the time is up.

    Args:
        condition: Looked at again and again.
        what: Is waited for.
        timeout_s: Far beyond what it takes on a busy machine.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(_LOOK_S)
