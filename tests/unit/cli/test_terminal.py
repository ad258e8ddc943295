"""The line of a long command on a terminal, and the live line of a terminal that goes away."""

import io
import logging
import os
import threading
from contextlib import redirect_stderr

import pytest

from otel_rl.cli.standard_streams import Formatter, say
from otel_rl.cli.terminal import LiveLine, counted, progress
from tests.support.waiting import wait_until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_a_terminal_shows_what_is_done_and_how_much_and_then_nothing(terminal: Terminal) -> None:
    with redirect_stderr(terminal), progress("looking") as news:
        for item in counted(range(1_000), "reading", news):
            if item == 500:
                wait_until(
                    lambda: "otel-rl: reading, 45%" in terminal.getvalue(), "the line", timeout_s=60
                )
    assert terminal.getvalue().endswith("\x1b[2K")


def test_a_line_that_is_said_meanwhile_is_written_at_once_with_its_end(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the live line may come between, and erase it."""
    written: list[str] = []
    monkeypatch.setattr(terminal, "write", written.append)
    with redirect_stderr(terminal):
        say("3 damaged parts of the spans are left out")
    assert written == ["\r\x1b[Kotel-rl: 3 damaged parts of the spans are left out\n"]


def test_a_warning_takes_the_place_of_a_live_line(terminal: Terminal) -> None:
    record = logging.LogRecord("bridge", logging.WARNING, "", 1, "generator/1 has gone", (), None)
    with redirect_stderr(terminal):
        assert Formatter().format(record) == "\r\x1b[Kgenerator/1 has gone"
    with redirect_stderr(io.StringIO()):
        assert Formatter().format(record) == "generator/1 has gone"


def test_an_error_leaves_no_line(terminal: Terminal) -> None:
    def fail() -> None:
        with redirect_stderr(terminal), progress("looking"):
            wait_until(lambda: "looking" in terminal.getvalue(), "the line", timeout_s=60)
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        fail()
    assert terminal.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize("term", ["xterm", "dumb", ""])
def test_files_and_dumb_terminals_get_nothing(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    stream = io.StringIO() if term == "xterm" else Terminal()
    with redirect_stderr(stream), progress("looking") as news:
        news("reading")
    assert stream.getvalue() == ""


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
