"""SIGHUP: tokens and certificates are read again; a terminal that closes ends no bridge."""

import http.client
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.process.commands import OTEL_RL, clean_environment, jsonl_rows
from tests.support import plain_http
from tests.support.otlp_requests import metrics_request
from tests.support.terminal import Terminal
from tests.support.tls_files import tls_files

pytestmark = pytest.mark.process

OLD, NEW = "old-" + "a" * 32, "new-" + "b" * 32
PROTOBUF = {"content-type": "application/x-protobuf"}


@dataclass
class Served:
    """A running bridge."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)

    def line(self, part: str) -> str:
        """Read its output up to a line with ``part``."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if part in line:
                return line
        raise AssertionError(self.lines)

    def hang_up(self) -> str:
        self.process.send_signal(signal.SIGHUP)
        return self.line("SIGHUP")


@contextmanager
def served(directory: Path, config: str = "", *options: str, **variables: str) -> Iterator[Served]:
    (directory / "bridge.toml").write_text(config)
    process = subprocess.Popen(
        [
            *OTEL_RL, "bridge", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
            "--tracker", "jsonl", "--config", "bridge.toml", *options,
        ],
        cwd=directory,
        env=clean_environment(directory, **variables),
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        yield Served(process)
    finally:
        process.kill()
        process.communicate()


def write_tokens(file: Path, *tokens: str) -> None:
    file.write_text("".join(f"{token}\n" for token in tokens))
    file.chmod(0o600)


def export(connection: http.client.HTTPConnection, token: str) -> int:
    body = metrics_request().SerializeToString()
    headers = PROTOBUF | {"authorization": f"Bearer {token}"}
    connection.request("POST", "/v1/metrics", body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_a_changed_token_file_counts_from_the_next_request_on(tmp_path: Path) -> None:
    """Also on a connection that is open, whose requests are otherwise known by their head."""
    tokens = tmp_path / "tokens"
    write_tokens(tokens, OLD)
    config = f"[[team]]\nname = 'team'\nexperiments = ['*']\nfile = '{tokens}'\n"
    with served(tmp_path, config) as bridge:
        address = bridge.line("OTLP/HTTP on ").partition("HTTP on ")[2].partition(",")[0]
        connection = http.client.HTTPConnection(address, timeout=60)
        assert [export(connection, OLD) for _ in range(5)] == [200] * 5
        connected = connection.sock

        write_tokens(tokens, NEW)
        assert "read again" in bridge.hang_up()
        assert export(connection, OLD) == 401
        assert export(connection, NEW) == 200
        assert connection.sock is connected

        tokens.chmod(0o644)
        told = bridge.hang_up()
        assert "stay as they were" in told
        assert f"chmod o= {tokens}" in told
        assert export(connection, NEW) == 200
        connection.close()


@pytest.mark.slow
def test_changed_certificates_are_those_of_new_connections_of_both_protocols(
    tmp_path: Path,
) -> None:
    files = tls_files(tmp_path)
    config = f"[tls]\ncert = '{files}/server.pem'\nkey = '{files}/server.key'\n"
    with served(tmp_path, config) as bridge:
        line = bridge.line("OTLP/HTTP on ")
        ports = [int(part.partition(",")[0].rpartition(":")[2]) for part in line.split(" on ")[1:]]
        before = (files / "server.pem").read_text()
        for port in ports:
            assert ssl.get_server_certificate(("127.0.0.1", port)) == before

        shutil.copy(files / "stranger.pem", files / "server.pem")
        assert "stay as they were" in bridge.hang_up()  # the key is of another certificate
        for port in ports:
            assert ssl.get_server_certificate(("127.0.0.1", port)) == before

        shutil.copy(files / "stranger.key", files / "server.key")
        assert "read again" in bridge.hang_up()
        for port in ports:
            found = ssl.get_server_certificate(("127.0.0.1", port))
            assert found == (files / "stranger.pem").read_text()


def test_a_bridge_outlives_its_terminal_and_ends_in_order(tmp_path: Path) -> None:
    command = [
        *OTEL_RL, "bridge", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--tracker", "jsonl",
        "--data", "data",
    ]  # fmt: skip
    terminal = Terminal(command, cwd=tmp_path, environment=clean_environment(tmp_path), columns=200)
    with terminal:
        rows = terminal.until(lambda rows: any("OTLP/HTTP on" in row for row in rows))
        shown = next(row for row in rows if "OTLP/HTTP on" in row)
        url = f"http://{shown.partition('HTTP on ')[2].partition(',')[0]}"
        terminal.close_the_window()
        sent = metrics_request(resource={"rl.experiment.name": "survivor"})
        answer = plain_http.post(
            f"{url}/v1/metrics", content=sent.SerializeToString(), headers=PROTOBUF, timeout=60
        )
        assert answer.status_code == 200
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(120) == 0
    assert jsonl_rows(tmp_path, "survivor")
