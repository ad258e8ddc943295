"""A trace is valid by the Trace Event Format, and has every span at its time."""

import io
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from otel_rl.perfetto import Counter, TraceSummary, of_steps, write_trace
from otel_rl.records import SpanRecord
from otel_rl.semconv.spec import STEP_SPAN
from tests.support.traces import BEGUN_NS, MS, span, steps_of_a_run

NAMES = {"trainer-0": "trainer/0", "generator-0": "generator/0", "generator-1": "generator/1"}

REQUIRED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "M": {"name", "pid", "tid", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"name", "pid", "ts", "args"},
}
"""Fields of each kind of event, by "Trace Event Format", Google, 2016."""


def written(
    spans: Iterable[SpanRecord],
    counters: Iterable[Counter] = (),
    steps: tuple[int, int] | None = None,
) -> tuple[list[dict[str, Any]], TraceSummary]:
    file = io.BytesIO()
    kept = [*spans]
    if steps is not None:
        kept = of_steps(kept, *steps)
    summary = write_trace(file, kept, names=NAMES, counters=counters)
    trace = json.loads(file.getvalue())
    assert trace["displayTimeUnit"] == "ms"
    return trace["traceEvents"], summary


def of_kind(events: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == kind]


def test_every_event_has_the_fields_of_its_kind() -> None:
    counters = [Counter("generator/0", "queue/depth", BEGUN_NS + 150 * MS, 3.0)]
    events, summary = written(steps_of_a_run(range(3)), counters)
    assert {event["ph"] for event in events} == set(REQUIRED)
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys()
        assert isinstance(event["pid"], int)
    assert summary == TraceSummary(spans=21, flows=14, counters=1, processes=3)


def test_times_are_exact_to_the_nanosecond() -> None:
    spans = [
        span("first", BEGUN_NS, BEGUN_NS + 1),
        span("later", BEGUN_NS + 10**15 + 1, BEGUN_NS + 10**15 + 1_002),  # twelve days
    ]
    events, _ = written(spans)
    first, later = of_kind(events, "X")
    assert (first["ts"], first["dur"]) == (0, 0.001)
    assert (round(later["ts"] * 1000), later["dur"]) == (10**15 + 1, 1.001)


def test_processes_are_workers_in_order_and_lanes_have_names() -> None:
    first = [span("first", BEGUN_NS - 1, BEGUN_NS)]  # the trainer begins first
    events, _ = written([*steps_of_a_run(range(2)), *first])
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    sorting = [e for e in events if e["name"] == "process_sort_index"]
    places = {e["pid"]: e["args"]["sort_index"] for e in sorting}
    in_order = [names[pid] for pid in sorted(names, key=places.__getitem__)]
    assert in_order == ["trainer/0", "generator/0", "generator/1"]
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in of_kind(events, "X")} == threads


def test_a_flow_leads_from_a_sample_to_the_step_that_used_it_in_time() -> None:
    events, _ = written(steps_of_a_run(range(3)))
    begins = {event["id"]: event for event in of_kind(events, "s")}
    ends = {event["id"]: event for event in of_kind(events, "f")}
    assert begins.keys() == ends.keys()
    for place, begin in begins.items():
        assert begin["ts"] < ends[place]["ts"]
        for event in (begin, ends[place]):
            assert any(
                (span["pid"], span["tid"]) == (event["pid"], event["tid"])
                and span["ts"] <= event["ts"] <= span["ts"] + span["dur"]
                for span in of_kind(events, "X")
            )


def test_a_step_that_waited_for_its_sample_is_reached_when_the_sample_was_there() -> None:
    spans = [
        span("step", 0, 100_000, uses=["sample"]),
        span("sample", 20_000, 60_000, worker="generator-0"),
    ]
    events, _ = written(spans)
    assert of_kind(events, "s")[0]["ts"] == 20
    assert of_kind(events, "f")[0]["ts"] == 60


def test_a_sample_that_began_after_its_step_by_another_clock_has_no_flow() -> None:
    events, summary = written(
        [span("step", 0, 10, uses=["sample"]), span("sample", 20, 60, worker="generator-0")]
    )
    assert summary.flows == 0
    assert not of_kind(events, "f")


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", '"};\\', "\u202egnp", "\u2028\0\x1b[31m", "x" * 10_000, ""],
)
def test_a_name_is_data_whatever_it_holds(name: str) -> None:
    file = io.BytesIO()
    write_trace(file, [span(f"{name}#", 0, 9, worker="a-0")], names={"a-0": name or "a"})
    assert b"\x1b" not in file.getvalue()
    events = json.loads(file.getvalue())["traceEvents"]
    assert of_kind(events, "X")[0]["name"] == (name or "#")


def test_a_value_that_is_no_number_is_left_out() -> None:
    counters = [Counter("trainer/0", "x", 5, value) for value in (1.0, float("nan"), float("inf"))]
    events, _ = written([span("one", 0, 9)], counters)
    assert [event["args"]["value"] for event in of_kind(events, "C")] == [1.0]


def test_values_of_a_replaced_worker_are_with_the_process_of_their_time() -> None:
    spans = [span("a", 0, 10, worker="old"), span("b", 20, 40, worker="new")]
    file = io.BytesIO()
    counters = [Counter("w/0", "x", time_ns, 1.0) for time_ns in (5, 15, 30)]
    write_trace(file, spans, names={"old": "w/0", "new": "w/0"}, counters=counters)
    events = json.loads(file.getvalue())["traceEvents"]
    assert [event["pid"] for event in of_kind(events, "C")] == [1, 1, 2]


def test_some_steps_come_with_the_samples_and_weights_that_they_used() -> None:
    events, _ = written(steps_of_a_run(range(10)), steps=(5, 5))
    names = {e["args"].get("span", e["name"]) for e in of_kind(events, "X")}
    assert {"train#5", "generate#4.0", "weight_sync#4.0"} <= names  # step 5 links to step 4
    assert not {"generate#3.0", "train#6", "train#3"} & names


def whole_step(start_ns: int, end_ns: int, step: int, worker: str = "trainer-0") -> SpanRecord:
    one = span(f"step#{start_ns}", start_ns, end_ns, step=step, worker=worker)
    return replace(one, name=STEP_SPAN)


def test_a_step_that_was_made_twice_comes_without_what_was_between() -> None:
    passes = [(1, 0), (2, 100), (3, 200), (2, 300), (3, 400)]
    spans = [whole_step(at + 10, at + 90, step) for step, at in passes]
    events, _ = written([*spans, span("between", 92, 98)], steps=(1, 2))
    assert [event["ts"] * 1000 for event in of_kind(events, "X")] == [0, 82, 100, 300]
    events, _ = written([*spans, span("between", 150, 250)], steps=(2, 2))
    assert [event["ts"] * 1000 for event in of_kind(events, "X")] == [0, 40, 200]


def test_what_is_between_two_parts_of_one_step_belongs_to_it() -> None:
    parts = [span("train", 10, 20, step=5), span("push", 40, 50, step=5)]
    between = span("generate", 24, 36, worker="generator-0")
    events, _ = written([*parts, between], steps=(5, 5))
    assert len(of_kind(events, "X")) == 3
    whole = [whole_step(at, at + 10, 5, worker=f"trainer-{at}") for at in (10, 40)]
    events, _ = written([*whole, between], steps=(5, 5))
    assert len(of_kind(events, "X")) == 3
