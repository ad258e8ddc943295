"""What the W&B server is asked, and what each of its answers means for the rows."""

import base64
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.bridge.delivery.wandb.server import RemoteRun, ask
from otel_rl.errors import TrackerRejected, TrackerUnavailable

TLS = Path(__file__).parents[4] / "tls"
KEY = "k" * 40
TIMEOUT_S = 60.0
Answer = tuple[int, Mapping[str, str], bytes]


class Server:
    """Answers every request alike, and keeps what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[tuple[Mapping[str, str], dict[str, object]]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((dict(self.headers), json.loads(body)))
                status, headers, content = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._http.server_port

    @contextmanager
    def running(self, *, tls: bool = False) -> Iterator[str]:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()


def account(base_url: str, *, verify_tls: bool = True) -> Account:
    return Account(
        online=True,
        base_url=base_url,
        project="p",
        entity="e",
        api_key=KEY,
        verify_tls=verify_tls,
    )


def ask_one_that_answers(
    status: int, body: object, headers: Mapping[str, str] | None = None
) -> RemoteRun:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with Server((status, headers or {}, content)).running() as url:
        return ask(account(url), "run", timeout_s=TIMEOUT_S)


def bucket(content: object) -> object:
    return {"data": {"model": {"bucket": content}}}


def test_the_question_names_the_run_and_carries_the_key() -> None:
    server = Server((200, {}, b'{"data": null}'))
    with server.running() as url:
        ask(account(url), "run", timeout_s=TIMEOUT_S)
    ((headers, question),) = server.requests
    assert question["variables"] == {"project": "p", "entity": "e", "name": "run"}
    assert (
        base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == f"api:{KEY}".encode()
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"data": None}, RemoteRun()),
        ({"data": {"model": None}}, RemoteRun()),
        (bucket(None), RemoteRun()),
        (bucket({"historyLineCount": 7, "config": None}), RemoteRun(7)),
        (bucket({"historyLineCount": None}), RemoteRun()),
        (bucket({"historyLineCount": 7, "config": "no JSON"}), RemoteRun(7)),
        (bucket({"historyLineCount": 7, "config": "[1]"}), RemoteRun(7)),
        (
            bucket(
                {"historyLineCount": 7, "config": '{"otel_rl_journal": {"value": "j"}, "a": {}}'}
            ),
            RemoteRun(7, "j"),
        ),
    ],
)
def test_an_answer_is_read(answer: object, expected: RemoteRun) -> None:
    assert ask_one_that_answers(200, answer) == expected


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 422, 501])
def test_a_refusal_says_what_to_do(status: int) -> None:
    with pytest.raises(TrackerRejected, match=f"HTTP {status}") as caught:
        ask_one_that_answers(status, {})
    assert caught.value.hint


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_a_failure_that_passes_is_tried_again(status: int) -> None:
    with pytest.raises(TrackerUnavailable, match=f"HTTP {status}"):
        ask_one_that_answers(status, {})


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"", b"[]", b"\xff"])
def test_an_answer_of_something_else_is_no_line_count(body: bytes) -> None:
    with pytest.raises(TrackerUnavailable, match="JSON"):
        ask_one_that_answers(200, body)


def test_an_error_beside_no_data_is_not_taken_for_a_new_run() -> None:
    with pytest.raises(TrackerUnavailable, match="database is busy"):
        ask_one_that_answers(200, {"data": None, "errors": [{"message": "database is busy"}]})


def test_a_project_without_permission_is_refused() -> None:
    with pytest.raises(TrackerRejected, match="permission"):
        ask_one_that_answers(200, {"data": None, "errors": [{"message": "permission denied"}]})


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_the_key_follows_no_redirection(status: int) -> None:
    elsewhere = Server((200, {}, b'{"data": null}'))
    with elsewhere.running() as target, pytest.raises(TrackerRejected, match="points to"):
        ask_one_that_answers(status, b"", {"Location": f"{target}/graphql"})
    assert not elsewhere.requests


def test_a_server_that_cannot_be_reached_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TrackerUnavailable, match="cannot be reached"):
        ask(account(f"http://127.0.0.1:{port}"), "run", timeout_s=TIMEOUT_S)


def test_a_server_that_never_answers_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TrackerUnavailable, match="cannot be reached"):
            ask(account(url), "run", timeout_s=0.2)


@pytest.mark.parametrize("cut", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"\0\0\n"])
def test_a_connection_that_is_cut_is_a_server_that_is_away(cut: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(cut)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TrackerUnavailable):
            ask(account(url), "run", timeout_s=TIMEOUT_S)
        thread.join()


@pytest.fixture
def behind_tls() -> Iterator[str]:
    server = Server((200, {}, json.dumps(bucket({"historyLineCount": 3})).encode()))
    with server.running(tls=True) as url:
        yield url


def test_a_certificate_that_nobody_vouches_for_is_refused(behind_tls: str) -> None:
    with pytest.raises(TrackerRejected, match="not trusted") as caught:
        ask(account(behind_tls), "run", timeout_s=TIMEOUT_S)
    assert "SSL_CERT_FILE" in caught.value.hint


def test_a_certificate_of_a_named_authority_is_trusted(
    behind_tls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    assert ask(account(behind_tls), "run", timeout_s=TIMEOUT_S) == RemoteRun(3)


def test_tls_is_not_verified_if_the_user_says_so(behind_tls: str) -> None:
    unverified = account(behind_tls, verify_tls=False)
    assert ask(unverified, "run", timeout_s=TIMEOUT_S) == RemoteRun(3)


def test_a_server_that_speaks_no_tls_is_away() -> None:
    with Server((200, {}, b"{}")).running() as url, pytest.raises(TrackerUnavailable):
        ask(account(url.replace("http:", "https:")), "run", timeout_s=TIMEOUT_S)
