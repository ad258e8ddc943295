import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from time import time_ns

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.context import attach, detach, get_current
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import otel_rl
from otel_rl.worker import session
from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.metrics.step_counts import EndCounts
from otel_rl.worker.step_context import StepScope, in_step
from tests.support.otlp_sink import Sink, pairs
from tests.support.slow import examples

STEP, SHARE, DURATION = "rl.loop.iteration", "otel_rl.step.share", "otel_rl.step.duration"
COUNT = "otel_rl.step.count"


class Owner:
    """Stands for the object that ``with otel_rl.step(...)`` holds."""


@contextmanager
def block(provider: BufferedMeterProvider, number: int) -> Iterator[None]:
    """A step of a provider, as ``otel_rl.step`` opens it."""
    scope, owner = StepScope(number), Owner()
    token = attach(in_step(get_current(), scope))
    end = provider.steps.open(scope, time_ns(), owner)
    yield
    scope.ended_ns = time_ns()
    detach(token)
    end(scope.ended_ns)


def opened(provider: BufferedMeterProvider, number: int, begun_ns: int, owner: object) -> EndCounts:
    """A step that is in no context."""
    return provider.steps.open(StepScope(number), begun_ns, owner)


@dataclass(frozen=True)
class Found:
    """What was counted in one step, by a counter or a histogram."""

    name: str
    step: object
    attributes: Mapping[str, object]
    value: float
    start_ns: int
    end_ns: int
    before_ns: int
    count: int


def found_in(requests: list[ExportMetricsServiceRequest]) -> Iterator[Found]:
    """Yield what was counted in steps, without announcements."""
    for request in requests:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.sum.data_points:
                        for one in point.exemplars:
                            marks = pairs(one.filtered_attributes)
                            if STEP in marks:
                                end_ns = one.time_unix_nano
                                yield Found(
                                    metric.name,
                                    marks[STEP],
                                    pairs(point.attributes),
                                    one.as_int or one.as_double,
                                    end_ns - int(str(marks.get(DURATION, end_ns))),
                                    end_ns,
                                    end_ns - int(str(marks[SHARE])),
                                    0,
                                )
                    for of_time in metric.exponential_histogram.data_points:
                        known: dict[object, list[tuple[float, int]]] = {}
                        for one in of_time.exemplars:
                            marks = pairs(one.filtered_attributes)
                            measured = one.as_int or one.as_double, int(str(marks.get(COUNT, 1)))
                            known.setdefault(marks[STEP], []).append(measured)
                        for step, measurements in known.items():
                            total = sum(value * count for value, count in measurements)
                            count = sum(count for _, count in measurements)
                            attributes = pairs(of_time.attributes)
                            yield Found(metric.name, step, attributes, total, 0, 0, 0, count)


def parsed(provider: BufferedMeterProvider) -> list[ExportMetricsServiceRequest]:
    return [ExportMetricsServiceRequest.FromString(one.payload) for one in provider.collect()]


def shares(provider: BufferedMeterProvider) -> list[Found]:
    return [*found_in(parsed(provider))]


def grown(provider: BufferedMeterProvider) -> dict[object, float]:
    """Growth of all counters by step, without zeros."""
    total: Counter[object] = Counter()
    for one in shares(provider):
        total[one.step] += one.value  # type: ignore[assignment]  # floats, too
    return {step: value for step, value in total.items() if value}


def total(requests: list[ExportMetricsServiceRequest], name: str) -> float:
    """Sum of the SDK's own cumulative points."""
    return sum(
        point.as_int or point.as_double
        for request in requests
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        and metric.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
        for point in metric.sum.data_points
    )


