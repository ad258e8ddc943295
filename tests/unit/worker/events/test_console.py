# ruff: noqa: T201  # what is tested is the console
"""What a process writes to its console is copied, and the console is as it was."""

import contextlib
import io
import logging
import multiprocessing
import sys
from typing import Self

import pytest

import otel_rl
from otel_rl.errors import ConfigError
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.events.console import (
    BURST_CHARS,
    MAX_LINE_CHARS,
    MAX_WAITING_CHARS,
    RATE_CHARS,
    Console,
)
from otel_rl.worker.guard import Guard
from tests.support.otlp_sink import Sink, serve


class Bench:
    """A console with a clock that tests move by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.drops = Drops()
        self.console = Console(Guard(self.drops), lambda: self.now_s)

    def lines(self, *, is_last: bool = False) -> list[tuple[object, str]]:
        events = self.console.take(is_last=is_last)
        return [
            (event.attributes["log.iostream"], line)
            for event in events
            for line in str(event.body).split("\n")
        ]

    @property
    def dropped(self) -> int:
        return self.drops.counts().get(DropReason.CONSOLE, 0)


class Terminal(Bench):
    """A bench whose console copies two streams, which are the process's within ``with``."""

    def __init__(self, count: int | None = None) -> None:
        super().__init__()
        self.out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        self.err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        self._count = count
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        # Not by a fixture: pytest sets the streams anew for each part of a test.
        self._stack.enter_context(contextlib.redirect_stdout(self.out))
        self._stack.enter_context(contextlib.redirect_stderr(self.err))
        self.console.start(self, self._count)
        self._stack.callback(self.console.stop, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.fixture
def bench() -> Terminal:
    return Terminal()


def written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


def test_both_streams_are_copied_in_order_and_still_written(bench: Terminal) -> None:
    with bench:
        print("a", 1)
        print("oops", file=sys.stderr)
        sys.stdout.writelines(["b\n", "c"])
        assert bench.lines() == [("stdout", "a 1"), ("stderr", "oops"), ("stdout", "b")]
        print()
        assert bench.lines() == [("stdout", "c")]
        assert [written(stream) for stream in (bench.out, bench.err)] == ["a 1\nb\nc\n", "oops\n"]


def test_the_stream_stays_what_it_was(bench: Terminal) -> None:
    with bench:
        assert (sys.stdout, sys.stderr) == (bench.out, bench.err)
        assert type(sys.stdout) is io.TextIOWrapper
        assert sys.stdout.encoding == "utf-8"
        assert not sys.stdout.isatty()
        assert sys.stdout.write("abc") == 3
        with pytest.raises(TypeError):
            sys.stdout.write(1)  # type: ignore[arg-type]  # as a program does by mistake
        sys.stdout.buffer.write(b"raw")
        with contextlib.redirect_stdout(io.StringIO()) as elsewhere:
            print("redirected")
        assert elsewhere.getvalue() == "redirected\n"
        bench.console.stop(bench)
        assert "write" not in vars(sys.stdout)


def test_a_handler_that_has_the_stream_from_before_is_heard(bench: Terminal) -> None:
    handler = logging.StreamHandler(bench.err)
    with bench:
        handler.emit(logging.LogRecord("x", logging.INFO, "", 0, "step %d", (7,), None))
        assert bench.lines() == [("stderr", "step 7")]


def test_a_stream_that_cannot_be_copied_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed:
        __slots__ = ("text",)

        def write(self, text: str) -> None:
            self.text = text

    fixed = Fixed()
    monkeypatch.setattr(sys, "stdout", fixed)
    monkeypatch.setattr(sys, "stderr", None)
    bench = Bench()
    bench.console.start(bench)
    fixed.write("x\n")
    assert bench.lines(is_last=True) == []
    bench.console.stop(bench)


def test_a_progress_bar_is_its_last_state(bench: Terminal) -> None:
    with bench:
        for percent in range(0, 101, 10):
            sys.stderr.write(f"\r\x1b[32m{percent}%\x1b[0m")
        assert bench.lines() == []
        sys.stderr.write("\n")
        print("windows\r")
        sys.stdout.write("old\rnew\n")
        assert bench.lines() == [("stderr", "100%"), ("stdout", "windows"), ("stdout", "new")]


def test_an_unfinished_line_comes_with_the_end(bench: Terminal) -> None:
    with bench:
        print("working...", end="")
        assert bench.lines() == []
        assert bench.lines(is_last=True) == [("stdout", "working...")]


def test_secrets_are_masked(bench: Terminal) -> None:
    with bench:
        print(
            "api_key = abc123\nhttps://me:pw@host/x\nmax_tokens: 5\nAuthorization: Bearer abcdefgh1"
        )
        texts = "\n".join(line for _, line in bench.lines())
        assert "abc123" not in texts
        assert "pw@" not in texts
        assert "abcdefgh1" not in texts
        assert "max_tokens: 5" in texts


def test_lines_over_the_rate_are_counted_and_the_gap_is_told(bench: Terminal) -> None:
    with bench:
        line = "x" * 999
        most = BURST_CHARS // 1000
        for _ in range(most + 10):
            print(line)
        lines = bench.lines()
        assert [text for _, text in lines[:-1]] == [line] * most
        assert "10 lines of stdout left out" in lines[-1][1]
        assert bench.dropped == 10
        bench.now_s += 2
        for _ in range(100):
            print(line)
        # 536 were left of the burst.
        assert len(bench.lines()) == (2 * RATE_CHARS + 536) // 1000 + 1
        print("the end", file=sys.stderr)
        print("z" * 3000)
        assert [text for _, text in bench.lines(is_last=True)] == ["the end", "z" * 3000]


def test_memory_is_bounded_between_two_exports(bench: Terminal) -> None:
    with bench:
        for _ in range(5):
            sys.stdout.write("y" * (MAX_WAITING_CHARS // 4))
        lines = bench.lines()
        assert all(len(text) <= MAX_LINE_CHARS for _, text in lines[:-1])
        assert f"{2 * (MAX_WAITING_CHARS // 4)} characters left out" in lines[-1][1]


def test_a_large_role_shares_its_rate() -> None:
    with Terminal(count=1024) as bench:
        for _ in range(BURST_CHARS // 1000 + 10):
            print("x" * 999)
        bench.lines()
        bench.now_s += 10  # 256 characters a second, and 536 are left of the burst
        for _ in range(10):
            print("x" * 999)
        assert len(bench.lines()) == 3 + 1


def test_a_forked_child_does_not_send_what_its_parent_wrote(bench: Terminal) -> None:
    with bench:
        print("of the parent")
        bench.console.forget()
        print("of the child")
        assert bench.lines() == [("stdout", "of the child")]


def test_a_worker_sends_its_console_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, clean_environment: None
) -> None:
    monkeypatch.setenv("OTEL_RL_CONSOLE", "on")
    with (
        contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())),
        contextlib.redirect_stderr(io.TextIOWrapper(io.BytesIO())),
        serve(Sink()) as sink,
    ):
        otel_rl.init(experiment="exp", role="trainer", endpoint=sink.url, export_interval_s=60)
        otel_rl.log({"loss": 1.0}, step=1)
        print("hello")
        assert otel_rl.flush(timeout_s=60)
        print("bye", end="", file=sys.stderr)
        assert otel_rl.finish(timeout_s=60)
        events = sink.events("rl.worker.console")
        assert [(event.attributes["log.iostream"], event.body) for event in events] == [
            ("stdout", "hello"),
            ("stderr", "bye"),
        ]
        assert sink.events()[-1].name == "rl.worker.end"
        assert "write" not in vars(sys.stdout)


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> None:
    monkeypatch.setenv("OTEL_RL_CONSOLE", "perhaps")
    with pytest.raises(ConfigError, match="OTEL_RL_CONSOLE: must be on or off"):
        otel_rl.init(experiment="exp", role="trainer")


def test_the_exception_that_ends_a_child_is_told_as_the_child_prints_it() -> None:
    terminal, told = Terminal(), list[BaseException | None]()
    with terminal:
        terminal.console.start("owner", None, told.append)
        for name in ("another", multiprocessing.current_process().name):
            try:
                raise ValueError(name)
            except ValueError:
                sys.stderr.write(f"Process {name}:\n")  # as multiprocessing does
    assert list(map(str, told)) == [multiprocessing.current_process().name]
