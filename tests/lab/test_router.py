"""Behind the router every experiment has one bridge, and a gateway that dies loses nothing."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from otel_rl.run_id import run_id
from tests.faults.keeper import wait_for
from tests.lab.running import Bridge, Collector
from tests.lab.site import BRIDGE, gateway_of, history_of
from tests.support import plain_http
from tests.support.otlp_requests import gauge, metrics_request, point

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

EXPERIMENTS = [f"experiment-{letter}" for letter in "abcdef"]
# Where each goes depends on the ports of the gateways, which are random: now and then all six go
# the same way. That all of these do so as well happens once in millions of years.
FURTHER = [f"further-{number}" for number in range(40)]
VALUES = 20
ARRIVES_S = 180.0
RETRY_S = 0.05


class Tier:
    """Two gateways with a bridge each, and a router in front of them."""

    def __init__(self, directory: Path) -> None:
        self.bridges = [Bridge(directory / f"bridge-{n}", BRIDGE) for n in range(2)]
        self.gateways = [
            gateway_of(bridge, directory / f"gateway-{n}") for n, bridge in enumerate(self.bridges)
        ]
        addresses = ", ".join(gateway.grpc_address for gateway in self.gateways)
        self.router = Collector(
            "scale", directory / "router", {"OTEL_RL_GATEWAYS": f"[{addresses}]"}
        )

    def runs(self, experiment: str) -> Sequence[Sequence[float]]:
        """Its values in each bridge that has a run of it."""
        name = f"{run_id(experiment, 'default')}.jsonl"
        paths = [bridge.directory / "data" / name for bridge in self.bridges]
        key = "workers/trainer/0/loss"
        return [
            [row[key] for row in history_of(path) if key in row] for path in paths if path.exists()
        ]

    def has(self, experiment: str, wanted: Sequence[float]) -> bool:
        """Whether exactly one bridge has it, with each value once."""
        return [sorted(values) for values in self.runs(experiment)] == [wanted]

    def has_runs(self, number: int) -> bool:
        """Whether a bridge has any run."""
        return any((self.bridges[number].directory / "data").glob("*.jsonl"))


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Tier]:
    tier = Tier(tmp_path)
    with ExitStack() as stack:
        parts = (*tier.bridges, *tier.gateways, tier.router)
        # All at once, then each in turn until it can be used.
        for part in parts:
            stack.callback(part.kill)
            part.start(waits=False)
        for part in parts:
            part.wait()
        yield tier


def test_each_experiment_is_one_run_in_one_bridge_with_each_value_once(tier: Tier) -> None:
    for value in range(VALUES):
        if value == VALUES // 2:
            for gateway in tier.gateways:
                gateway.kill()
                gateway.start()
        deliver(tier.router, float(value))
    wanted = [float(value) for value in range(VALUES)]
    for experiment in EXPERIMENTS:
        has_all = partial(tier.has, experiment, wanted)
        assert wait_for(has_all, ARRIVES_S), (experiment, tier.runs(experiment))
    further = iter(FURTHER)
    while not all(map(tier.has_runs, range(len(tier.bridges)))):
        experiment = next(further)
        deliver(tier.router, 0.0, [experiment])
        assert wait_for(partial(tier.has, experiment, [0.0]), ARRIVES_S)


def deliver(router: Collector, value: float, experiments: Sequence[str] = EXPERIMENTS) -> None:
    """Send one measurement of every experiment, in one request, until it is answered for."""
    request = metrics_request()
    del request.resource_metrics[:]
    for experiment in experiments:
        resource = {"rl.experiment.name": experiment, "rl.worker.role": "trainer"}
        resource |= {"rl.worker.index": "0", "service.instance.id": "one"}
        request.MergeFrom(metrics_request(gauge(point(value)), resource=resource))
    body, headers = request.SerializeToString(), {"content-type": "application/x-protobuf"}

    def is_taken() -> bool:
        try:
            url = f"{router.url}/v1/metrics"
            return (
                plain_http.post(url, content=body, headers=headers, timeout=30).status_code == 200
            )
        except httpx.HTTPError:
            return False

    assert wait_for(is_taken, ARRIVES_S, look_s=RETRY_S)
