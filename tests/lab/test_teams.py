"""Two teams through one real gateway into one bridge: nothing of one is ever the other's."""

import base64
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import httpx
import pytest

from otel_rl.run_id import run_id
from tests.faults.keeper import wait_for
from tests.lab.running import CONFIGURATIONS, Bridge, Collector
from tests.lab.site import BRIDGE, history_of
from tests.process.commands import clean_environment
from tests.support import plain_http
from tests.support.docs_examples import blocks
from tests.support.otlp_requests import (
    gauge,
    key_values,
    metrics_request,
    point,
    trace_request,
)
from tests.support.otlp_sink import Sink, serve
from tests.support.ports import free_ports
from tests.support.tls_files import tls_files
from tests.support.wandb_server import WandbServer

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

TEAMS = ("team-a", "team-b")
TOKENS = {name: f"token-of-{name}-sixteen-characters" for name in (*TEAMS, "gateway")}
SENDERS = {name: f"token-of-a-sender-of-{name}" for name in TEAMS}
"""What the ports of the gateway ask for, and the bridge does not know."""

KEYS = {"team-a": "a" * 40, "team-b": "b" * 40}
SIGN = {"team-a": 1.0, "team-b": -1.0}
"""The values of a team's measurements have it, so that each shows whose it is."""

STEPS = 20
FLOODED = 5
QUEUE_BYTES = 8 << 20
ARRIVES_S = 240.0
SMALL = str(1 << 20)  # no less is taken for the queue of a file that makes batches of a megabyte
FLOODERS = 3
POINTS = 4_000
PAGE = CONFIGURATIONS.parent / "docs" / "how-to" / "teams.md"
TRAIN = f"""
import otel_rl
otel_rl.init(role="trainer")
for step in range({STEPS}):
    otel_rl.log({{"rl.train.loss": 0.5}}, step=step)
"""
PROTOBUF = {"content-type": "application/x-protobuf"}
PADDING = {f"padding.{n}": "x" * 4_000 for n in range(6)}


