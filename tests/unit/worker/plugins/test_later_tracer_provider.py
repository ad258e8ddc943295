"""A program's own TracerProvider, set when otel_rl's is the global one: both get the spans."""

import pytest

from tests.otlp_sink import Sink
from tests.unit.worker.plugins.test_otel_providers import PLUGINS, run

pytestmark = pytest.mark.process

LIBRARY = """
from opentelemetry import trace
library = trace.get_tracer("library")

@library.start_as_current_span("decorated")
def work():
    pass
"""

LATER = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
exported = InMemorySpanExporter()
later = TracerProvider()
trace.set_tracer_provider(later)
later.add_span_processor(SimpleSpanProcessor(exported))

def names():
    return sorted(span.name for span in exported.get_finished_spans())
"""

WORK = """
work()
library.start_span("of a library").end()
with trace.get_tracer("mine").start_as_current_span("mine"):
    pass
"""

ALL = ["decorated", "mine", "of a library"]


def test_both_get_the_spans_of_earlier_and_later_tracers(sink: Sink) -> None:
    finished = run(LIBRARY + LATER + WORK + f"assert names() == {ALL}", **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert _span_names(sink) == ALL


def test_both_get_them_after_init(sink: Sink) -> None:
    code = "import otel_rl\notel_rl.init(role='trainer')\n" + LIBRARY + LATER + WORK
    finished = run(code + f"assert names() == {ALL}", **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert _span_names(sink) == ALL


def test_both_get_phases(sink: Sink) -> None:
    phase = """
import otel_rl
with otel_rl.step(3), otel_rl.phase("generation"):
    pass
assert len(names()) == 2, names()
"""
    finished = run(LIBRARY + LATER + phase, **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert len(_span_names(sink)) == 2


def test_a_second_later_provider_is_refused_as_ever(sink: Sink) -> None:
    second = """
second, exported_by_second = TracerProvider(), InMemorySpanExporter()
second.add_span_processor(SimpleSpanProcessor(exported_by_second))
trace.set_tracer_provider(second)
library.start_span("span").end()
assert not exported_by_second.get_finished_spans()
assert names() == ["span"], names()
"""
    finished = run(LIBRARY + LATER + second, **_environment(sink))
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("Overriding of current TracerProvider") == 1


def test_one_that_is_not_of_the_sdk_is_refused_as_ever(sink: Sink) -> None:
    wrapper = """
present = trace.get_tracer_provider()

class Wrapper(trace.TracerProvider):
    def get_tracer(self, *arguments, **named):
        return present.get_tracer(*arguments, **named)

trace.set_tracer_provider(Wrapper())
library.start_span("once").end()
"""
    finished = run(LIBRARY + wrapper, **_environment(sink))
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("Overriding of current TracerProvider") == 1
    assert _span_names(sink) == ["once"]


def test_its_sampler_decides_for_it_alone(sink: Sink) -> None:
    code = LIBRARY + LATER.replace("TracerProvider()", "TracerProvider(sampler=ALWAYS_OFF)") + WORK
    finished = run(code + "assert names() == []", **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert _span_names(sink) == ALL


def test_the_run_has_spans_after_its_shutdown(sink: Sink) -> None:
    finished = run(LIBRARY + LATER + "later.shutdown()\n" + WORK, **_environment(sink))
    assert finished.returncode == 0, finished.stderr
    assert _span_names(sink) == ALL


def test_its_exporters_see_its_resource_and_the_worker(sink: Sink) -> None:
    later = """TracerProvider(resource=Resource({"service.name": "mine", "rollout": "a"}))"""
    code = LIBRARY + "from opentelemetry.sdk.resources import Resource\n"
    code += LATER.replace("TracerProvider()", later)
    code += """
with library.start_as_current_span("span", attributes={"a": 1}) as span:
    span.add_event("event")
(found,) = exported.get_finished_spans()
resource = found.resource.attributes
assert (resource["rollout"], resource["rl.experiment.name"]) == ("a", "e")
assert resource["service.name"] == trace.get_tracer_provider().resource.attributes["service.name"]
assert (found.name, dict(found.attributes), found.events[0].name) == ("span", {"a": 1}, "event")
assert found.context == span.get_span_context()
"""
    finished = run(code, **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_flush_of_the_global_provider_flushes_it(sink: Sink) -> None:
    batched = """
from opentelemetry.sdk.trace.export import BatchSpanProcessor
in_batches = InMemorySpanExporter()
later.add_span_processor(BatchSpanProcessor(in_batches, schedule_delay_millis=600_000))
library.start_span("span").end()
assert trace.get_tracer_provider().force_flush()
assert len(in_batches.get_finished_spans()) == 1
"""
    finished = run(LIBRARY + LATER + batched, **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")


def test_an_error_of_its_processors_stays_out_of_the_program_and_is_counted(sink: Sink) -> None:
    broken = """
from opentelemetry.sdk.trace import SpanProcessor

class Broken(SpanProcessor):
    def on_end(self, span):
        raise RuntimeError("broken processor")

later.add_span_processor(Broken())
"""
    finished = run(LIBRARY + LATER + broken + WORK, **_environment(sink))
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("RuntimeError: broken processor") == 1
    assert _span_names(sink) == ALL


def _environment(sink: Sink) -> dict[str, str]:
    return {**PLUGINS, "OTEL_RL_EXPERIMENT": "e", "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url}


def _span_names(sink: Sink) -> list[str]:
    return sorted(
        span.name
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )
