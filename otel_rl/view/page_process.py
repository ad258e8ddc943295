"""The page of a bridge: read in a process of its own, ``python -m otel_rl.view.page_process``.

Reading a history takes seconds of an interpreter that would otherwise take requests, and memory
that a bridge should not keep. So the bridge hands questions over a socket, one at a time, and sends
the answers on. The process begins with the first question, has a low priority, ends after some
minutes without one, and ends when the bridge does: its end of the socket is then closed.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Final, TypeAlias

import orjson
from starlette.routing import BaseRoute

from otel_rl.bridge.config import BridgeSettings, Readers
from otel_rl.bridge.diagnosis.process import reading_environment
from otel_rl.bridge.receive.tokens import Grant
from otel_rl.errors import OtelRLError
from otel_rl.redaction import shown
from otel_rl.view.access import Access
from otel_rl.view.app import PageRoutes, again
from otel_rl.view.pages import Answer, Pages, Question
from otel_rl.view.report_jobs import ReportJobs

__all__ = ["BridgePage", "main"]

_log = logging.getLogger(__name__)

_IDLE_S: Final = 300.0
_ANSWER_S: Final = 60.0
_MAX_WAITING: Final = 64
_NICENESS: Final = 10

_LOG_EVERY_S: Final = 60.0  # an open page asks every second

_Channel: TypeAlias = "Connection[bytes, bytes]"


class BridgePage:
    """Page of one bridge. Requests come from the event loop of its server.

    Args:
        settings: Of the bridge.
    """

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self._count_failure: Callable[[], None] = lambda: None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: _Channel | None = None
        # One thread owns the process and the channel.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="otel-rl-view")
        self._waiting = 0
        self._is_over = False
        self._next_log_s = 0.0
        self._routes: PageRoutes | None = None

    def routes(
        self,
        grant: Callable[[str | None], Grant | None],
        *,
        wants_token: bool,
        host: str,
        count_failure: Callable[[], None],
    ) -> Sequence[BaseRoute]:
        """Return the routes for the server of a bridge, see ``Page``."""
        self._count_failure = count_failure
        is_behind_proxy = self._settings.view.readers is Readers.BEHIND_PROXY
        access = Access(grant, wants_token, host, is_behind_proxy)
        self._routes = PageRoutes(self._ask, access, again(self._settings))
        return self._routes.routes()

    def stop(self) -> None:
        """End open streams and the process. Any thread may call it; idempotent."""
        if self._routes is not None:
            self._routes.stop()
        self._is_over = True
        process = self._process
        if process is not None:
            process.kill()  # the thread may be waiting for an answer
        with contextlib.suppress(RuntimeError):  # it was stopped before
            self._thread.submit(self._end)
        self._thread.shutdown()

    async def _ask(self, question: Question) -> Answer:
        if self._is_over or self._waiting >= _MAX_WAITING:
            words = "The bridge is stopping." if self._is_over else "Too many pages are open."
            return Answer(503, orjson.dumps({"error": words}))
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._answer, question
            )
        finally:
            self._waiting -= 1

    def _answer(self, question: Question) -> Answer:
        try:
            if self._channel is None or self._channel.poll():  # it says nothing unasked but its end
                self._end()
                self._channel = self._start()
            self._channel.send_bytes(orjson.dumps([*question]))
            if self._channel.poll(_ANSWER_S):
                status, media, encoding = orjson.loads(self._channel.recv_bytes())
                body = self._channel.recv_bytes()
                if status == 500:  # which the process has logged
                    self._count_failure()
                return Answer(status, body, media, encoding)
            problem = f"It did not answer in {_ANSWER_S:.0f} s."
        except (EOFError, OSError) as exc:
            problem = f"It has ended ({type(exc).__name__})."
        self._end()
        if self._is_over:
            return Answer(503, orjson.dumps({"error": "The bridge is stopping."}))
        self._count_failure()
        if time.monotonic() >= self._next_log_s:
            self._next_log_s = time.monotonic() + _LOG_EVERY_S
            _log.warning("The process that reads the page failed: %s", problem)
        return Answer(503, orjson.dumps({"error": f"The page could not be read. {problem}"}))

    def _start(self) -> _Channel:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [sys.executable, "-P", "-m", "otel_rl.view.page_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=reading_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Signals of the terminal go to the bridge alone.
                start_new_session=True,
            )
        channel: _Channel = Connection(ours.detach())
        channel.send_bytes(orjson.dumps(_handed_over(self._settings)))
        return channel

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _handed_over(settings: BridgeSettings) -> dict[str, object]:
    """Return the settings that the process needs: no token, but the URL of the database."""
    url = settings.journal.url
    return {
        "data": str(settings.data),
        "journal": {
            "url": None if url is None else url.get_secret_value(),
            "max_bytes": settings.journal.max_bytes,
        },
        "rows": {"max_series": settings.rows.max_series, "trace_url": settings.rows.trace_url},
    }


def main(descriptor: int) -> None:
    """Answer questions on a socket until its other end is closed, or it is idle for too long."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bridge ends it
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    channel: _Channel = Connection(descriptor)
    with contextlib.suppress(EOFError, ConnectionError):
        settings = BridgeSettings.model_validate(orjson.loads(channel.recv_bytes()))
        jobs: ReportJobs | None = None
        while channel.poll(_IDLE_S):
            path, query, experiments = orjson.loads(channel.recv_bytes())
            try:
                jobs = jobs or ReportJobs(Pages(settings))
            except OtelRLError as exc:  # of the shared database; the next question tries again
                answer = Answer(503, orjson.dumps({"error": shown(str(exc))}))
            else:
                answer = jobs.answer(Question(path, query, experiments))
            channel.send_bytes(orjson.dumps([answer.status, answer.media, answer.encoding]))
            channel.send_bytes(answer.body)


if __name__ == "__main__":
    main(int(sys.argv[1]))
