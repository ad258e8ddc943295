"""Waiting for what another thread or process does, in place of sleeping."""

import gc
import threading
import time
from collections.abc import Callable

_LOOK_S = 0.02


def wait_until(
    condition: Callable[[], object],
    what: str = "the condition",
    *,
    timeout_s: float,
    look_s: float = _LOOK_S,
) -> None:
    """Look until ``condition`` holds; fail once the time is up.

    Args:
        condition: Looked at again and again.
        what: Is waited for.
        timeout_s: Far beyond what it takes on a busy machine.
        look_s: Between two looks; longer where a look costs a program work.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(look_s)


def collect_garbage() -> None:
    """Collect all garbage: ``gc.collect`` does nothing while another thread collects."""
    here = threading.get_ident()
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and threading.get_ident() == here:
            collected.append(info["generation"])

    def is_collected() -> bool:
        gc.collect()
        return 2 in collected

    gc.callbacks.append(note)
    try:
        wait_until(is_collected, "a full collection in this thread", timeout_s=60)
    finally:
        gc.callbacks.remove(note)