class Shared:
    """A bridge with two teams, behind a gateway with the files that users get.

    Args:
        directory: Of all files.
        settings: Further ones of the bridge.
        options: Of the team's tracker, by the name of the team.
        queue_bytes: Of each queue of the gateway.
        further: Files of the gateway after its own and ``teams.yaml``.
        variables: Further ones of the gateway.
    """

    def __init__(
        self,
        directory: Path,
        settings: str = "",
        *,
        options: Mapping[str, str] | None = None,
        tracker: str = "jsonl",
        queue_bytes: str = str(64 << 20),
        further: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        tokens, senders = directory / "tokens", directory / "senders"
        for of, known in ((tokens, TOKENS), (senders, SENDERS)):
            of.mkdir(parents=True)
            for name, token in known.items():
                (of / name).write_text(f"{token}\n")
                (of / name).chmod(0o600)
        teams = "".join(
            f'[[team]]\nname = "{name}"\nexperiments = ["{name}/*"]\nfile = "{tokens / name}"\n'
            f"{(options or {}).get(name, '')}"
            for name in TEAMS
        )
        gateway = f'[[team]]\nname = "site"\ngateway = true\nfile = "{tokens / "gateway"}"\n'
        self.bridge = Bridge(directory / "bridge", BRIDGE + settings + teams + gateway, tracker)
        (port,) = free_ports(1)
        self.gateway = Collector(
            "gateway",
            directory / "gateway",
            {
                "OTEL_RL_BRIDGE_URL": self.bridge.url,
                "OTEL_RL_BRIDGE_TOKEN": TOKENS["gateway"],
                "OTEL_RL_JAEGER_URL": "http://127.0.0.1:1",
                "OTEL_RL_TEAMS": str(senders),
                "OTEL_RL_TEAM_B": f"127.0.0.1:{port}",
                "OTEL_RL_QUEUE_BYTES": queue_bytes,
                **(variables or {}),
            },
            (CONFIGURATIONS / "teams.yaml").read_text(),
            *further,
        )
        self.urls = {"team-a": self.gateway.url, "team-b": f"http://127.0.0.1:{port}"}

    def post(self, team: str, body: bytes, token: str = "", signal: str = "metrics") -> int:
        """Send a request to the port of a team. Returns the status; 0 without an answer."""
        headers = {**PROTOBUF, "authorization": f"Bearer {token or SENDERS[team]}"}
        try:
            url = f"{self.urls[team]}/v1/{signal}"
            return plain_http.post(url, content=body, headers=headers, timeout=60).status_code
        except httpx.HTTPError:
            return 0

    def takes(self, team: str, body: bytes, token: str = "") -> bool:
        return self.post(team, body, token) == 200

    def values(self, team: str) -> Mapping[int, float]:
        """The value of each step that is in the team's run."""
        path = self.bridge.directory / "data" / f"{run_id(f'{team}/x', 'default')}.jsonl"
        rows = [row for row in history_of(path) if "trainer/loss" in row]
        steps = [int(row["step"]) for row in rows]
        assert len(set(steps)) == len(steps), "a step has two rows"
        return {int(row["step"]): row["trainer/loss"] for row in rows}

    def has(self, team: str, step: int) -> bool:
        return step in self.values(team)

    def has_delivered(self, exporter: str, number: int, of: str = "metric_points") -> bool:
        """Whether an exporter of the gateway has brought so many points or spans."""
        name = f"otelcol_exporter_sent_{of}"
        return self.gateway.metric(name, exporter=f"otlp_http/{exporter}") == number


def measurement(team: str, step: int, **resource: str) -> bytes:
    """One value of a step of a team's run, in a request of some 24 KB."""
    attributes = {"rl.experiment.name": f"{team}/x", "rl.worker.role": "trainer"}
    attributes |= {"rl.worker.index": "0", "service.instance.id": "one", **PADDING, **resource}
    one = point(SIGN[team] * (step + 1))
    one.attributes.extend(key_values({"rl.loop.iteration": step}))
    return metrics_request(gauge(one), resource=attributes).SerializeToString()


def spans(team: str, number: int) -> bytes:
    """So many spans of a team, which its resource names as a bridge is told, in some 24 KB."""
    resource = {"rl.experiment.name": f"{team}/x", "rl.worker.role": "trainer", **PADDING}
    return trace_request(number, resource).SerializeToString()


def jaegers(of_team_b: str) -> str:
    """``jaegers.yaml`` of the page, with the address of team-b's."""
    (block,) = (text for text in blocks(PAGE, "yaml") if "exporters:" in text)
    return block.replace("http://jaeger-of-team-b:4348", of_team_b)


def expected(team: str, steps: Sequence[int]) -> Mapping[int, float]:
    return {step: SIGN[team] * (step + 1) for step in steps}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_two_teams_have_two_projects_with_two_keys(tmp_path: Path, stack: ExitStack) -> None:
    server = stack.enter_context(WandbServer())
    options = {}
    for team, key in KEYS.items():
        (tmp_path / f"key-of-{team}").write_text(key)
        (tmp_path / f"key-of-{team}").chmod(0o600)
        options[team] = (
            f'[team.tracker.options]\nkey_file = "{tmp_path}/key-of-{team}"\n'
            f'project = "of-{team}"\n'
        )
    tracker = (
        f'[tracker.options]\nbase_url = "{server.base_url}"\nmode = "online"\n'
        "transmit_interval_s = 1\n"
    )
    site = Shared(tmp_path, tracker, options=options, tracker="wandb")
    stack.enter_context(site.bridge)
    stack.enter_context(site.gateway)

    # What comes first has been judged when what comes after it has arrived.
    lie = measurement("team-a", 999, **{"otel_rl.team": "team-a"})
    assert site.post("team-b", lie) == 200
    assert site.post("team-b", measurement("team-b", 0), token=SENDERS["team-a"]) == 401
    assert (
        site.post("team-a", measurement("team-a", 0), token="none-of-those-that-are-known") == 401
    )
    agent = Collector(
        "agent",
        tmp_path / "agent",
        {
            "OTEL_RL_GATEWAY_URL": site.urls["team-b"],
            "OTEL_RL_GATEWAY_TOKEN": SENDERS["team-b"],
            "OTEL_RL_NODE": "node",
        },
    )
    stack.enter_context(agent)
    site.urls["team-b"] = agent.url  # which asks nobody on its node for a token
    for step in range(STEPS):
        for team in TEAMS:
            assert site.post(team, measurement(team, step)) == 200

    def has_all(team: str) -> bool:
        rows = server.history(run_id(f"{team}/x", "default"))
        found = {row["step"]: row["trainer/loss"] for row in rows if "trainer/loss" in row}
        return found == expected(team, range(STEPS))

    for team in TEAMS:
        assert wait_for(partial(has_all, team), ARRIVES_S), team
    used = {
        (path.split("/")[3], header["authorization"])
        for header, path in zip(server.headers(), server.paths(), strict=False)
        if path.startswith("/files/")
    }
    basic = {
        team: "Basic " + base64.b64encode(f"api:{key}".encode()).decode()
        for team, key in KEYS.items()
    }
    assert used == {(f"of-{team}", basic[team]) for team in TEAMS}
    given = {one["authorization"] for one in server.headers() if "authorization" in one}
    assert given == set(basic.values())
    for team in TEAMS:
        assert server.run(run_id(f"{team}/x", "default")).project == f"of-{team}"
    said = site.bridge.said()
    assert "Team team-b may not write experiment 'team-a/x'" in said
    assert not any(
        secret in said + site.gateway.said()
        for secret in (*TOKENS.values(), *SENDERS.values(), *KEYS.values())
    )


def test_a_worker_sends_to_its_teams_port_and_to_no_other_teams_run(
    tmp_path: Path, stack: ExitStack
) -> None:
    site = Shared(tmp_path)
    stack.enter_context(site.bridge)
    stack.enter_context(site.gateway)
    (tmp_path / "train.py").write_text(TRAIN)
    for experiment in ("team-a/stolen", "team-b/x"):
        environment = clean_environment(
            tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=site.urls["team-b"],
            OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Bearer%20{SENDERS['team-b']}",
            OTEL_RL_EXPERIMENT=experiment,
        )
        command = [sys.executable, str(tmp_path / "train.py")]
        subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=ARRIVES_S)
    wanted = dict.fromkeys(range(STEPS), 0.5)
    assert wait_for(lambda: site.values("team-b") == wanted, ARRIVES_S)
    stolen = f"{run_id('team-a/stolen', 'default')}.jsonl"
    assert not (site.bridge.directory / "data" / stolen).exists()
    assert "Team team-b may not write experiment 'team-a/stolen'" in site.bridge.said()


