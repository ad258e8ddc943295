"""How many requests are parsed at once, and what is remembered of those that were refused."""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.receive import Intake, ReceiveLimits
from otel_rl.errors import JournalFull, MalformedRequest
from otel_rl.records import Batch, ExperimentKey, Signal
from tests.otlp_requests import (
    Journal,
    event,
    gauge,
    intake,
    logs_request,
    metrics_request,
    point,
)

BODY = metrics_request().SerializeToString()


def test_no_more_requests_are_parsed_at_once_than_there_are_cores() -> None:
    lock, parsing, most = threading.Lock(), 0, 0

    def parse() -> bytes:
        nonlocal parsing, most
        with lock:
            parsing += 1
            most = max(most, parsing)
        time.sleep(0.002)
        with lock:
            parsing -= 1
        return BODY

    door = intake(Journal(), Counters())
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: door.take(Signal.METRICS, parse), range(64)))
    assert 1 <= most <= (os.cpu_count() or 1)


def test_requests_that_wait_for_the_disk_keep_nobody_from_parsing() -> None:
    together = threading.Barrier(16)
    journal = Journal()
    journal.before = lambda: together.wait(60)
    door = intake(journal, Counters())
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: door.take(Signal.METRICS, lambda: BODY), range(16)))
    assert len(journal.batches) == 16


def test_an_error_while_parsing_gives_the_place_back() -> None:
    def parse() -> bytes:
        raise MalformedRequest("no")

    door = intake(Journal(), Counters())
    for _ in range(2 * (os.cpu_count() or 1)):
        with pytest.raises(MalformedRequest):
            door.take(Signal.METRICS, parse)
    assert door.take(Signal.METRICS, lambda: BODY).accepted == 1


def late(experiment: str) -> bytes:
    request = metrics_request(gauge(point(time_ns=5)), resource={"rl.experiment.name": experiment})
    return request.SerializeToString()


def test_runs_that_are_only_ever_refused_are_not_remembered() -> None:
    counters = Counters()
    door = intake(Journal(), counters)
    for n in range(50):
        door.take(Signal.METRICS, lambda n=n: late(f"experiment-{n}"))  # type: ignore[misc]
    assert all(not counters.take_run(ExperimentKey(f"experiment-{n}")) for n in range(50))


def test_what_is_refused_of_a_known_run_is_counted_for_it() -> None:
    counters = Counters()
    door = intake(Journal(), counters)
    door.take(Signal.METRICS, lambda: BODY)
    door.take(Signal.METRICS, lambda: late("x"))
    counted = counters.take_run(ExperimentKey("x"))
    assert counted == {("otel_rl.bridge.points.refused", "time_out_of_range"): 1}


def test_log_records_are_counted_as_taken_refused_or_ignored() -> None:
    counters = Counters()
    door = intake(Journal(), counters)
    broken = event("rl.experiment.end", {})
    records = [event(), event(), broken, event("of somebody else"), event("")]
    door.take(Signal.LOGS, lambda: logs_request(*records))
    counted = {name: n for (name, _), n in counters.snapshot().items() if n}
    assert counted == {
        "otel_rl.bridge.requests": 1,
        "otel_rl.bridge.logs.accepted": 2,
        "otel_rl.bridge.logs.refused": 1,
        "otel_rl.bridge.logs.ignored": 2,
    }
    refused = {("otel_rl.bridge.logs.refused", "invalid_event"): 1}
    assert counters.take_run(ExperimentKey("x")) == refused


def test_nothing_is_counted_of_a_logs_request_that_could_not_be_stored() -> None:
    journal, counters = Journal(), Counters()
    journal.error = JournalFull("full")
    with pytest.raises(JournalFull):
        intake(journal, counters).take(Signal.LOGS, lambda: logs_request(event(), event("x")))
    assert not any(counters.snapshot().values())


def test_experiments_of_a_request_that_could_not_be_stored_take_no_room() -> None:
    full = True

    def accept(_batches: Sequence[Batch]) -> None:
        if full:
            raise JournalFull("full")

    door = Intake(accept=accept, limits=ReceiveLimits(max_experiments=1), counters=Counters())
    with pytest.raises(JournalFull):
        door.take(Signal.METRICS, lambda: BODY)
    full = False
    other = metrics_request(resource={"rl.experiment.name": "other"}).SerializeToString()
    assert door.take(Signal.METRICS, lambda: other).accepted == 1