def test_what_counts_in_a_step_is_its_share(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    tokens.add(1)
    with block(provider, 7):
        tokens.add(2)
        tokens.add(3, {"kind": "a"})
    tokens.add(4)
    assert {(one.step, *one.attributes.items()): one.value for one in shares(provider)} == {
        (7,): 2,
        (7, ("kind", "a")): 3,
    }
    assert shares(provider) == []


def test_a_share_has_the_times_of_its_step(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    end = opened(provider, 7, 1_000, tokens)
    tokens.add(1)
    end(2 * time_ns())
    (one,) = shares(provider)
    assert one.start_ns == 1_000
    assert one.end_ns > time_ns()


def test_shares_of_a_series_tile_time_though_steps_overlap(
    provider: BufferedMeterProvider,
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    ends = []
    for number in range(5):
        ends.append(opened(provider, number, 10**18 - number, tokens))
        tokens.add(1)
    for end in ends:
        end(10**18 + 50)
    found = shares(provider)
    assert [one.value for one in found] == [1] * 5
    assert all(one.before_ns == before.end_ns for before, one in pairwise(found))
    assert all(before.end_ns < one.end_ns for before, one in pairwise(found))


def test_a_histogram_has_the_measurements_of_the_step(provider: BufferedMeterProvider) -> None:
    ages = provider.get_meter("m").create_histogram("age")
    ages.record(100)
    with block(provider, 7):
        for age in (0, 0.25, 3, 0, 5e9):
            ages.record(age, {"kind": "a"})
    (one,) = shares(provider)
    assert (one.step, one.value, one.count) == (7, 5e9 + 3.25, 5)


def test_measurements_of_a_step_are_sent_while_it_lasts(provider: BufferedMeterProvider) -> None:
    ages = provider.get_meter("m").create_histogram("age")
    with block(provider, 7):
        for age in (0, 1, 2):
            ages.record(age)
            (one,) = shares(provider)
            assert (one.step, one.value, one.count) == (7, age, 1)


@pytest.mark.parametrize("many", [1_500, 20_000])
def test_of_many_measurements_count_sum_and_extremes_stay(
    provider: BufferedMeterProvider, many: int
) -> None:
    ages = provider.get_meter("m").create_histogram("age")
    with block(provider, 1):
        for number in range(1, many + 1):
            ages.record(number)
        requests = parsed(provider)
    (one,) = found_in(requests)
    assert one.count == many
    assert one.value == pytest.approx((many + 1) * many / 2)
    (point,) = [
        point
        for resource in requests[0].resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.exponential_histogram.data_points
    ]
    values = sorted(exemplar.as_int or exemplar.as_double for exemplar in point.exemplars)
    assert len(values) <= 1024
    assert (values[0], values[-1]) == (1, many)
    assert max(one - before for before, one in pairwise(values)) < many / 100


def test_threads_count_in_the_step_in_progress(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    for number in range(3):
        with block(provider, number):
            threads = [
                threading.Thread(target=lambda: [tokens.add(1) for _ in range(500)])
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert grown(provider) == {0: 2000, 1: 2000, 2: 2000}


def test_no_count_is_lost_or_doubled_while_steps_change(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    stop = threading.Event()
    ready = threading.Barrier(4)

    def count() -> None:
        ready.wait()
        while not stop.is_set():
            tokens.add(1)

    threads = [threading.Thread(target=count) for _ in range(3)]
    found = 0.0
    end = opened(provider, 0, time_ns(), tokens)
    for thread in threads:
        thread.start()
    ready.wait()
    for number in range(1, 100):
        following = opened(provider, number, time_ns(), tokens)  # a step is always in progress
        end(time_ns())
        end = following
        found += sum(grown(provider).values())
    stop.set()
    for thread in threads:
        thread.join()
    end(time_ns())
    requests = parsed(provider)
    found += sum(one.value for one in found_in(requests))
    assert found == total(requests, "tokens")


def test_tasks_count_in_the_step_that_they_were_made_in(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")

    async def step(number: int, entered: asyncio.Event, other: asyncio.Event) -> None:
        with block(provider, number):
            entered.set()
            await other.wait()  # both steps are open
            await asyncio.gather(*(part(number) for _ in range(3)))

    async def part(number: int) -> None:
        await asyncio.sleep(0)
        tokens.add(10**number)

    async def both() -> None:
        one, two = asyncio.Event(), asyncio.Event()
        await asyncio.gather(step(1, one, two), step(2, two, one))

    asyncio.run(both())
    assert grown(provider) == {1: 30, 2: 300}


def test_a_task_that_outlives_its_step_counts_in_the_next(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    with block(provider, 1):
        inside = contextvars.copy_context()
    with block(provider, 2):
        inside.run(tokens.add, 5)
    inside.run(tokens.add, 7)
    assert grown(provider) == {2: 5}


def test_a_count_that_tells_its_step_is_in_that_one(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    tokens.add(1, {STEP: 3})
    with block(provider, 7):
        tokens.add(2, {STEP: 3, "kind": "a"})
        tokens.add(4, {STEP: 7})
        tokens.add(8)
    assert grown(provider) == {3: 3, 7: 12}


def test_a_step_that_counts_tell_in_pieces_has_each_count_once(
    provider: BufferedMeterProvider,
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    tokens.add(1, {STEP: 0})
    for number in range(1, 3):
        pieces = []
        for _ in range(200):
            tokens.add(1, {STEP: number})
        pieces += shares(provider)
        tokens.add(1, {STEP: number})
        pieces += shares(provider)
        of_step = [one for one in pieces if one.step == number]
        assert sum(one.value for one in of_step) == 201
        assert of_step[0].end_ns == of_step[1].before_ns


def test_a_gauge_tells_no_step_of_a_count(provider: BufferedMeterProvider) -> None:
    meter = provider.get_meter("m")
    tokens, loss = meter.create_counter("tokens"), meter.create_gauge("loss")
    for number in range(3):
        tokens.add(1)
        loss.set(0.5, {STEP: number})
    assert grown(provider) == {}


def test_without_steps_nothing_is_kept(provider: BufferedMeterProvider) -> None:
    meter = provider.get_meter("m")
    meter.create_counter("tokens").add(1)
    meter.create_histogram("age").record(1)
    meter.create_gauge("depth").set(3)
    assert provider.steps.current is None
    assert shares(provider) == []


def test_a_counter_is_told_as_zero_where_it_stands_still(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    for number in range(3):
        with block(provider, number):
            if number == 0:
                tokens.add(1, {"kind": "a"})
    assert [(one.step, one.value, one.attributes) for one in shares(provider)] == [
        (0, 1, {"kind": "a"}),
        (1, 0, {"kind": "a"}),
        (2, 0, {"kind": "a"}),
    ]


def test_a_counter_is_announced_in_its_first_step(provider: BufferedMeterProvider) -> None:
    def announced() -> list[str]:
        return [
            metric.name
            for request in parsed(provider)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.sum.data_points
            for one in point.exemplars
            if STEP not in pairs(one.filtered_attributes)
        ]

    meter = provider.get_meter("m")
    tokens = meter.create_counter("tokens")
    with block(provider, 1):
        tokens.add(1)
        assert announced() == ["tokens"]
        tokens.add(1)
        assert announced() == []
    assert len(shares(provider)) == 1


def test_more_sets_of_attributes_than_the_sdk_keeps_are_counted_as_one(
    provider: BufferedMeterProvider,
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    with block(provider, 1):
        for request in range(2500):
            tokens.add(1, {"request": request})
    found = shares(provider)
    assert len(found) == 2001
    assert sum(one.value for one in found) == 2500
    assert max(found, key=lambda one: one.value).attributes == {"otel.metric.overflow": True}


def test_attributes_of_any_type_are_series(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    with block(provider, 1):
        for _ in range(2):
            tokens.add(1, {"sizes": [1, 2]})
            tokens.add(1, {"b": 1, "a": 2})
            tokens.add(1, {"a": 2, "b": 1})
    assert sorted(one.value for one in shares(provider)) == [2, 4]


def test_a_step_whose_block_is_gone_is_forgotten(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    owner = Owner()
    opened(provider, 1, time_ns(), owner)
    tokens.add(1)
    del owner
    assert shares(provider) == []
    assert provider.steps.current is None


def test_more_steps_than_are_kept_without_an_export_are_counted_as_dropped(
    provider: BufferedMeterProvider, drops: Drops
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    for number in range(1100):
        with block(provider, number):
            tokens.add(1)
    assert sum(one.value for one in shares(provider)) == 1024
    assert sum(drops.counts().values()) == 76


def test_more_open_blocks_than_are_kept_leave_out_the_oldest(
    provider: BufferedMeterProvider,
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    ends = []
    for number in range(1_025):
        ends.append(opened(provider, number, time_ns(), tokens))
        tokens.add(1)
    for end in ends:
        end(time_ns())
    assert grown(provider) == dict.fromkeys(range(1, 1_025), 1)


def test_a_forked_child_has_steps_of_its_own(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    with block(provider, 1):
        tokens.add(1)
        provider.restart(Resource({"service.name": "child"}), keep_buffer=False)
        assert provider.steps.current is None
        tokens.add(2)
        with block(provider, 2):
            tokens.add(4)
    assert grown(provider) == {2: 4}


def test_the_block_of_the_api_has_the_times_of_its_span(started: Sink) -> None:
    tokens = of_the_session().get_meter("m").create_counter("tokens")
    with otel_rl.step(12):
        tokens.add(3)
    assert otel_rl.flush(timeout_s=30)
    started.wait(lambda sink: bool(sink.traces))
    (span,) = [
        span
        for request in started.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name == "rl.loop"
    ]
    (one,) = [one for one in found_in(started.metrics) if one.name == "tokens"]
    assert (one.step, one.value) == (12, 3)
    assert (one.start_ns, one.end_ns) == (span.start_time_unix_nano, span.end_time_unix_nano)


def of_the_session() -> BufferedMeterProvider:
    running = session.running()
    assert running is not None
    return running.providers.meter


_ACTION = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 100), st.sampled_from([None, 1, 2])),
    st.tuples(st.just("gauge"), st.integers(0, 5), st.none()),
    st.tuples(st.just("open"), st.integers(0, 5), st.none()),
    st.tuples(st.just("close"), st.integers(0, 3), st.none()),
    st.tuples(st.just("collect"), st.just(0), st.none()),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(_ACTION, max_size=60))
def test_shares_and_what_is_counted_outside_of_steps_add_up_to_the_total(
    actions: list[tuple[str, int, int | None]],
) -> None:
    provider = BufferedMeterProvider(Resource({}), Guard(Drops()))
    meter = provider.get_meter("m")
    tokens, loss = meter.create_counter("tokens"), meter.create_gauge("loss")
    ends: list[EndCounts] = []
    outside = found = 0.0
    for action, number, step in actions:
        match action:
            case "add":
                tokens.add(number, None if step is None else {STEP: step})
                if step is None and not ends:
                    outside += number
            case "gauge":
                loss.set(0.5, {STEP: number})
            case "open":
                ends.append(opened(provider, number, time_ns(), tokens))
            case "close" if ends:
                ends.pop(number % len(ends))(time_ns())
            case "collect":
                found += sum(one.value for one in shares(provider))
    for end in ends:
        end(time_ns())
    requests = parsed(provider)
    found += sum(one.value for one in found_in(requests))
    assert found + outside == total(requests, "tokens")


def test_zeros_of_a_histogram_are_at_their_step_beside_other_scopes(
    provider: BufferedMeterProvider,
) -> None:
    """Each scope has a reader of its own, of which others may have data first."""
    other = provider.get_meter("before").create_counter("c")
    reward = provider.get_meter("mine").create_histogram("reward")
    for number in (1, 2):
        with block(provider, number):
            other.add(1)
            for value in (0.0, 0.0, 0.0, 1.0):
                reward.record(value)
    found = {one.step: (one.value, one.count) for one in shares(provider) if one.name == "reward"}
    assert found == {1: (1.0, 4), 2: (1.0, 4)}


def test_zeros_of_a_series_that_is_not_exported_are_counted_as_lost(
    provider: BufferedMeterProvider,
) -> None:
    with block(provider, 1):
        provider.steps.measured_zero(InstrumentationScope("mine"), "gone", {}, {}, None)
    provider.collect()
    before = dict(provider.guard.drops.counts())
    provider.collect()
    lost = {
        reason: n - before.get(reason, 0) for reason, n in provider.guard.drops.counts().items()
    }
    assert {reason: n for reason, n in lost.items() if n} == {DropReason.BUFFER_FULL: 1}
