import os
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk.resources import Resource

import otel_rl
from otel_rl.worker import session
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from tests.support.otlp_sink import Measurement, Sink, measurements, serve

Collect = Callable[[], list[Measurement]]


@pytest.fixture(autouse=True)
def nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has caused to be logged is not kept back from the next for a minute."""
    monkeypatch.setattr(session.GUARD, "_next_log_s", {})


@pytest.fixture
def sink() -> Iterator[Sink]:
    with serve(Sink()) as serving:
        yield serving


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine that runs the tests leaks into them."""
    for prefix in ("OTEL_", "SLURM_", "OMPI_", "MV2_", "PMI_", "RAY_", "ROLE_"):
        for variable in [name for name in os.environ if name.startswith(prefix)]:
            monkeypatch.delenv(variable)
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("OTEL_RL_PROVENANCE", "off")
    monkeypatch.setenv("OTEL_RL_CONSOLE", "off")
    monkeypatch.setenv("OTEL_RL_HOST", "off")


@pytest.fixture
def started(sink: Sink, clean_environment: None) -> Iterator[Sink]:
    """A running session that reports to the sink, ended afterwards."""
    otel_rl.init(
        experiment="exp", role="trainer", index=0, count=2, endpoint=sink.url, export_interval_s=60
    )
    yield sink
    otel_rl.finish(timeout_s=60)


@pytest.fixture
def drops() -> Drops:
    return Drops()


@pytest.fixture
def provider(drops: Drops) -> BufferedMeterProvider:
    return BufferedMeterProvider(Resource({"service.name": "test"}), Guard(drops))


@pytest.fixture
def collect(provider: BufferedMeterProvider) -> Collect:
    """What the gauges of ``provider`` recorded since the last call."""

    def collected() -> list[Measurement]:
        return list(
            measurements(
                [ExportMetricsServiceRequest.FromString(r.payload) for r in provider.collect()]
            )
        )

    return collected
