"""The live line of a terminal that goes away."""

import os
import threading

import pytest

from otel_rl.cli.terminal.live_line import LiveLine


def test_a_terminal_that_goes_away_ends_the_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    ours, theirs = os.openpty()
    asked = threading.Event()

    def text() -> str:
        if not asked.is_set():
            os.close(ours)
            asked.set()
        return "step 1"

    with os.fdopen(theirs, "w") as stream, LiveLine(stream, text, every_s=0):
        assert asked.wait(60)
    assert raised == []
