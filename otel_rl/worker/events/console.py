"""Copies the lines that this process writes to ``sys.stdout`` and ``sys.stderr``, for the run.

    print, logging, tracebacks -> stream.write -> chunks --exporter--> lines -> limits -> events

Only the method ``write`` of the two streams is replaced, on the objects themselves: they keep their
type, file descriptor, encoding and ``isatty``, and output of handlers that hold them is included.
The text is written first, then copied. Lines are made on the exporter thread.
Output that bypasses these objects is not seen: other processes, C libraries, ``os.write``.
"""

import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, time_ns
from typing import Any, Final

from otel_rl.redaction import printable
from otel_rl.semconv.names import LOG_IOSTREAM, RL_WORKER_CONSOLE
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.masking import masked_lines
from otel_rl.worker.events.queue import Event
from otel_rl.worker.guard import Guard

_STREAMS: Final = ("stdout", "stderr")

MAX_WAITING_CHARS: Final = 1 << 20
"""Written between two exports, over both streams, with some for each call of ``write``."""

_CALL_CHARS: Final = 64

MAX_LINE_CHARS: Final = 3_900
"""With the worker's name below 4,096, where W&B cuts a line."""

_MAX_EVENT_CHARS: Final = 16_384

BURST_CHARS: Final = 64 << 10
"""Characters of each stream at once: a start-up or a traceback."""

RATE_CHARS: Final = 8 << 10
"""Characters of each stream in a second, in the long run."""

ROLE_RATE_CHARS: Final = 256 << 10
"""Characters of all workers of a role in a second, if the number of the workers is known."""

