"""Tells a web address what a run's diagnosis has found, and of a crash: ``[notify]``.

Each piece of news is one request: a message as Slack and similar services take it, ``{"text":
"..."}``, or JSON with the parts. The same news of a run is sent again only after a while, however
often a fault comes and goes. A message is repeated until its receiver has taken it, for ten
minutes; news that wait when the bridge is killed are lost.
"""

import contextlib
import http.client
import json
import logging
import math
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, SecretStr, field_validator

from otel_rl.bridge.counters import Counter, Counters, Notification
from otel_rl.bridge.receive.tls import listens_on_loopback
from otel_rl.bridge.rows.messages import News
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.setting_types import Seconds, Section
from otel_rl.version import __version__

_log = logging.getLogger(__name__)

_MOST_WAITING: Final = 256
_TIMEOUT_S: Final = 10.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_GIVE_UP_S: Final = 600.0
_STOP_S: Final = 5.0

_TRY_AGAIN: Final = frozenset({408, 425, 429})  # and all from 500 on


class Format(StrEnum):
    """Format of a message."""

    AUTO = "auto"
    SLACK = "slack"
    JSON = "json"


class NotifySettings(Section):
    """Settings of messages to a webhook about findings of a diagnosis, and about crashes."""

    url: SecretStr | None = None
    """Address to which each message is sent by POST, such as an incoming webhook of Slack. Unset:
    nothing is sent."""

    format: Format = Format.AUTO
    """``slack``: ``{"text": ...}``, which Slack, Mattermost and others take. ``json``: the parts.
    ``auto``: ``slack`` at ``hooks.slack.com``, else ``json``."""

    every_s: Seconds = Field(600.0, ge=0)
    """The same news of a run is sent again only after this time."""

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            text = value.get_secret_value()
            parts = urlsplit(text)
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                raise ValueError("must begin with http:// or https:// and name a host")
            if parts.username is not None or not text.isascii() or not text.isprintable():
                raise ValueError("must have no user name and no odd characters")
            if " " in text or not _has_port(parts):
                raise ValueError("must have no space, and a number for a port")
        return value


def _has_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


class _Message(NamedTuple):
    key: ExperimentKey
    news: News


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Reports a redirect as an error, because a redirected POST arrives without its body."""

    def redirect_request(self, *_: object) -> None:
        return None


class Notifier:
    """Sends messages, from a thread of its own.

    Args:
        settings: Settings that have a URL.
        counters: Counters to which each piece of news adds a ``Notification``.
        clock_s: Clock of the pauses, see ``time.monotonic``.
    """

    def __init__(
        self,
        settings: NotifySettings,
        counters: Counters,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        assert settings.url is not None
        self._url = settings.url.get_secret_value()
        self._host = urlsplit(self._url).hostname or ""
        self._every_s = settings.every_s
        of_host = Format.SLACK if self._host == "hooks.slack.com" else Format.JSON
        self._format = of_host if settings.format is Format.AUTO else settings.format
        self._counters = counters
        self._clock_s = clock_s
        self._told_s: dict[tuple[ExperimentKey, str, str], float] = {}
        self._waiting: queue.Queue[_Message | None] = queue.Queue(_MOST_WAITING)
        handlers: list[Any] = [_NoRedirects]
        if listens_on_loopback(self._host):
            handlers.append(urllib.request.ProxyHandler({}))  # no proxy leads here
        self._opener = urllib.request.build_opener(*handlers)
        self._stopping = threading.Event()
        self._stop_s = math.inf
        self._thread = threading.Thread(target=self._run, name="otel-rl-notify", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, key: ExperimentKey, news: News) -> None:
        """Send a message about a run's news, unless the same news were sent a short time ago.

        The call does not wait.
        """
        now_s, subject = self._clock_s(), (key, news.kind, news.worker)
        told_s = self._told_s.get(subject)
        if told_s is not None and now_s - told_s < self._every_s:
            self._counters.add(Counter.NOTIFICATIONS, reason=Notification.REPEATED)
            return
        # What is older would be told in any case.
        self._told_s = {one: s for one, s in self._told_s.items() if now_s - s < self._every_s}
        self._told_s[subject] = now_s
        try:
            self._waiting.put_nowait(_Message(key, news))
        except queue.Full:
            self._counters.add(Counter.NOTIFICATIONS, reason=Notification.DROPPED)

    def stop(self) -> None:
        """Send the waiting messages, for a few seconds at most, and end. Idempotent."""
        self._stop_s = min(self._stop_s, time.monotonic() + _STOP_S)
        self._stopping.set()
        with contextlib.suppress(queue.Full):  # then the thread looks for the end by itself
            self._waiting.put_nowait(None)
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        if (left := self._waiting.qsize()) and self._thread.is_alive():
            _log.warning("notify.url: %d messages to %s were given up.", left, self._host)
            self._counters.add(Counter.NOTIFICATIONS, left, reason=Notification.DROPPED)

    def _run(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                outcome = self._send(message)
            except Exception:  # noqa: BLE001  # one message is lost, and counted
                outcome = Notification.DROPPED
                _log.warning("notify.url: a message to %s failed.", self._host)
            self._counters.add(Counter.NOTIFICATIONS, reason=outcome)
            if self._stopping.is_set() and self._waiting.empty():
                return

    def _send(self, message: _Message) -> Notification:
        """Send one message repeatedly until it is taken, refused, or too old."""
        body = json.dumps(self._content(message), ensure_ascii=False).encode(errors="replace")
        begun_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while True:
            why = self._post(body)
            if why is None:
                return Notification.SENT
            if why.is_final:
                _log.warning("notify.url: %s refuses a message: %s.", self._host, why.words)
                return Notification.REFUSED
            until_s = min(begun_s + _GIVE_UP_S, self._stop_s)
            if time.monotonic() + pause_s > until_s:
                _log.warning("notify.url: a message to %s was given up: %s.", self._host, why.words)
                return Notification.DROPPED
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _pause(self, pause_s: float) -> None:
        """Wait; a bridge that stops meanwhile has no time for a long pause."""
        if self._stopping.is_set():
            time.sleep(pause_s)
        else:
            self._stopping.wait(pause_s)

    def _post(self, body: bytes) -> "_Failure | None":
        request = urllib.request.Request(  # noqa: S310  # the scheme is checked with the settings
            self._url,
            body,
            {"Content-Type": "application/json", "User-Agent": f"otel_rl/{__version__}"},
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S):
                return None
        except urllib.error.HTTPError as exc:
            exc.close()
            is_final = exc.code < 500 and exc.code not in _TRY_AGAIN
            return _Failure(f"it answers {exc.code} {exc.reason}", is_final=is_final)
        except OSError as exc:
            return _Failure(str(getattr(exc, "reason", exc)), is_final=False)
        except http.client.HTTPException as exc:  # its words may be those of the address
            return _Failure(f"its answer is no HTTP ({type(exc).__name__})", is_final=False)

    def _content(self, message: _Message) -> dict[str, object]:
        key, news = message
        if self._format is Format.SLACK:
            return {"text": f"{_escaped(str(key))}: {_escaped(news.words)}"}
        return {
            "experiment": key.experiment,
            "trial": key.trial,
            "run_id": run_id(*key),
            "kind": news.kind,
            "worker": news.worker or None,
            "step": news.step,
            "words": news.words,
            "time_ns": news.time_ns,
        }


class _Failure(NamedTuple):
    words: str
    is_final: bool


def _escaped(text: str) -> str:
    """Return the text so that Slack shows it literally: no mention of a channel, no link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