def test_an_old_and_a_new_token_are_valid_at_once(tmp_path: Path, stack: ExitStack) -> None:
    site = Shared(tmp_path)
    stack.enter_context(site.gateway)
    new = "another-token-of-team-b"
    assert site.post("team-b", measurement("team-b", 0), token=new) == 401
    with (tmp_path / "senders" / "team-b").open("a") as file:
        file.write(f"{new}\n")
    for token in (new, SENDERS["team-b"]):
        assert wait_for(partial(site.takes, "team-b", measurement("team-b", 1), token), ARRIVES_S)
    (tmp_path / "senders" / "team-b").write_text(f"{new}\n")
    assert wait_for(lambda: not site.takes("team-b", measurement("team-b", 2)), ARRIVES_S)
    assert site.takes("team-b", measurement("team-b", 2), new)


def test_nothing_on_the_host_of_the_gateway_reads_a_run(tmp_path: Path, stack: ExitStack) -> None:
    site = Shared(tmp_path)
    stack.enter_context(site.bridge)
    stack.enter_context(site.gateway)
    for team in TEAMS:
        assert site.post(team, measurement(team, 0)) == 200
        assert wait_for(partial(site.has, team, 0), ARRIVES_S)

    def runs(token: str) -> tuple[int, frozenset[str]]:
        """Status, and the teams whose runs are listed."""
        header = {"authorization": f"Bearer {token}"}
        answer = plain_http.get(f"{site.bridge.url}/api/runs", headers=header, timeout=60)
        return answer.status_code, frozenset(team for team in TEAMS if f"{team}/x" in answer.text)

    for team in TEAMS:
        assert runs(TOKENS[team]) == (200, frozenset({team}))
        assert runs(SENDERS[team]) == (401, frozenset())
    assert runs(TOKENS["gateway"]) == (200, frozenset())


