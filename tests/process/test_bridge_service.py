"""A bridge as a service: what Prometheus, systemd and a collector of logs get of it."""

import hashlib
import http.client
import json
import signal
import socket
import ssl
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

from otel_rl.semconv import names
from tests.deploy.alerts import metrics_of_bridges
from tests.process.commands import OTEL_RL, clean_environment
from tests.process.test_bridge_reload import (
    NEW,
    OLD,
    PROTOBUF,
    Served,
    export,
    served,
    write_tokens,
)
from tests.support import plain_http
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.slow import slow_after
from tests.support.tls_files import tls_files
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

UNIT = Path(__file__).parents[2] / "deploy" / "otel_rl-bridge.service"


HEALTH = ("--health", "127.0.0.1:0")


def health_of(bridge: Served) -> str:
    return "http://" + bridge.line("health on ").partition("http://")[2].partition("/")[0]


def test_prometheus_reads_every_metric_beside_mutual_tls(tmp_path: Path) -> None:
    files = tls_files(tmp_path)
    names = ("cert = '{}/server.pem'", "key = '{}/server.key'", "client_ca = '{}/ca.pem'")
    config = "\n".join(["[tls]", *(name.format(files) for name in names)])
    with served(tmp_path, config, *HEALTH) as bridge:
        answer = plain_http.get(f"{health_of(bridge)}/metrics", timeout=60)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    told = {line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE")}
    assert told >= metrics_of_bridges()
    assert 'otel_rl_bridge_requests_total{rl_reason="ok"} 0' in answer.text
    assert 'otel_rl_bridge_info{version="' in answer.text
    assert "process_cpu_seconds_total " in answer.text


@pytest.mark.slow
def test_prometheus_reads_how_long_rows_take_by_team_and_tracker(tmp_path: Path) -> None:
    """The delay of a step's row begins with the last request for the step, not with the first."""
    config = "".join(
        f"[[team]]\nname = '{team}'\nexperiments = ['{team}']\n"
        f"sha256 = ['{hashlib.sha256(team.encode()).hexdigest()}']\n"
        for team in ("red", "blue")
    )
    with served(tmp_path, config, *HEALTH) as bridge:
        address = bridge.line("OTLP/HTTP on ").partition("HTTP on ")[2].partition(",")[0]
        page = f"{health_of(bridge)}/metrics"
        for step in range(4):
            of_step = point()
            of_step.attributes.extend(key_values({names.RL_LOOP_ITERATION: step}))
            sent = metrics_request(gauge(of_step), resource={"rl.experiment.name": "red"})
            headers = PROTOBUF | {"authorization": "Bearer red"}
            url = f"http://{address}/v1/metrics"
            answer = plain_http.post(
                url, content=sent.SerializeToString(), headers=headers, timeout=60
            )
            assert answer.status_code == 200

        def count(delay: str, labels: str) -> int:
            name = f"otel_rl_bridge_{delay}_delay_seconds_count{{{labels}}} "
            lines = plain_http.get(page, timeout=60).text.splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith(name))

        wait_until(lambda: count("row", 'team="red"') >= 3, "rows", timeout_s=120)
        of_tracker = 'team="red",tracker="jsonl"'
        wait_until(lambda: count("tracker", of_tracker) >= 3, "rows", timeout_s=120)
        assert count("row", 'team="blue"') == 0
        waiting = 'otel_rl_bridge_rows_pending{rl_experiment_name="red",rl_trial_name="default",'
        assert f'{waiting}team="red"}} ' in plain_http.get(page, timeout=60).text


