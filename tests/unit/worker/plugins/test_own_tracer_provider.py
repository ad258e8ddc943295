"""A program's own TracerProvider, set after a library asked for a tracer: it gets all spans."""

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

OWN = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exported = InMemorySpanExporter()
own = TracerProvider()
own.add_span_processor(SimpleSpanProcessor(exported))
"""

SET = """
trace.set_tracer_provider(own)
assert trace.get_tracer_provider() is own
"""

WORK = """
work()
library.start_span("of a library").end()
with trace.get_tracer("mine").start_as_current_span("mine"):
    pass
names = sorted(span.name for span in exported.get_finished_spans())
assert names == ["decorated", "mine", "of a library"], names
"""


def test_it_gets_the_spans_of_tracers_that_a_library_asked_for_before(sink: Sink) -> None:
    finished = run(LIBRARY + OWN + SET + WORK, **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_second_provider_of_the_program_is_refused_as_ever(sink: Sink) -> None:
    second = (
        "trace.set_tracer_provider(TracerProvider())\nassert trace.get_tracer_provider() is own"
    )
    finished = run(LIBRARY + OWN + SET + second, **_environment(sink))
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("Overriding of current TracerProvider") == 1


def test_one_that_wraps_the_present_provider_makes_each_span_once(sink: Sink) -> None:
    wrapper = """
present = trace.get_tracer_provider()

class Wrapper(trace.TracerProvider):
    def get_tracer(self, *arguments, **named):
        return present.get_tracer(*arguments, **named)

own = Wrapper()
"""
    code = LIBRARY + wrapper + SET + 'library.start_span("once").end()\n'
    finished = run(code, **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert _span_names(sink) == ["once"]


def test_before_it_is_set_the_run_has_the_spans(sink: Sink) -> None:
    early = 'library.start_span("early").end()\n'
    finished = run(LIBRARY + early + OWN + SET + WORK, **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert _span_names(sink) == ["early"]


def test_after_init_it_is_the_programs_all_the_same(sink: Sink) -> None:
    code = "import otel_rl\notel_rl.init(role='trainer')\n" + LIBRARY + OWN + SET + WORK
    finished = run(code, **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")


def test_one_that_is_set_while_a_library_asks_for_a_tracer_stays(sink: Sink) -> None:
    meanwhile = """
import threading
from opentelemetry import trace
from otel_rl.worker import session

begin, is_asked, is_set = session.implicit_session, threading.Event(), threading.Event()

def begin_later():
    is_asked.set()
    assert is_set.wait(60)
    return begin()

session.implicit_session = begin_later
library = threading.Thread(target=trace.get_tracer, args=("library",))
library.start()
assert is_asked.wait(60)
"""
    end = "is_set.set()\nlibrary.join()\nassert trace.get_tracer_provider() is own\n"
    finished = run(OWN + meanwhile + SET + end, **_environment(sink))
    assert (finished.returncode, finished.stderr) == (0, "")


def test_its_spans_do_not_repeat_warnings_that_are_shown_once(sink: Sink) -> None:
    steps = """
import warnings
for _ in range(3):
    library.start_span("step").end()
    warnings.warn("once at a place", UserWarning)
"""
    finished = run(LIBRARY + OWN + SET + steps, **_environment(sink))
    assert finished.stderr.count("UserWarning: once at a place") == 1, finished.stderr


def _environment(sink: Sink) -> dict[str, str]:
    return {**PLUGINS, "OTEL_RL_EXPERIMENT": "e", "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url}


def _span_names(sink: Sink) -> list[str]:
    return [
        span.name
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