def test_the_ports_speak_tls_with_the_file_of_the_page(tmp_path: Path, stack: ExitStack) -> None:
    files = tls_files(tmp_path)
    (tls,) = (text for text in blocks(PAGE, "yaml") if "tls:" in text)
    for name, file in (("gateway.pem", "server.pem"), ("gateway.key", "server.key")):
        tls = tls.replace(f"/run/secrets/{name}", str(files / file))
    site = Shared(tmp_path, further=[tls])
    stack.enter_context(site.gateway)
    for team in TEAMS:
        assert not site.takes(team, measurement(team, 0))  # in plain HTTP
        answer = httpx.post(
            site.urls[team].replace("http://", "https://") + "/v1/metrics",
            content=measurement(team, 0),
            headers={**PROTOBUF, "authorization": f"Bearer {SENDERS[team]}"},
            verify=ssl.create_default_context(cafile=str(files / "ca.pem")),
            timeout=60,
        )
        assert answer.status_code == 200


@pytest.mark.parametrize("team", TEAMS)
def test_a_gateway_without_a_teams_file_waits_for_it_and_tells_nobody_401(
    team: str, tmp_path: Path, stack: ExitStack
) -> None:
    site = Shared(tmp_path)
    file = tmp_path / "senders" / team
    tokens = file.read_text()
    file.unlink()
    stack.callback(site.gateway.kill)
    site.gateway.start(waits=False)
    assert wait_for(lambda: str(file) in site.gateway.said(), ARRIVES_S)
    # Senders keep what got no answer, and drop what was answered 401.
    assert {name: site.post(name, measurement(name, 0)) for name in TEAMS} == dict.fromkeys(
        TEAMS, 0
    )
    file.write_text(tokens)
    site.gateway.wait()
    for name in TEAMS:
        assert site.post(name, measurement(name, 0)) == 200


def test_a_gateway_killed_with_full_queues_loses_nothing_and_keeps_teams_apart(
    tmp_path: Path, stack: ExitStack
) -> None:
    site = Shared(tmp_path, queue_bytes=SMALL)
    stack.enter_context(site.bridge)
    stack.enter_context(site.gateway)
    site.bridge.kill()
    taken: dict[str, list[int]] = {team: [] for team in TEAMS}
    full: set[str] = set()
    for step in range(1_000):
        for team in set(TEAMS) - full:
            if site.post(team, measurement(team, step)) == 200:
                taken[team].append(step)
            else:
                full.add(team)
        if len(full) == len(TEAMS):
            break
    assert full == set(TEAMS)
    site.gateway.kill()
    site.gateway.start()
    site.bridge.start()
    wanted = {team: expected(team, steps) for team, steps in taken.items()}
    assert wait_for(lambda: {team: site.values(team) for team in TEAMS} == wanted, ARRIVES_S)


def test_a_team_that_floods_does_not_hold_up_another(tmp_path: Path, stack: ExitStack) -> None:
    site = Shared(tmp_path, queue_bytes=str(QUEUE_BYTES))
    stack.enter_context(site.bridge)
    stack.enter_context(site.gateway)
    flood = stack.enter_context(Flood(site))
    assert wait_for(lambda: flood.refused > 0, ARRIVES_S), "the gateway keeps up with the flood"
    for step in range(FLOODED):
        refused, before = flood.refused, flood.sent
        assert site.post("team-b", measurement("team-b", step)) == 200
        assert wait_for(partial(site.has_delivered, "team-b", step + 1), ARRIVES_S)
        # In one queue for both, all that the flood had there would have gone first.
        assert flood.sent - before < QUEUE_BYTES // flood.request_bytes
        assert wait_for(partial(site.has, "team-b", step), ARRIVES_S)
        assert wait_for(partial(flood.goes_on, refused), ARRIVES_S)
    assert site.values("team-b") == expected("team-b", range(FLOODED))