@pytest.mark.slow
def test_no_request_is_refused_while_tokens_and_certificates_change(tmp_path: Path) -> None:
    """A sender whose token stays loses nothing, on old and new connections, under load."""
    kept, tokens, files = "kept-" + "k" * 32, tmp_path / "tokens", tls_files(tmp_path)
    pairs = [
        [(files / f"{name}.{kind}").read_text() for kind in ("pem", "key")]
        for name in ("server", "stranger")
    ]
    write_tokens(tokens, OLD, kept)
    config = (
        f"[[team]]\nname = 'team'\nexperiments = ['*']\nfile = '{tokens}'\n"
        f"[tls]\ncert = '{files}/server.pem'\nkey = '{files}/server.key'\n"
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with served(tmp_path, config) as bridge:
        address = bridge.line("OTLP/HTTP on ").partition("HTTP on ")[2].partition(",")[0]
        statuses: list[int] = []
        enough, is_over = threading.Semaphore(0), threading.Event()

        def connected() -> http.client.HTTPSConnection:
            return http.client.HTTPSConnection(address, timeout=60, context=context)

        def status(token: str) -> int:
            with closing(connected()) as connection:
                return export(connection, token)

        def send(*, stays: bool) -> None:
            connection = connected()
            while not is_over.is_set():
                statuses.append(export(connection, kept))
                enough.release()
                if not stays:
                    connection.close()  # it connects anew
            connection.close()

        senders = [threading.Thread(target=send, kwargs={"stays": n % 2 == 0}) for n in range(4)]
        for sender in senders:
            sender.start()
        for number in range(1, 7):
            now, before = (NEW, OLD) if number % 2 else (OLD, NEW)
            certificate, key = pairs[number % 2]
            write_tokens(tokens, kept, now)
            (files / "server.pem").write_text(certificate)
            (files / "server.key").write_text(key)
            assert "are read again" in bridge.hang_up()
            assert [status(now), status(before)] == [200, 401]
            host, _, port = address.partition(":")
            assert ssl.get_server_certificate((host, int(port))) == certificate
            for _ in range(20):
                assert enough.acquire(timeout=60)
        is_over.set()
        for sender in senders:
            sender.join()
        assert len(statuses) >= 120
        assert set(statuses) == {200}


def test_a_changed_file_is_read_without_a_signal_and_a_broken_one_is_told(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    write_tokens(tokens, OLD)
    config = f"[[team]]\nname = 'team'\nexperiments = ['*']\nfile = '{tokens}'\n"
    with served(tmp_path, config, *HEALTH) as bridge:
        address = bridge.line("OTLP/HTTP on ").partition("HTTP on ")[2].partition(",")[0]
        health = health_of(bridge)

        def status(token: str) -> int:
            headers = PROTOBUF | {"authorization": f"Bearer {token}"}
            body = metrics_request().SerializeToString()
            url = f"http://{address}/v1/metrics"
            return plain_http.post(url, content=body, headers=headers, timeout=60).status_code

        assert [status(OLD), status(NEW)] == [200, 401]
        new = tmp_path / "new"
        write_tokens(new, NEW)
        new.rename(tokens)
        assert "read again" in bridge.line("changed files")
        assert [status(OLD), status(NEW)] == [401, 200]

        tokens.write_text("short\n")
        assert "stay as they were" in bridge.line("changed files")
        assert status(NEW) == 200
        answer = plain_http.get(f"{health}/healthz", timeout=60)
        assert answer.status_code == 200
        assert answer.text.startswith("ok\nA file of tokens")
        scraped = plain_http.get(f"{health}/metrics", timeout=60).text
        assert 'otel_rl_bridge_reloads_total{rl_reason="failed"} ' in scraped
        assert "otel_rl_bridge_reload_failed 1.0" in scraped

        write_tokens(tokens, NEW)
        assert "read again" in bridge.line("changed files")
        assert plain_http.get(f"{health}/healthz", timeout=60).text == "ok\n"
        scraped = plain_http.get(f"{health}/metrics", timeout=60).text
        assert "otel_rl_bridge_reload_failed 0.0" in scraped


@pytest.mark.parametrize("is_abstract", slow_after(1, [False, True]))
def test_systemd_hears_that_a_bridge_is_ready_alive_and_stopping(
    tmp_path: Path, *, is_abstract: bool
) -> None:
    name = f"@{tmp_path.name}.{id(tmp_path)}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1) if is_abstract else name)
        manager.settimeout(120)
        with served(tmp_path, "", *HEALTH, NOTIFY_SOCKET=name, WATCHDOG_USEC="60000000") as bridge:
            assert manager.recv(4096) == b"READY=1"
            assert plain_http.get(f"{health_of(bridge)}/healthz", timeout=60).status_code == 200
            assert [manager.recv(4096) for _ in range(2)] == [b"WATCHDOG=1"] * 2
            bridge.process.send_signal(signal.SIGTERM)
            told = [manager.recv(4096)]
            while told[-1] == b"WATCHDOG=1":
                told.append(manager.recv(4096))
            assert told[-1] == b"STOPPING=1"
            assert bridge.process.wait(120) == 0


@pytest.mark.slow
def test_a_watchdog_of_another_process_hears_nothing(tmp_path: Path) -> None:
    name = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(name))
        manager.settimeout(120)
        watchdog = {"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}
        with served(tmp_path, "", *HEALTH, NOTIFY_SOCKET=str(name), **watchdog) as bridge:
            bridge.line("health on ")
            bridge.process.send_signal(signal.SIGTERM)
            assert [manager.recv(4096) for _ in range(2)] == [b"READY=1", b"STOPPING=1"]


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    systemd_analyze = "/usr/bin/systemd-analyze"
    if not Path(systemd_analyze).exists():
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / UNIT.name
    # A program that is there, and a user whom every machine has.
    text = UNIT.read_text().replace("/opt/otel_rl/bin/otel-rl", "/bin/true")
    unit.write_text(text.replace("User=otel_rl", "User=daemon"))
    done = subprocess.run(
        [systemd_analyze, "verify", "--man=no", unit],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_log_is_json_one_line_a_record_and_names_who_is_refused_once(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    write_tokens(tokens, OLD)
    reads = hashlib.sha256(b"it-reads").hexdigest()
    config = (
        f"[[team]]\nname = 'team'\nexperiments = ['mine']\nfile = '{tokens}'\n"
        f"read_sha256 = ['{reads}']\n"
    )
    with served(tmp_path, config, *HEALTH, OTEL_RL_LOG_FORMAT="json") as bridge:
        said = json.loads(bridge.line("OTLP/HTTP on "))["message"]
        address = said.partition("HTTP on ")[2].partition(",")[0]
        connection = http.client.HTTPConnection(address, timeout=60)
        assert [export(connection, NEW) for _ in range(3)] == [401] * 3
        assert [export(connection, OLD) for _ in range(3)] == [200] * 3  # refused in part
        assert [export(connection, "it-reads") for _ in range(3)] == [401] * 3
        write_tokens(tokens, NEW)
        assert "read again" in bridge.hang_up()
        assert [export(connection, OLD) for _ in range(3)] == [401] * 3
        connection.close()
        bridge.process.send_signal(signal.SIGTERM)
        assert bridge.process.stderr is not None
        bridge.lines += bridge.process.stderr
    records = [json.loads(line) for line in bridge.lines]
    assert {frozenset(record) for record in records} == {
        frozenset({"time", "level", "logger", "message"})
    }
    refused = [one["message"] for one in records if "is refused" in one["message"]]
    assert len(refused) == 4, refused
    assert "127.0.0.1" in refused[0]
    assert "127.0.0.1 with token team" in refused[1]
    assert "The bearer token of team team may only read." in refused[2]
    assert "The bearer token is not known any more: team team had it." in refused[3]


@pytest.mark.slow
def test_a_log_format_that_is_none_is_an_error_at_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [*OTEL_RL, "runs"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        env=clean_environment(tmp_path, OTEL_RL_LOG_FORMAT="xml"),
    )  # fmt: skip
    assert done.returncode == 2
    assert 'OTEL_RL_LOG_FORMAT: unknown format (got "xml")' in done.stderr
