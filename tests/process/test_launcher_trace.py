"""Spans of a process whose launcher has a trace."""

from pathlib import Path

import pytest

from tests.process.test_run_environment import run

pytestmark = pytest.mark.process

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

SCRIPT = """
    import otel_rl
    from opentelemetry import trace

    otel_rl.init()
    tracer = trace.get_tracer("m")
    with tracer.start_as_current_span("setup") as span:
        print("setup", format(span.get_span_context().trace_id, "032x"))
    with otel_rl.phase("generate"):
        span = trace.get_current_span()
        links = [format(link.context.span_id, "016x") for link in span.links]
        print("phase", format(span.get_span_context().trace_id, "032x"), span.parent, *links)
    assert otel_rl.finish(timeout_s=60)
"""


def test_own_spans_continue_the_trace_and_phases_link_to_it(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, TRACEPARENT=f"00-{TRACE}-{SPAN}-01")
    assert done.status == 0, done.err
    setup, phase = (line.split()[1:] for line in done.out.splitlines() if " " in line)
    assert setup == [TRACE]
    assert phase[0] != TRACE
    assert phase[1:] == ["None", SPAN]


def test_an_invalid_traceparent_is_no_trace(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, TRACEPARENT="00-nonsense")
    assert done.status == 0, done.err
    setup, phase = (line.split()[1:] for line in done.out.splitlines() if " " in line)
    assert setup != [TRACE]
    assert phase[1:] == ["None"]


IN_A_THREAD = """
    import threading

    import otel_rl
    from opentelemetry import trace

    def links():
        return [format(link.context.span_id, "016x") for link in trace.get_current_span().links]

    def train():
        with otel_rl.step(1):
            found = links()
        with otel_rl.phase("evaluate"):
            print("thread", *found, *links())

    with otel_rl.phase("model_load"):  # starts the worker: there is no init
        print("first", *links())
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert otel_rl.finish(timeout_s=60)
"""


def test_steps_of_other_threads_and_of_a_worker_without_init_link_to_it(tmp_path: Path) -> None:
    done = run(tmp_path, IN_A_THREAD, TRACEPARENT=f"00-{TRACE}-{SPAN}-01")
    assert done.status == 0, done.err
    found = dict(line.split(maxsplit=1) for line in done.out.splitlines() if " " in line)
    assert found["first"] == SPAN
    assert found["thread"] == f"{SPAN} {SPAN}"