@pytest.mark.parametrize("has_jaegers", [False, True], ids=["no_jaeger", "a_jaeger_each"])
def test_a_team_whose_jaeger_is_away_does_not_hold_up_the_spans_of_another(
    has_jaegers: bool, tmp_path: Path, stack: ExitStack
) -> None:
    jaeger = stack.enter_context(serve(Sink()))
    further = [jaegers(jaeger.url)] if has_jaegers else []
    site = Shared(tmp_path, queue_bytes=SMALL, further=further)
    stack.enter_context(site.bridge)
    stack.enter_context(site.gateway)
    answers = [site.post("team-a", spans("team-a", 1), signal="traces") for _ in range(200)]
    assert 503 in answers or not has_jaegers
    for _ in range(STEPS):
        assert site.post("team-b", spans("team-b", 1), signal="traces") == 200
    # Once each: what one of two queues refuses would be sent again to both.
    assert wait_for(partial(site.has_delivered, "team-b", STEPS, "spans"), ARRIVES_S)
    if has_jaegers:
        assert wait_for(lambda: len(experiments(jaeger)) == STEPS, ARRIVES_S)
    assert set(experiments(jaeger)) <= {"team-b/x"}


@pytest.mark.parametrize("is_first", [True, False], ids=["before_jaegers", "after_jaegers"])
def test_whole_steps_go_to_the_jaeger_of_their_team_and_everything_to_the_bridge(
    is_first: bool, tmp_path: Path, stack: ExitStack
) -> None:
    of_a, of_b = (stack.enter_context(serve(Sink())) for _ in TEAMS)
    sampling = (CONFIGURATIONS / "sampling.yaml").read_text()
    files = [
        sampling.replace("decision_wait: 60s", "decision_wait: 1s"),
        jaegers(of_b.url).replace("[memory_limiter]", "[memory_limiter, tail_sampling]"),
    ]
    site = Shared(
        tmp_path,
        further=files if is_first else files[::-1],
        variables={"OTEL_RL_JAEGER_URL": of_a.url, "OTEL_RL_SLOW_MS": "5000"},
    )
    stack.enter_context(site.bridge)
    stack.enter_context(site.gateway)
    for number in range(STEPS):
        for team in TEAMS:
            request = trace_request(1, {"rl.experiment.name": f"{team}/x"})
            (span,) = request.resource_spans[0].scope_spans[0].spans
            span.trace_id = (number + 1).to_bytes(16)
            is_slow = number % 2 == 0
            span.start_time_unix_nano = span.end_time_unix_nano - (6 if is_slow else 1) * 10**9
            assert site.post(team, request.SerializeToString(), signal="traces") == 200
    for exporter in ("bridge", "team-b"):
        assert wait_for(partial(site.has_delivered, exporter, STEPS, "spans"), ARRIVES_S)
    for team, jaeger in zip(TEAMS, (of_a, of_b), strict=True):
        name = "jaeger" if team == "team-a" else "jaeger-team-b"
        assert wait_for(partial(site.has_delivered, name, STEPS // 2, "spans"), ARRIVES_S)
        assert experiments(jaeger) == [f"{team}/x"] * (STEPS // 2)


def experiments(sink: Sink) -> Sequence[str]:
    """The experiment of each span that has arrived."""
    return [
        attribute.value.string_value
        for request in sink.traces
        for resource in request.resource_spans
        for attribute in resource.resource.attributes
        if attribute.key == "rl.experiment.name"
        for scope in resource.scope_spans
        for _ in scope.spans
    ]


class Flood:
    """Sends as much of team-a as its port takes, inside its context.

    Attributes:
        sent: Requests that were taken.
        refused: Requests that were not, because the queue is full.
    """

    def __init__(self, site: Shared) -> None:
        self.sent = self.refused = 0
        self._site = site
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(FLOODERS)]

    def goes_on(self, refused: int) -> bool:
        """Whether more have been refused than so many."""
        return self.refused > refused

    @property
    def request_bytes(self) -> int:
        return len(self._request(0))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _send(self, number: int) -> None:
        while not self._over.is_set():
            if self._site.post("team-a", self._request(number)) == 200:
                self.sent += 1
            else:
                self.refused += 1

    def _request(self, number: int) -> bytes:
        now_ns = time.time_ns()
        points = [point(float(n), now_ns + n) for n in range(POINTS)]
        resource = {"rl.experiment.name": f"team-a/{number}", "rl.worker.role": "trainer"}
        return metrics_request(gauge(*points), resource=resource).SerializeToString()
