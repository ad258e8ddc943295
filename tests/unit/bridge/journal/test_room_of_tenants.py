"""What each token may have in the journal: batches, and everything that is made of them."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import requests

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import load_settings
from otel_rl.run_id import run_id
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.postgres import PostgresServer
from tests.support.slow import slow_after
from tests.support.waiting import wait_until

MIB = 1 << 20
TOKENS = {name: sha256(name.encode()).hexdigest() for name in ("greedy", "victim")}
Send = Callable[[str, bytes], int]


@pytest.fixture(params=slow_after(1, ["sqlite", "postgres"]))
def bridge(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bridge]:
    url = None
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.new_url()
    tokens = [
        {
            "name": name,
            "experiments": [f"{name}/*"],
            "sha256": [sha256(token.encode()).hexdigest()],
        }
        for name, token in TOKENS.items()
    ]
    running = Bridge(
        load_settings(
            None,
            {
                "data": tmp_path,
                "listen": {"http": "127.0.0.1:0", "grpc": "off"},
                "tracker": {"name": "jsonl", "keep_confirmed_s": 0, "confirm_interval_s": 0.05},
                "rows": {"start_wait_s": 0},
                "journal": {"max_bytes": 2 * MIB, "url": url},
                "team": tokens,
            },
        )
    )
    running.start()
    yield running
    running.stop()


@pytest.fixture
def send(bridge: Bridge) -> Iterator[Send]:
    with requests.Session() as session:

        def post(token: str, body: bytes) -> int:
            headers = {
                "content-type": "application/x-protobuf",
                "authorization": f"Bearer {TOKENS[token]}",
            }
            url = f"http://{bridge.http}/v1/metrics"
            return session.post(url, data=body, headers=headers, timeout=90).status_code

        yield post


def noise(part: int, n: int) -> bytes:
    """Series that are new to their run, whose names and attributes are kept as long as it is."""
    metrics = []
    for number in range(n):
        one = point(float(number))
        one.attributes.extend(key_values({"text": f"{part}.{n}.{number}." * 30}))
        metrics.append(gauge(one, name=f"m.{part}.{n}.{number}"))
    resource = {"rl.experiment.name": f"greedy/{part % 10}", "rl.worker.role": "trainer"}
    return metrics_request(*metrics, resource=resource).SerializeToString()


def step(number: int) -> bytes:
    one = point(float(number))
    one.attributes.extend(key_values({"rl.loop.iteration": number}))
    resource = {"rl.experiment.name": "victim/one", "rl.worker.role": "trainer"}
    return metrics_request(gauge(one), resource=resource).SerializeToString()


def rows_of_the_victim(directory: Path) -> int:
    path = directory / f"{run_id('victim/one', 'default')}.jsonl"
    return path.read_text().count('"loss"') if path.exists() else 0


@pytest.mark.process
def test_what_one_token_fills_the_journal_with_refuses_no_request_of_another(
    bridge: Bridge, send: Send, tmp_path: Path
) -> None:
    answers = []
    for number in range(20):
        # Up to the last byte: what is small fits where something large does not.
        answers += [send("greedy", noise(number, n)) for n in (400, 100, 20, 5, 1, 1)]
        assert send("victim", step(number)) == 200, f"after {number} requests of the other"
        # By its row, what came before it has become rows and states.
        wait_until(lambda: rows_of_the_victim(tmp_path) >= number, "its row", timeout_s=90)  # noqa: B023
    assert 503 in answers
