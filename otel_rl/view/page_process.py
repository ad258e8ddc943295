"""The page of a bridge: read in a process of its own, see ``reader``.

Reading a history takes seconds of an interpreter that would otherwise take requests, and memory
that a bridge should not keep.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import orjson
from starlette.routing import BaseRoute

from otel_rl.bridge.child_process import ChildProcess, ProcessEnded
from otel_rl.bridge.config import BridgeSettings, Readers
from otel_rl.bridge.receive.audit import Audit
from otel_rl.bridge.receive.tokens import Grant
from otel_rl.view.access import Access
from otel_rl.view.app import PageRoutes, again
from otel_rl.view.questions import SETTINGS, Answer, Question

_log = logging.getLogger(__name__)

_ANSWER_S: Final = 60.0
_MAX_WAITING: Final = 64

_LOG_EVERY_S: Final = 60.0  # an open page asks every second


class BridgePage:
    """Page of one bridge. Requests come from the event loop of its server.

    Args:
        settings: Of the bridge.
    """

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self._count_failure: Callable[[], None] = lambda: None
        handed_over = {SETTINGS: orjson.dumps(_handed_over(settings)).decode()}
        self._process = ChildProcess("otel_rl.view.reader", environment=handed_over)
        # One thread asks the process.
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
        audit = Audit(is_on=self._settings.audit)
        access = Access(grant, wants_token, host, is_behind_proxy, audit)
        self._routes = PageRoutes(self._ask, access, again(self._settings))
        return self._routes.routes()

    def stop(self) -> None:
        """End open streams and the process. Any thread may call it; idempotent."""
        if self._routes is not None:
            self._routes.stop()
        self._is_over = True
        self._process.kill()  # the thread may be waiting for an answer
        with contextlib.suppress(RuntimeError):  # it was stopped before
            self._thread.submit(self._process.end)
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
            told = self._process.answer(orjson.dumps([*question]), _ANSWER_S)
        except (ProcessEnded, OSError) as exc:  # or it took too long, or cannot be started
            return self._unanswered(str(exc))
        head, _, body = told.partition(b"\n")
        status, media, encoding = orjson.loads(head)
        if status == 500:  # which the process has logged
            self._count_failure()
        return Answer(status, body, media, encoding)

    def _unanswered(self, problem: str) -> Answer:
        if self._is_over:
            return Answer(503, orjson.dumps({"error": "The bridge is stopping."}))
        self._count_failure()
        if time.monotonic() >= self._next_log_s:
            self._next_log_s = time.monotonic() + _LOG_EVERY_S
            _log.warning("The process that reads the page failed: %s", problem)
        return Answer(503, orjson.dumps({"error": f"The page could not be read: {problem}."}))


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
