"""What a program calls on the SDK's providers works on otel_rl's, by the SDK's own classes."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import Meter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, Tracer, TracerProvider

import otel_rl
from otel_rl.worker import plugins, session
from tests.support.leftovers import own_instruments
from tests.support.otlp_sink import Sink, serve, sums

KINDS: dict[str, type] = {
    "MeterProvider": MeterProvider,
    "TracerProvider": TracerProvider,
    "Meter": Meter,
    "Tracer": Tracer,
    "Span": Span,
}


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    for variable in ("OTEL_RL_EXPERIMENT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(variable, raising=False)
    with serve(Sink()) as serving:
        otel_rl.init(
            experiment="e", role="trainer", endpoint=serving.url, export_interval_s=60, index=0
        )
        with own_instruments():
            yield serving
            otel_rl.finish(timeout_s=60)


def _ours() -> dict[str, object]:
    running = session.running()
    assert running is not None
    meters, tracers = running.providers.meter, running.providers.tracer
    tracer = tracers.get_tracer("t")
    return {
        "MeterProvider": meters,
        "TracerProvider": tracers,
        "Meter": meters.get_meter("m"),
        "Tracer": tracer,
        "Span": tracer.start_span("s"),
    }


def _public(kind: type) -> Iterator[tuple[str, object]]:
    yield from ((name, of) for name, of in inspect.getmembers(kind) if not name.startswith("_"))


def _takes(ours: Callable[..., object], theirs: Callable[..., object]) -> bool:
    """Whether every parameter of theirs can be given to ours in the same way."""
    of_ours = inspect.signature(ours).parameters
    names = [*of_ours]
    takes_any = inspect.Parameter.VAR_KEYWORD in {one.kind for one in of_ours.values()}
    place = 0
    for name, parameter in inspect.signature(theirs).parameters.items():
        if name == "self" or parameter.kind in (
            inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
        ):  # fmt: skip
            continue
        own = of_ours.get(name)
        if own is None:
            if not takes_any:
                return False
            continue
        is_positional = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        if is_positional and names[place] != name:
            return False
        if (parameter.default is inspect.Parameter.empty) != (
            own.default is inspect.Parameter.empty
        ):
            return False
        place += 1
    return True


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the SDK has
def test_what_the_sdk_has_is_there_and_takes_the_same_arguments(sink: Sink, name: str) -> None:
    ours, lacking = _ours()[name], []
    for member, theirs in _public(KINDS[name]):
        own = getattr(ours, member, None)
        is_there = hasattr(ours, member)
        if callable(theirs) and not isinstance(theirs, property):
            is_there = callable(own) and _takes(own, theirs)
        if not is_there:
            lacking.append(member)
    assert lacking == []


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (plugins.meter_provider, MeterProvider),
        (plugins.tracer_provider, TracerProvider),
    ],
)
def test_a_provider_that_does_nothing_has_it_too(
    make: Callable[[], object], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    ours = make()
    assert [name for name, _ in _public(kind) if not hasattr(ours, name)] == []


def test_a_meter_provider_flushes_when_it_is_told_to(sink: Sink) -> None:
    provider: Any = metrics.get_meter_provider()
    provider.get_meter("m").create_gauge("g").set(1.5)
    assert provider.force_flush(timeout_millis=60_000)
    assert [m.value for m in sink.measurements("g")] == [1.5]


def test_a_meter_provider_that_is_shut_down_has_delivered_and_the_worker_goes_on(
    sink: Sink,
) -> None:
    provider: Any = metrics.get_meter_provider()
    gauge = provider.get_meter("m").create_gauge("g")
    gauge.set(1.5)
    provider.shutdown(timeout_millis=60_000)
    assert [m.value for m in sink.measurements("g")] == [1.5]
    gauge.set(2.5)
    otel_rl.log({"loss": 1.0}, step=1)
    assert otel_rl.flush(timeout_s=60)
    assert [m.value for m in sink.measurements("g")] == [1.5, 2.5]
    assert [m.step for m in sink.measurements("loss")] == [1]


def test_a_program_is_told_that_a_reader_which_it_adds_gets_nothing(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    provider: Any = metrics.get_meter_provider()
    reader = InMemoryMetricReader()
    provider.add_metric_reader(reader)
    provider.get_meter("m").create_gauge("g").set(1.5)
    assert [m for m in caplog.messages if "InMemoryMetricReader" in m and "gets nothing" in m]
    provider.remove_metric_reader(reader)
    assert provider.force_flush(timeout_millis=60_000)
    assert [m.value for m in sink.measurements("g")] == [1.5]


def test_a_tracer_provider_flushes_and_takes_a_processor(sink: Sink) -> None:
    provider: Any = trace.get_tracer_provider()
    ended: list[str] = []

    class Processor(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            ended.append(span.name)

    provider.add_span_processor(Processor())
    with provider.get_tracer("t").start_as_current_span("s"):
        pass
    assert provider.force_flush(timeout_millis=60_000)
    assert ended == ["s"]
    assert sink.traces


@pytest.mark.process
def test_a_program_that_ends_its_own_providers_ends_well(tmp_path: Path) -> None:
    program = """
from opentelemetry import metrics, trace
import otel_rl
otel_rl.init(role="trainer")
metrics.get_meter("m").create_counter("tokens").add(3)
metrics.get_meter_provider().shutdown()
trace.get_tracer_provider().shutdown()
assert otel_rl.flush(timeout_s=60)
"""
    with serve(Sink()) as sink:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={
                "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
                "OTEL_RL_EXPERIMENT": "e",
                "OTEL_RL_EXIT_TIMEOUT": "60",
                "PATH": "/usr/bin",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert set(sums(sink.metrics, "tokens").values()) == {3}
