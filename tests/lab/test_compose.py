"""The same, as users start it: ``docker compose up``, services killed, all of it down and up again.

``make compose`` runs it. It needs a Docker Engine with the images that docker-compose.yml names
(``tests/lab/images.sh`` makes them where none can be pulled), and the ports of the file.
"""

import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import httpx
import pytest

from otel_rl.run_id import run_id
from tests.faults.keeper import wait_for
from tests.lab.site import History, read_history
from tests.lab.traffic import Traffic
from tests.support import plain_http

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("OTEL_RL_COMPOSE"),
        reason="`make compose` runs this; it needs a Docker Engine",
    ),
]

ROOT = Path(__file__).parents[2]
OTLP = "http://127.0.0.1:4318"
HEALTH = "http://127.0.0.1:13134"
SCALED_OTLP = "http://127.0.0.1:5318"
SCALED_HEALTH = "http://127.0.0.1:14134"
JAEGER = "http://127.0.0.1:16686"

STRIKES = 8
BETWEEN = 300
UP_S = 120.0

SETTINGS = """
    environment:
      OTEL_RL_BRIDGE__ROWS__PER_WORKER: "true"
      OTEL_RL_BRIDGE__ROWS__WINDOW: "0.5"
      OTEL_RL_BRIDGE__ROWS__WAIT: "5"
      OTEL_RL_BRIDGE__ROWS__WORKER_TIMEOUT: "5"
"""
OVERRIDE = f"services:\n  bridge:{SETTINGS}  bridges:{SETTINGS}"


class Compose:
    """A project of its own."""

    def __init__(
        self, directory: Path, further: str = "", variables: Mapping[str, str] | None = None
    ) -> None:
        override = directory / "override.yml"
        override.write_text(OVERRIDE)
        files = ["--file", str(ROOT / "docker-compose.yml"), "--file", str(override)]
        files += ["--file", str(ROOT / further)] if further else []
        self._variables = {"OTEL_RL_TRACKER": "jsonl", **(variables or {})}
        self._name = f"otel-rl-{uuid.uuid4().hex[:8]}"
        self._command = [*_compose(), "--project-name", self._name]
        self._command += ["--project-directory", str(ROOT), *files]

    def __call__(self, *arguments: str, timeout_s: float = 600) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            env=os.environ | self._variables,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self) -> None:
        self("up", "--detach")
        assert wait_for(lambda: _is_healthy(HEALTH), UP_S), self("logs", "--tail=50")

    def up_scaled(self) -> None:
        self("--profile", "scale", "up", "--detach")
        healthy = wait_for(lambda: _is_healthy(SCALED_HEALTH), UP_S)
        assert healthy, self("--profile", "scale", "logs", "--tail=50")

    def running(self, service: str) -> Sequence[str]:
        """The containers of a service."""
        labels = {"project": self._name, "service": service}
        filters = [f"--filter=label=com.docker.compose.{k}={v}" for k, v in labels.items()]
        said = subprocess.check_output(["docker", "ps", "--quiet", *filters], text=True)
        return sorted(said.split())

    def history(self, experiment: str, trial: str) -> History:
        """The rows of a run of the single bridge so far."""
        return self._history("bridge", experiment, trial)

    def scaled_history(self, experiment: str, trial: str) -> History:
        """The rows of a run of the bridges that share a database so far."""
        return self._history("bridges", experiment, trial)

    def _history(self, service: str, experiment: str, trial: str) -> History:
        path = f"/var/lib/otel_rl/{service}/{run_id(experiment, trial)}.jsonl"
        read = ["sh", "-c", f"cat {path} 2>/dev/null || true"]
        container = self.running(service)[0]  # whichever: they share the volume
        said = subprocess.check_output(["docker", "exec", container, *read], text=True)
        return read_history(said)


def _compose() -> list[str]:
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True)
    return ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]


