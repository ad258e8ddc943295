"""What each process was busy with at each moment."""

from dataclasses import replace

from otel_rl.diagnose.spans.activity import Activity, Process
from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.records import SpanRecord
from tests.unit.diagnose.span_builder import span


def activity(
    *spans: SpanRecord, start: int = 0, end: int = 100, worker: str = "trainer-0"
) -> list[tuple[int, int, str]]:
    """(start, end, phase) of each stretch of one process."""
    found = Activity(Forest(spans), start, end).within(start, end)
    stretches = found[Process(worker.partition("-")[0], worker)]
    return [(one.start_ns, one.end_ns, one.phase) for one in stretches]


def test_a_phase_within_a_phase_takes_its_time_out() -> None:
    assert activity(
        span("step", 0, 100, step=1),
        span("train", 10, 90, within="step"),
        span("param_sync", 40, 60, within="train", waits=True),
    ) == [
        (0, 10, "unaccounted"),
        (10, 40, "train"),
        (40, 60, "param_sync"),
        (60, 90, "train"),
        (90, 100, "unaccounted"),
    ]


def test_requests_side_by_side_count_once() -> None:
    assert activity(
        span("generate#1", 0, 60),
        span("generate#2", 20, 80),
        span("generate#3", 20, 30),
    ) == [(0, 80, "generate")]


def test_a_thread_that_works_counts_before_one_that_waits() -> None:
    assert activity(span("generate", 0, 50), span("collector_wait", 10, 70, waits=True)) == [
        (0, 50, "generate"),
        (50, 70, "collector_wait"),
    ]


def test_work_within_a_phase_that_is_none_itself_is_the_phase() -> None:
    request = span("http", 20, 40, within="collector_wait")
    plain = replace(request, phase="", phase_class="", name="POST")
    assert activity(span("collector_wait", 0, 50, waits=True), plain) == [(0, 50, "collector_wait")]


def test_what_reaches_out_of_the_interval_is_cut_off() -> None:
    assert activity(span("train", 0, 100), start=30, end=40) == [(30, 40, "train")]


def test_a_process_that_did_nothing_is_there_from_its_first_span_to_its_last() -> None:
    spans = [
        span("train", 0, 100),
        span("generate#1", 0, 10, worker="generator-0"),
        span("generate#2", 90, 95, worker="generator-0"),
        span("generate#3", 0, 10, worker="generator-1"),
    ]
    found = Activity(Forest(spans), 0, 100).within(20, 80)
    assert {process.worker: len(stretches) for process, stretches in found.items()} == {
        "trainer-0": 1,
        "generator-0": 0,
    }
