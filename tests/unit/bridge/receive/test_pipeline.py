"""How many requests are parsed at once, and what is remembered of those that were refused."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.receive import pipeline
from otel_rl.bridge.receive.answers import GrpcCode, answer_to
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.tokens import TeamSettings
from otel_rl.bridge.receive.validate import Validated, validate_known
from otel_rl.errors import JournalFull, RequestTooLarge, Unauthenticated
from otel_rl.records import ExperimentKey, Signal
from tests.support.costs import cost_ratio
from tests.support.otlp_requests import (
    Journal,
    delimited,
    event,
    gauge,
    intake,
    logs_request,
    metrics_request,
    point,
)

BODY = metrics_request().SerializeToString()


def late(experiment: str) -> bytes:
    request = metrics_request(gauge(point(time_ns=5)), resource={"rl.experiment.name": experiment})
    return request.SerializeToString()


def test_runs_that_are_only_ever_refused_are_not_remembered() -> None:
    counters = Counters()
    door = intake(Journal(), counters)
    for n in range(50):
        door.take(Signal.METRICS, late(f"experiment-{n}"))
    assert all(not counters.take_run(ExperimentKey(f"experiment-{n}")) for n in range(50))


def test_data_without_an_experiment_is_one_line_in_the_log_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nameless = metrics_request(gauge(point()), resource={}).SerializeToString()
    door = intake(Journal(), Counters())
    for _ in range(3):
        door.take(Signal.METRICS, nameless)
    door.take(Signal.METRICS, late("x"))
    (record,) = caplog.records
    assert "OTEL_RESOURCE_ATTRIBUTES=rl.experiment.name=NAME" in record.getMessage()


def test_what_is_refused_of_a_known_run_is_counted_for_it() -> None:
    counters = Counters()
    door = intake(Journal(), counters)
    door.take(Signal.METRICS, BODY)
    door.take(Signal.METRICS, late("x"))
    counted = counters.take_run(ExperimentKey("x"))
    assert counted == {("otel_rl.bridge.points.refused", "time_out_of_range"): 1}


def test_log_records_are_counted_as_taken_refused_or_ignored() -> None:
    counters = Counters()
    door = intake(Journal(), counters)
    broken = event("rl.experiment.end", {})
    records = [event(), event(), broken, event("of somebody else"), event("")]
    door.take(Signal.LOGS, logs_request(*records).SerializeToString())
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
        intake(journal, counters).take(
            Signal.LOGS, logs_request(event(), event("x")).SerializeToString()
        )
    assert not any(counters.snapshot().values())


def test_experiments_of_a_request_that_could_not_be_stored_take_no_room() -> None:
    journal = Journal()
    journal.error = JournalFull("full")
    door = intake(journal, Counters(), ReceiveLimits(max_experiments=1))
    with pytest.raises(JournalFull):
        door.take(Signal.METRICS, BODY)
    journal.error = None
    other = metrics_request(resource={"rl.experiment.name": "other"}).SerializeToString()
    assert door.take(Signal.METRICS, other).accepted == 1


def empty_scopes(n: int) -> bytes:
    """Of one experiment, two bytes each."""
    request = metrics_request()
    del request.resource_metrics[0].scope_metrics[:]
    part = request.resource_metrics[0].SerializeToString()
    return delimited(0x0A, part + b"\x12\x00" * n)


def test_two_million_empty_scopes_are_refused_for_good_with_a_hint() -> None:
    door = intake(Journal(), Counters())
    begun_s = time.process_time()
    with pytest.raises(RequestTooLarge, match="send_batch_max_size") as caught:
        door.take(Signal.METRICS, empty_scopes(1_900_000))
    assert time.process_time() - begun_s < 5  # it took 18 s
    answer = answer_to(caught.value)
    assert (answer.http, answer.grpc, answer.is_retryable) == (
        413,
        GrpcCode.RESOURCE_EXHAUSTED,
        False,
    )


def test_empty_scopes_cost_little_and_make_nothing_to_keep() -> None:
    journal = Journal()
    door = intake(journal, Counters())
    door.take(Signal.METRICS, metrics_request(gauge(point())).SerializeToString())
    (sound,) = journal.batches
    request = metrics_request(gauge(point())).resource_metrics[0].SerializeToString()
    payload = delimited(0x0A, request + b"\x12\x00" * 100_000)
    door.take(Signal.METRICS, payload)
    assert len(journal.batches[1].payload) == len(sound.payload)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        empty_scopes,
        lambda n: b"\x0a\x00" * n,
        lambda n: metrics_request(resource={}).SerializeToString() * (n // 20),
        lambda n: metrics_request(gauge(*[point()] * (n // 10))).SerializeToString(),
        # As many experiments as resources, which are cut apart.
        lambda n: b"".join(
            metrics_request(resource={"rl.experiment.name": str(k)}).SerializeToString()
            for k in range(n // 40)
        ),
    ],
    ids=["scopes", "resources", "refused", "points", "experiments"],
)
def test_a_request_costs_time_in_proportion_to_what_is_in_it(
    make: Callable[[int], bytes],
) -> None:
    door = intake(Journal(), Counters(), ReceiveLimits(max_experiments=10_000))

    def taking(n: int) -> Callable[[], object]:
        payload = make(n)
        return lambda: door.take(Signal.METRICS, payload)

    assert cost_ratio(taking, 20_000, most=10) < 10


def test_a_round_of_the_event_loop_reads_few_requests_that_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, on_the_loop = itertools.count(), list[bytes]()

    def counted(payload: bytes, *others: Any) -> Validated:
        on_the_loop.append(payload)
        return validate_known(payload, *others)

    door, sender = intake(Journal(), Counters()), ("", "10.0.0.1")

    async def send() -> None:
        await door.taken(Signal.METRICS, BODY, None, sender=sender)
        on_the_loop.clear()
        many = [door.taken(Signal.METRICS, BODY, None, sender=sender) for _ in range(9)]
        taken = await asyncio.gather(*many)
        assert [one.accepted for one in taken] == [1] * 9
        assert len(on_the_loop) == 1
        await door.taken(Signal.METRICS, BODY, None, sender=sender)
        assert len(on_the_loop) == 2

    with monkeypatch.context() as slow:
        slow.setattr(pipeline, "validate_known", counted)
        slow.setattr("otel_rl.bridge.receive.pipeline.time.thread_time", lambda: float(next(now_s)))
        asyncio.run(send())
    door.close()


def test_who_is_refused_is_told_once_a_minute_each_and_of_very_many_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    team = TeamSettings(name="team", experiments=("*",), sha256=("0" * 64,))
    taken = intake(Journal(), Counters(), auth=(team,))
    for _ in range(2):
        for number in range(1_000):
            with pytest.raises(Unauthenticated):
                taken.grant_to(f"10.0.{number // 256}.{number % 256}", "/v1/metrics", None)
    # 256 with a line of their own, and one for all others.
    assert len({record.getMessage() for record in caplog.records}) == len(caplog.records) == 257
