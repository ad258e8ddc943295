"""``otel-rl bridge`` as a service: several experiments, bad input, restarts, a clean stop."""

import json
import math
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from otel_rl.bridge.config import load_settings
from tests.process.commands import (
    OPEN_FOR_LONG,
    OTEL_RL,
    clean_environment,
    http_address,
    jsonl_rows,
    otel_rl,
    otel_rl_here,
    wandb_run,
)
from tests.support import plain_http
from tests.support.ports import free_ports
from tests.support.postgres import PostgresServer
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

S = 1_000_000_000


@dataclass
class Service:
    """A running ``otel-rl bridge``."""

    process: "subprocess.Popen[str]"
    url: str

    def post(
        self, content: bytes, kind: str = "application/json", **headers: str
    ) -> httpx.Response:
        return plain_http.post(
            f"{self.url}/v1/metrics",
            content=content,
            headers={"content-type": kind, **{k.replace("_", "-"): v for k, v in headers.items()}},
            timeout=90,
        )

    def log(self, experiment: str, loss: dict[int, float], **resource: str) -> httpx.Response:
        return self.post(otlp(experiment, loss, **resource))

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=120)
        return self.process.returncode, err


@contextmanager
def bridge(directory: Path, *options: str, **environment: str) -> Iterator[Service]:
    process = subprocess.Popen(
        [
            *OTEL_RL, "bridge", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
            "--data", str(directory / "data"), *options,
        ],
        cwd=directory,
        env=clean_environment(directory, **environment),
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        yield Service(process, f"http://{http_address(process)}")
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def otlp(experiment: str, loss: dict[int, float], **resource: str) -> bytes:
    """An OTLP/JSON request with one exact gauge."""
    now = time.time_ns()
    attributes = {
        "rl.experiment.name": experiment,
        "rl.worker.role": "trainer",
        "rl.worker.index": "0",
        "service.instance.id": "one",
        **{key.replace("__", "."): value for key, value in resource.items()},
    }
    points = [
        {
            "timeUnixNano": str(now + step),
            "asDouble": repr(value) if math.isfinite(value) else "NaN",
            "attributes": [{"key": "rl.loop.iteration", "value": {"intValue": str(step)}}],
        }
        for step, value in loss.items()
    ]
    metrics = [{"name": "loss", "gauge": {"dataPoints": points}}]
    of_resource = [
        {"key": key, "value": {"stringValue": value}} for key, value in attributes.items()
    ]
    request = {
        "resourceMetrics": [
            {"resource": {"attributes": of_resource}, "scopeMetrics": [{"metrics": metrics}]}
        ]
    }
    return json.dumps(request).encode()


def losses(
    directory: Path, experiment: str, trial: str = "default", *, goes_on: bool = False
) -> list[tuple[int, float]]:
    return [
        (row.step, row.values["trainer/loss"])
        for row in jsonl_rows(directory, experiment, trial, goes_on=goes_on)
        if "trainer/loss" in row.values
    ]


@dataclass(frozen=True)
class Served:
    """A bridge that was stopped, with what it was sent."""

    directory: Path
    acknowledged: list[int]
    status: int
    err: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    directory = tmp_path_factory.mktemp("served")
    with bridge(directory, "--tracker", "jsonl") as service:
        for step in range(20):
            for number, experiment in enumerate(("a", "b")):
                assert service.log(experiment, {step: step + number / 2}).status_code == 200
        for trial in ("x", "y"):
            assert service.log("tried", {ord(trial): 1.0}, rl__trial__name=trial).is_success
        assert service.log("nan", dict.fromkeys(range(5), math.nan)).json() == {}
        acknowledged = [step for step in range(200) if service.log("c", {step: 1.0}).is_success]
        status, err = service.stop()
    return Served(directory, acknowledged, status, err)


def test_experiments_of_one_bridge_do_not_touch_each_other(served: Served) -> None:
    assert losses(served.directory, "a") == [(step, float(step)) for step in range(20)]
    assert losses(served.directory, "b") == [(step, step + 0.5) for step in range(20)]


def test_trials_of_one_experiment_are_runs_of_their_own(served: Served) -> None:
    for trial in ("x", "y"):
        assert losses(served.directory, "tried", trial) == [(ord(trial), 1.0)]


def test_nothing_acknowledged_is_lost_at_a_clean_stop(served: Served) -> None:
    assert served.status == 0
    assert [step for step, _ in losses(served.directory, "c")] == served.acknowledged
    written = len(jsonl_rows(served.directory, "c"))
    assert f"run c/default: {written} rows in jsonl" in served.err


def test_nan_everywhere_is_data(served: Served) -> None:
    found = losses(served.directory, "nan")
    assert [step for step, _ in found] == list(range(5))
    assert all(math.isnan(value) for _, value in found)


@pytest.mark.slow
def test_a_restarted_bridge_goes_on_in_the_same_run(tmp_path: Path) -> None:
    for begin in (0, 5):
        with bridge(tmp_path) as service:
            for step in range(begin, begin + 5):
                assert service.log("a", {step: float(step)}).is_success
            status, _ = service.stop()
            assert status == 0
    run = wandb_run(tmp_path / "data", "a")
    assert [row["trainer/loss"] for row in run.history] == list(range(10))
    assert [row["_step"] for row in run.history] == list(range(10))


def test_what_was_acknowledged_before_kill_9_is_in_the_run_after_the_next_start(
    tmp_path: Path,
) -> None:
    with bridge(tmp_path, "--tracker", "jsonl") as service:
        for step in range(50):
            assert service.log("a", {step: float(step)}).is_success
        service.process.kill()
        service.process.wait()
    with bridge(tmp_path, "--tracker", "jsonl") as service:
        service.stop()
    assert losses(tmp_path, "a") == [(step, float(step)) for step in range(50)]


@pytest.mark.slow
def test_rows_appear_while_the_run_goes_on(tmp_path: Path) -> None:
    # A busy machine may take longer to start the writer than a step stays open by default.
    at_once = {**OPEN_FOR_LONG, "OTEL_RL_BRIDGE__ROWS__START_WAIT": "0"}
    with bridge(tmp_path, "--tracker", "jsonl", **at_once) as service:
        service.log("a", {1: 1.0})
        service.log("a", {2: 2.0})
        deadline = time.monotonic() + 90
        while not list(tmp_path.rglob("*.jsonl")) or not losses(tmp_path, "a", goes_on=True):
            assert time.monotonic() < deadline, "no row while the bridge runs"
            time.sleep(0.05)
        assert losses(tmp_path, "a", goes_on=True)[0] == (1, 1.0)
        service.stop()
    assert losses(tmp_path, "a") == [(1, 1.0), (2, 2.0)]


def test_a_port_in_use_is_an_error_at_start_that_says_how_to_go_on(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = otel_rl("bridge", "--http", address, "--grpc", "127.0.0.1:0", cwd=tmp_path)
    assert done.status == 2
    assert address.partition(":")[2] in done.err
    assert "--http HOST:PORT" in done.err


@pytest.mark.parametrize(
    ("content", "message"),
    slow_after(
        1,
        [
            ("[rows]\nwindows = 5\n", "rows.windows: unknown setting"),
            ("[listen]\nhttp = 'x'\n", "listen.http"),
            ("[tracker]\nname = 'wandbb'\n", "Known trackers: wandb, jsonl"),
            ("[[[", "is not TOML"),
        ],
    ),
)
def test_a_wrong_setting_is_an_error_at_start(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bridge.toml").write_text(content)
    done = otel_rl_here("bridge", "--config", "bridge.toml", cwd=tmp_path)
    assert done.status == 2
    assert message in done.err


def test_each_of_two_mistakes_is_a_line_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "bridge.toml").write_text(
        "[listen]\nhttp = 'x'\n[journal]\nmax_bytes = '10 gigs'\n"
    )
    done = otel_rl_here("bridge", "--config", "bridge.toml", cwd=tmp_path)
    http, journal = done.err.splitlines()
    assert http.startswith("otel-rl: listen.http: must be HOST:PORT")
    assert journal.startswith("otel-rl: journal.max_bytes: must be a size")


@pytest.mark.parametrize("name", ["OTEL_RL_BRIDGE_TLS_CERT", "OTEL_RL_BRIDGE__TLS__CRT"])
@pytest.mark.parametrize("command", ["bridge", "doctor"])
def test_a_misspelt_variable_starts_no_open_bridge(command: str, name: str, tmp_path: Path) -> None:
    environment = clean_environment(tmp_path, **{name: "/run/secrets/bridge.pem"})
    done = otel_rl_here(command, cwd=tmp_path, env=environment)
    assert done.status == 2
    assert "Did you mean OTEL_RL_BRIDGE__TLS__CERT?" in done.err


@pytest.mark.slow
def test_the_last_bridge_of_two_says_that_none_is_left(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.new_database("UTF8")
    environment = {"OTEL_RL_BRIDGE__JOURNAL__URL": url}
    with (
        bridge(tmp_path, "--tracker", "jsonl", **environment) as first,
        bridge(tmp_path, "--tracker", "jsonl", **environment) as second,
    ):
        _, err = first.stop()
        assert "1 other bridge on this database may write the remaining rows" in err
        _, err = second.stop()
        assert "no other bridge uses this database" in err
        assert "may write the remaining rows" not in err


def test_an_absent_database_is_an_error_that_does_not_claim_to_wait(tmp_path: Path) -> None:
    url = f"postgresql://127.0.0.1:{free_ports(1)[0]}/nowhere"
    environment = clean_environment(tmp_path, OTEL_RL_BRIDGE__JOURNAL__URL=url)
    done = otel_rl_here("bridge", cwd=tmp_path, env=environment)
    assert done.status == 2
    assert "The database does not answer" in done.err
    assert "start this command again" in done.err
    assert "meanwhile" not in done.err


def test_an_address_that_is_none_is_an_error_with_an_example(tmp_path: Path) -> None:
    done = otel_rl_here("bridge", "--http", "nonsense", cwd=tmp_path)
    assert done.status == 2
    assert "127.0.0.1:4318" in done.err
    assert "Traceback" not in done.err


def test_an_unknown_variable_is_an_error_at_start(tmp_path: Path) -> None:
    environment = clean_environment(tmp_path, OTEL_RL_BRIDGE__ROSW__WINDOW_S="2")
    done = otel_rl_here("bridge", cwd=tmp_path, env=environment)
    assert done.status == 2
    assert "OTEL_RL_BRIDGE__ROSW__WINDOW_S: unknown setting" in done.err


def test_one_setting_of_a_section_leaves_the_others_at_their_defaults() -> None:
    listen = load_settings(None, {"listen": {"grpc": "off"}}).listen
    assert (listen.http, listen.grpc) == (("127.0.0.1", 4318), None)


@pytest.fixture(scope="module")
def beyond_loopback(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("beyond")
    return lines_of_a_bridge(directory, "--http", "0.0.0.0:0", "--grpc", "127.0.0.1:0")


@pytest.fixture(scope="module")
def without_grpc(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("without_grpc")
    return lines_of_a_bridge(directory, "--http", "127.0.0.1:0", "--grpc", "off")


def lines_of_a_bridge(directory: Path, *options: str) -> list[str]:
    """What a bridge says that is stopped once it can be reached."""
    with subprocess.Popen(
        [*OTEL_RL, "bridge", *options, "--tracker", "jsonl"],
        cwd=directory,
        env=clean_environment(directory),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "OTLP/HTTP on" in line:
                process.terminate()
    assert process.returncode == 0, said
    return said


def test_listening_beyond_loopback_is_said_loudly(beyond_loopback: list[str]) -> None:
    assert "WARNING" in beyond_loopback[0]


def test_a_bridge_without_grpc_names_only_its_address_for_http(without_grpc: list[str]) -> None:
    line = without_grpc[0]
    assert re.fullmatch(r"otel-rl: OTLP/HTTP on 127\.0\.0\.1:\d+, data in \.otel_rl\n", line)


def test_doctor_finds_what_is_wrong_and_says_what_to_do(tmp_path: Path) -> None:
    free = {"OTEL_RL_BRIDGE__LISTEN__HTTP": "0", "OTEL_RL_BRIDGE__LISTEN__GRPC": "0"}
    well = otel_rl_here(
        "doctor", "--tracker", "jsonl", cwd=tmp_path, env=clean_environment(tmp_path, **free)
    )
    assert (well.status, "FAIL" in well.out) == (0, False), well.out
    ill = otel_rl_here(
        "doctor",
        "--tracker",
        "jsonl",
        cwd=tmp_path,
        env=clean_environment(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", **free),
    )
    assert ill.status == 1
    assert "FAIL endpoint" in ill.out
    assert "Start `otel-rl bridge`" in ill.out


def test_doctor_makes_nothing_in_a_directory_that_has_no_journal(tmp_path: Path) -> None:
    (tmp_path / ".otel_rl" / "run").mkdir(parents=True)
    free = {"OTEL_RL_BRIDGE__LISTEN__HTTP": "0", "OTEL_RL_BRIDGE__LISTEN__GRPC": "0"}
    well = otel_rl_here(
        "doctor", "--tracker", "jsonl", cwd=tmp_path, env=clean_environment(tmp_path, **free)
    )
    assert well.status == 0, well.out
    assert [path.name for path in (tmp_path / ".otel_rl").iterdir()] == ["run"]


def test_a_bridge_with_the_page_tells_its_address(without_grpc: list[str]) -> None:
    (address,) = re.findall(r"OTLP/HTTP on ([\d.:]+)", without_grpc[0])
    assert without_grpc[1] == f"otel-rl: page with the runs: http://{address}/\n"


def test_a_bridge_whose_page_is_closed_tells_no_address_of_it(beyond_loopback: list[str]) -> None:
    assert "page with the runs" not in "".join(beyond_loopback)
