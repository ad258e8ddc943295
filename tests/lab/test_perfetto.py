"""Perfetto's own trace processor reads what ``otel-rl export`` writes, as it was meant."""

import io
from collections import Counter as Tally

import pytest

from otel_rl.perfetto import Counter, write_trace
from tests.lab.trace_processor import ask
from tests.support.traces import BEGUN_NS, MS, span, steps_of_a_run

pytestmark = [pytest.mark.lab, pytest.mark.process]

NAMES = {"trainer-0": "trainer/0", "generator-0": "generator/0", "generator-1": "generator/1"}
HOSTILE = '<script>"\u202e\\'

SLICES = """
SELECT slice.name, ts, dur, depth, process.name AS worker, thread.name AS lane FROM slice
JOIN thread_track ON track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)
"""
FLOWS = """
SELECT a.name AS producer, b.name AS consumer FROM flow
JOIN slice AS a ON slice_out = a.id JOIN slice AS b ON slice_in = b.id
"""
COUNTERS = """
SELECT track.name, process.name AS worker, ts, value FROM counter
JOIN process_counter_track AS track ON track_id = track.id JOIN process USING (upid)
"""
PROBLEMS = "SELECT name, value FROM stats WHERE value > 0 AND severity != 'info'"


def test_spans_links_and_values_are_read_as_they_were() -> None:
    spans = [*steps_of_a_run(range(6)), span(HOSTILE, BEGUN_NS, BEGUN_NS + 1, worker="generator-1")]
    file = io.BytesIO()
    queue = [Counter("generator/1", "queue/depth", BEGUN_NS + 5 * MS, 4.0)]
    write_trace(file, spans, names=NAMES, counters=queue)
    slices, flows, counters, problems = ask(file.getvalue(), SLICES, FLOWS, COUNTERS, PROBLEMS)
    assert problems == []
    read = {(one["worker"], one["name"], one["ts"], one["dur"]) for one in slices}
    assert read == {
        (
            NAMES[span.worker],
            span.phase or span.name,
            span.start_ns - BEGUN_NS,
            span.end_ns - span.start_ns,
        )
        for span in spans
    }
    depths = Tally((one["name"], one["depth"]) for one in slices if one["worker"] == "trainer/0")
    assert depths == {("rl.loop", 0): 6, ("train", 1): 6, ("weight_push", 1): 6}
    assert Tally((one["producer"], one["consumer"]) for one in flows) == {
        ("weight_push", "weight_sync"): 10,
        ("weight_sync", "generate"): 12,
        ("generate", "train"): 10,
    }
    (counter,) = counters
    assert (counter["worker"], counter["ts"], counter["value"]) == ("generator/1", 5 * MS, 4.0)