TOTAL_CHARS: Final = 16 << 20
"""Characters of each stream, apart from what is written last."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


@dataclass(slots=True)
class _Stream:
    """One of the two streams: its unfinished line, and its remaining budget."""

    name: str
    partial: str = ""
    room: float = BURST_CHARS
    left: int = TOTAL_CHARS
    dropped: int = 0


@dataclass(slots=True)
class _Text:
    stream: str
    time_ns: int
    chars: int = 0
    lines: list[str] = field(default_factory=list)


class Console:
    """Copy of this process's console. It never raises into the program.

    Any thread may write; one thread calls ``take``.
    """

    def __init__(self, guard: Guard, clock_s: Callable[[], float] = monotonic) -> None:
        self._guard = guard
        self._clock_s = clock_s
        # Replaced methods, by stream. The names of the streams as they were at that time.
        self._replaced: list[tuple[Any, object]] = []
        self._is_on = False
        self.owner: object = None
        self._note: Callable[[BaseException | None], None] = lambda _error: None
        self._rate = float(RATE_CHARS)
        self.forget()

    def forget(self) -> None:
        """Reset in a forked child, because the parent sends what it wrote."""
        # _lock guards the three below. Re-entrant, so that a signal handler may write.
        self._lock = threading.RLock()
        self._chunks: list[tuple[str, int, str]] = []
        self._waiting_chars = 0
        self._lost_chars = 0
        # Of the thread that takes.
        self._streams = {name: _Stream(name) for name in _STREAMS}
        self._refilled_s = self._clock_s()

    def start(
        self,
        owner: object,
        count: int | None = None,
        note: Callable[[BaseException | None], None] = lambda _error: None,
    ) -> None:
        """Begin to copy the output of the present streams.

        Args:
            owner: Owner of the copy; an earlier owner cannot stop the copy any more.
            count: Number of workers of the role, if it is known.
            note: Called with the exception that ends a child of ``multiprocessing``, as the child
                prints it. From Python 3.13 on nothing else tells of the exception: the child has
                forgotten it when its finalizers run.
        """
        self.owner, self._note = owner, note
        self._rate = min(RATE_CHARS, ROLE_RATE_CHARS / max(1, count or 1))
        self._is_on = True
        replaced = [stream for stream, _ in self._replaced]
        for name in _STREAMS:
            stream = getattr(sys, name, None)
            if stream is not None and not any(stream is one for one in replaced):
                self._replace(name, stream)

    def stop(self, owner: object) -> None:
        """Give the streams their own method back, if ``owner`` still owns the copy."""
        if self.owner is not owner:
            return
        self._is_on = False
        for stream, copy in self._replaced:
            # The program may have replaced our method since: then ours stays, and copies nothing.
            if getattr(stream, "__dict__", {}).get("write") is copy:
                del stream.write
        self._replaced.clear()
        with self._lock:
            self._chunks, self._waiting_chars, self._lost_chars = [], 0, 0

    def take(self, *, is_last: bool) -> list[Event]:
        """Return the lines since the last call as events.

        Args:
            is_last: Whether the process ends: then unfinished lines are returned, too, and the end
                of the console is worth a burst of its own.
        """
        with self._lock:
            chunks, self._chunks, self._waiting_chars = self._chunks, [], 0
            lost, self._lost_chars = self._lost_chars, 0
        self._refill(is_last=is_last)
        texts: list[_Text] = []
        for name, when_ns, chunk in chunks:
            self._split(self._streams[name], chunk, when_ns, texts)
        for stream in self._streams.values():
            if is_last and stream.partial:
                self._keep(stream, stream.partial, time_ns(), texts)
                stream.partial = ""
            if stream.dropped:
                _report_drops(stream.name, f"{stream.dropped} lines of {stream.name}", texts)
                self._guard.drops.add(DropReason.CONSOLE, stream.dropped)
                stream.dropped = 0
        if lost:
            _report_drops("stderr", f"{lost} characters", texts)
            self._guard.drops.add(DropReason.CONSOLE)
        return [_event(text) for text in texts]

    def _replace(self, name: str, stream: Any) -> None:  # whatever the program has put there
        write = stream.write

        def copy(*texts: Any, **others: Any) -> Any:
            written = write(*texts, **others)
            if self._is_on and texts and isinstance(texts[0], str):
                if texts[0].startswith("Process ") and _is_about_this_process(texts[0]):
                    self._note(sys.exception())
                self._add(name, texts[0])
            return written

        try:
            stream.write = copy
        except (AttributeError, TypeError):
            return  # a type of the program's own that does not allow it
        self._replaced.append((stream, copy))

    def _add(self, name: str, text: str) -> None:
        if not text:
            return
        with self._lock:
            size = len(text) + _CALL_CHARS
            if self._waiting_chars + size > MAX_WAITING_CHARS:
                self._lost_chars += len(text)
            else:
                self._waiting_chars += size
                self._chunks.append((name, time_ns(), text))

    def _refill(self, *, is_last: bool) -> None:
        now_s = self._clock_s()
        gained = (now_s - self._refilled_s) * self._rate
        self._refilled_s = now_s
        for stream in self._streams.values():
            stream.room = min(BURST_CHARS, stream.room + max(0.0, gained))
            if is_last:
                stream.room, stream.left = BURST_CHARS, max(stream.left, BURST_CHARS)

    def _split(self, stream: _Stream, chunk: str, when_ns: int, texts: list[_Text]) -> None:
        *lines, rest = (stream.partial + chunk).split("\n")
        for line in lines:
            self._keep(stream, line, when_ns, texts)
        # A progress bar writes its line again after each carriage return.
        last = rest.rfind("\r", 0, len(rest.rstrip("\r")))
        rest = rest[last + 1 :]
        while len(rest) > MAX_LINE_CHARS:
            self._keep(stream, rest[:MAX_LINE_CHARS], when_ns, texts)
            rest = rest[MAX_LINE_CHARS:]
        stream.partial = rest

    def _keep(self, stream: _Stream, line: str, when_ns: int, texts: list[_Text]) -> None:
        size = min(len(line), MAX_LINE_CHARS) + 1
        if size > stream.room or size > stream.left:
            stream.dropped += 1
            return
        line = _visible(line)
        stream.room -= size
        stream.left -= size
        last = texts[-1] if texts else None
        if last is None or last.stream != stream.name or last.chars + size > _MAX_EVENT_CHARS:
            last = _Text(stream.name, when_ns)
            texts.append(last)
        last.time_ns = when_ns
        last.chars += size
        last.lines.append(line)


def _is_about_this_process(text: str) -> bool:
    """Return whether ``multiprocessing`` writes a line that precedes its child's traceback."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and text == f"Process {process.current_process().name}:\n"


def _report_drops(stream: str, what: str, texts: list[_Text]) -> None:
    line = f"[otel_rl: {what} left out, over the limits of a worker]"
    texts.append(_Text(stream, time_ns(), len(line), [line]))


def _visible(line: str) -> str:
    """Return the final state of a line as a terminal shows it."""
    line = line.rstrip("\r").rpartition("\r")[2]
    if not line.isprintable():
        line = printable(_ESCAPE.sub("", line), keep="\t")
    if len(line) > MAX_LINE_CHARS:
        line = f"{line[:MAX_LINE_CHARS]}[... {len(line) - MAX_LINE_CHARS} characters cut]"
    return line


def _event(text: _Text) -> Event:
    body = masked_lines("\n".join(text.lines))
    return Event(RL_WORKER_CONSOLE, text.time_ns, {LOG_IOSTREAM: text.stream}, body)