def _is_healthy(url: str) -> bool:
    try:
        return plain_http.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    compose = Compose(tmp_path_factory.mktemp("compose"))
    try:
        compose.up()
        yield compose
    finally:
        compose("--profile", "scale", "down", "--volumes", "--timeout", "60")


def test_the_demo_ends_in_one_run_and_its_traces_in_jaeger(compose: Compose) -> None:
    compose("--profile", "demo", "run", "--rm", "demo", "demo", "--endpoint", "gateway:4328",
            "--experiment", "demo", "--trial", "one", "--steps", "20", "--no-kill")  # fmt: skip

    def steps() -> set[float]:
        rows = compose.history("demo", "one")
        return {row["step"] for row in rows if "trainer/loss" in row}

    assert wait_for(lambda: len(steps()) == 20, UP_S, look_s=1.0)
    services = plain_http.get(f"{JAEGER}/api/v3/services", timeout=60).json()["services"]
    assert {"otel_rl.trainer", "otel_rl.generator"} <= set(services)


def test_services_killed_at_random_lose_and_double_nothing(
    compose: Compose, tmp_path: Path
) -> None:
    random = Random(7)
    with Traffic(OTLP, "killed", tmp_path) as traffic:
        for _ in range(STRIKES):
            traffic.wait_for_more(BETWEEN)
            service = random.choice(["gateway", "bridge", "jaeger"])
            compose("kill", "--signal", "SIGKILL", service)
            compose.up()
        verdict = traffic.finish(compose.history)
    assert verdict.is_sound, verdict
    assert verdict.acknowledged >= STRIKES * BETWEEN


def test_down_and_up_again_loses_and_doubles_nothing(compose: Compose, tmp_path: Path) -> None:
    with Traffic(OTLP, "down", tmp_path) as traffic:
        traffic.wait_for_more(BETWEEN)
        compose("down", "--timeout", "120")
        compose.up()
        traffic.wait_for_more(BETWEEN)
        verdict = traffic.finish(compose.history)
    assert verdict.is_sound, verdict


@pytest.fixture(scope="module")
def scaled(compose: Compose) -> Compose:
    """The profile ``scale`` beside the rest."""
    compose.up_scaled()
    return compose


def test_nothing_runs_as_root_or_can_write_to_its_image(scaled: Compose) -> None:
    users = set()
    for container in scaled("--profile", "scale", "ps", "--quiet").split():
        form = "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}}"
        said = subprocess.check_output(
            ["docker", "inspect", "--format", form, container], text=True
        )
        user, *rest = said.split()
        assert rest == ["true", "[ALL]"]
        users.add(user)
    assert users == {"10001:10001", "999:999", "99:99"}


def test_of_several_bridges_each_is_killed_and_nothing_is_lost_or_doubled(
    scaled: Compose, tmp_path: Path
) -> None:
    with Traffic(SCALED_OTLP, "scaled", tmp_path) as traffic:
        traffic.wait_for_more(BETWEEN)
        first, second = scaled.running("bridges")
        for victim in (first, second):  # one of them owned the run
            scaled.up_scaled()
            subprocess.run(["docker", "kill", victim], check=True, capture_output=True)
            traffic.wait_for_more(BETWEEN)
        verdict = traffic.finish(scaled.scaled_history)  # with the first alone
    assert verdict.is_sound, verdict
    assert scaled.running("bridges") == [first]


def test_the_database_and_the_balancer_killed_lose_and_double_nothing(
    scaled: Compose, tmp_path: Path
) -> None:
    with Traffic(SCALED_OTLP, "database", tmp_path) as traffic:
        for service in ["postgres", "balancer", "scale-gateway", "postgres"]:
            traffic.wait_for_more(BETWEEN)
            scaled("--profile", "scale", "kill", "--signal", "SIGKILL", service)
            scaled.up_scaled()
        traffic.wait_for_more(BETWEEN)
        verdict = traffic.finish(scaled.scaled_history)
    assert verdict.is_sound, verdict
