"""What a worker reports of its own process's memory."""

import resource
import subprocess
import sys

import psutil
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.settings import HostSettings
from otel_rl.worker.system.host import Container, HostRecorder, memory_of_process


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._reader = InMemoryMetricReader()
        meter = MeterProvider([self._reader]).get_meter("test")
        self._recorder = HostRecorder(meter, Guard(Drops()), lambda: self.now_s)

    def start(self, settings: HostSettings) -> None:
        self._recorder.start(settings, "node", "run")

    def collect(self) -> dict[str, float]:
        data = self._reader.get_metrics_data()
        return {
            metric.name: point.value
            for of in (data.resource_metrics if data else ())
            for scope in of.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
            and ".memory." in metric.name.partition("process")[2]
        }


def test_a_process_reports_its_memory_and_its_limit_once_an_interval() -> None:
    world = World()
    world.start(HostSettings(interval_s=5))
    first = world.collect()
    assert first["process.memory.usage"] == pytest.approx(
        psutil.Process().memory_info().rss, rel=0.2
    )
    assert 0 < first["rl.process.memory.limit"] <= psutil.virtual_memory().total
    world.now_s = 4.0
    assert world.collect() == {}
    world.now_s = 5.0
    assert len(world.collect()) == 2


def test_without_reports_of_the_host_there_are_none_of_the_process() -> None:
    world = World()
    world.start(HostSettings(enabled=False))
    assert world.collect() == {}


@pytest.mark.process
def test_the_limit_is_the_process_s_own_where_that_is_lower() -> None:
    own = 4 << 30
    program = (
        "import resource; from otel_rl.worker.system.host import Container, memory_of_process;"
        f"resource.setrlimit(resource.RLIMIT_DATA, ({own}, {own}));"
        "print(memory_of_process(Container())[1])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert float(told.stdout) <= own
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != own
    assert memory_of_process(Container())[0] > 1 << 20
