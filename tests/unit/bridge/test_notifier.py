"""News that go to a webhook: what is sent, what is told again, and what is given up."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from otel_rl.bridge.counters import Counter, Counters, Notification
from otel_rl.bridge.notifier import Format, Notifier, NotifySettings
from otel_rl.bridge.rows.messages import News
from otel_rl.records import ExperimentKey

KEY = ExperimentKey("grpo <!channel>", "1")
NAN = News("nan", "trainer/0", 30, 5, "loss is NaN & infinite")


class Webhook:
    """Answers with the statuses that it is given, and at last with 200."""

    def __init__(self, *statuses: int) -> None:
        received, left = [], [*statuses]
        self.answers = answers = threading.Semaphore(0)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(left.pop(0) if left else 200)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
                answers.release()

            def log_message(self, *_: object) -> None:
                pass

        self.received: list[dict[str, Any]] = received
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def webhook(request: pytest.FixtureRequest) -> Iterator[Webhook]:
    webhook = Webhook(*getattr(request, "param", ()))
    yield webhook
    webhook.close()


def told(
    url: str,
    *news: News,
    every_s: float = 600.0,
    before_stop: Callable[[], None] = lambda: None,
    **more: Any,
) -> dict[str, int]:
    """Tell the news, a second apart, and return the counts."""
    counters, clock = Counters(), iter(range(len(news)))
    settings = NotifySettings(url=SecretStr(url), every_s=every_s, **more)
    notifier = Notifier(settings, counters, clock_s=lambda: float(next(clock)))
    notifier.start()
    for one in news:
        notifier.add(KEY, one)
    before_stop()
    notifier.stop()
    found = {one: counters.value(Counter.NOTIFICATIONS, reason=one) for one in Notification}
    return {str(one): n for one, n in found.items() if n}


def test_a_message_has_what_a_program_needs(webhook: Webhook) -> None:
    assert told(webhook.url, NAN) == {"sent": 1}
    (message,) = webhook.received
    assert message.pop("run_id")
    assert message == {
        "experiment": "grpo <!channel>",
        "trial": "1",
        "kind": "nan",
        "worker": "trainer/0",
        "step": 30,
        "time_ns": 5,
        "words": "loss is NaN & infinite",
    }


def test_a_message_for_slack_mentions_nobody(webhook: Webhook) -> None:
    assert told(webhook.url, NAN, format=Format.SLACK) == {"sent": 1}
    (message,) = webhook.received
    assert message == {"text": "grpo &lt;!channel&gt;/1: loss is NaN &amp; infinite"}


def test_a_fault_that_comes_and_goes_is_told_now_and_then(webhook: Webhook) -> None:
    other = NAN._replace(worker="trainer/1")
    counts = told(webhook.url, NAN, NAN, other, NAN, NAN, NAN, every_s=3.0)
    assert counts == {"sent": 3, "repeated": 3}
    assert [one["worker"] for one in webhook.received] == ["trainer/0", "trainer/1", "trainer/0"]


@pytest.mark.parametrize("webhook", [(503, 429)], indirect=True)
def test_a_message_is_sent_again_until_it_is_taken(webhook: Webhook) -> None:
    def have_all() -> None:
        for _ in range(3):
            assert webhook.answers.acquire(timeout=120)

    assert told(webhook.url, NAN, before_stop=have_all) == {"sent": 1}
    assert webhook.received == [webhook.received[0]] * 3


@pytest.mark.parametrize("webhook", [(404,), (302,)], indirect=True)
def test_an_address_that_takes_no_messages_gets_each_once(
    webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    assert told(webhook.url, NAN, NAN._replace(kind="crash")) == {"refused": 1, "sent": 1}
    assert [one["kind"] for one in webhook.received] == ["nan", "crash"]
    assert "127.0.0.1 refuses a message" in caplog.text


def test_an_answer_that_is_no_http_ends_one_message_and_not_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answered = threading.Semaphore(0)

        def answer() -> None:
            with contextlib.suppress(OSError):  # closed at the end
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(b"SSH-2.0-s3cr3t\r\n")
                    answered.release()

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"

        def has_answered() -> None:
            assert answered.acquire(timeout=120)

        counts = told(url, NAN, before_stop=has_answered)
    assert counts == {"dropped": 1}
    assert "its answer is no HTTP (BadStatusLine)" in caplog.text
    assert "s3cr3t" not in caplog.text


def test_nobody_waits_for_a_receiver_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    webhook = Webhook()
    webhook.close()
    assert told(webhook.url + "s3cr3t", NAN) == {"dropped": 1}
    assert "to 127.0.0.1 w" in caplog.text  # was given up, or were
    assert "s3cr3t" not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "hooks.slack.com/services",
        "ftp://a/b",
        "https:///x",
        "http://u:p@a/",
        "http://a:b/",
        "http://a/ b",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="must"):
        NotifySettings(url=SecretStr(url))
