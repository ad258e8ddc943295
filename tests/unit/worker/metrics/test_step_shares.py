import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from time import time_ns

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    DataPointFlags,
)
from opentelemetry.sdk.metrics import (
    AlwaysOnExemplarFilter,
    MeterProvider,
    SimpleFixedSizeExemplarReservoir,
)
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource

import otel_rl
from otel_rl.worker import session
from otel_rl.worker.drops import Drops
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.provider import BufferedMeterProvider
from otel_rl.worker.metrics.step_shares import StepShares, _Cell
from otel_rl.worker.phases.timeline import EndCounts
from tests.otlp_sink import Sink, pairs
from tests.slow import examples

STEP, SHARE = "rl.loop.iteration", "otel_rl.step.share"
NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK


class Block:
    """A step of a provider, as ``otel_rl.step`` opens it."""

    def __init__(self, provider: BufferedMeterProvider, number: int) -> None:
        self._steps, self._number = provider.steps, number

    def __enter__(self) -> None:
        self._end = self._steps.open(self._number, time_ns(), self)

    def __exit__(self, *_: object) -> None:
        self._end(time_ns())


@dataclass(frozen=True)
class Found:
    name: str
    step: object
    attributes: Mapping[str, object]
    value: float
    start_ns: int
    end_ns: int
    before_ns: object
    count: int


def found_in(requests: list[ExportMetricsServiceRequest]) -> Iterator[Found]:
    """Yield the shares, without announcements."""
    for request in requests:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.sum.data_points:
                        known = pairs(point.attributes)
                        if SHARE in known and not point.flags & NO_VALUE:
                            assert metric.sum.aggregation_temporality == (
                                AGGREGATION_TEMPORALITY_DELTA
                            )
                            number = point.as_int or point.as_double
                            times = point.start_time_unix_nano, point.time_unix_nano
                            before, step = known.pop(SHARE), known.pop(STEP)
                            yield Found(metric.name, step, known, number, *times, before, 0)
                    for of_step in metric.exponential_histogram.data_points:
                        known = pairs(of_step.attributes)
                        if SHARE in known and not of_step.flags & NO_VALUE:
                            buckets = sum(of_step.positive.bucket_counts) + of_step.zero_count
                            assert buckets == of_step.count
                            times = of_step.start_time_unix_nano, of_step.time_unix_nano
                            before, step = known.pop(SHARE), known.pop(STEP)
                            name, total = metric.name, of_step.sum
                            yield Found(name, step, known, total, *times, before, of_step.count)


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
    with Block(provider, 7):
        tokens.add(2)
        tokens.add(3, {"kind": "a"})
    tokens.add(4)
    assert {(one.step, *one.attributes.items()): one.value for one in shares(provider)} == {
        (7,): 2,
        (7, ("kind", "a")): 3,
    }
    assert shares(provider) == []


def test_a_step_has_its_counts_though_the_program_s_own_provider_fails(
    provider: BufferedMeterProvider,
) -> None:
    class Failing(SimpleFixedSizeExemplarReservoir):
        def offer(self, *_arguments: object, **_named: object) -> None:
            raise RuntimeError("no room")

    view = View(
        instrument_name="*",
        exemplar_reservoir_factory=lambda _: Failing,  # type: ignore[arg-type, return-value]  # by name
    )
    later = MeterProvider(
        [InMemoryMetricReader()], exemplar_filter=AlwaysOnExemplarFilter(), views=[view]
    )
    assert provider.share_with(later)
    tokens = provider.get_meter("m").create_counter("tokens")
    with Block(provider, 7):
        tokens.add(2)
    assert grown(provider) == {7: 2}
    assert sum(provider.guard.drops.counts().values()) == 1


def test_a_share_has_the_times_of_its_step(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    end = provider.steps.open(7, 1_000, tokens)
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
        ends.append(provider.steps.open(number, 10**18 - number, tokens))
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
    with Block(provider, 7):
        for age in (0, 0.25, 3, 5e9):
            ages.record(age)
    (one,) = shares(provider)
    assert (one.step, one.value, one.count) == (7, 5e9 + 3.25, 4)


def test_threads_count_in_the_step_in_progress(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    for number in range(3):
        with Block(provider, number):
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
    end = provider.steps.open(0, time_ns(), tokens)
    for thread in threads:
        thread.start()
    ready.wait()
    for number in range(1, 100):
        following = provider.steps.open(number, time_ns(), tokens)  # a step is always in progress
        end(time_ns())
        end = following
        found += sum(grown(provider).values())
    stop.set()
    for thread in threads:
        thread.join()
    provider.collect()  # what threads were about to add to an ended step is in the present one
    end(time_ns())
    requests = parsed(provider)
    found += sum(one.value for one in found_in(requests))
    assert found == total(requests, "tokens")


def test_what_a_thread_adds_while_its_step_ends_is_in_the_next(
    provider: BufferedMeterProvider,
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    with Block(provider, 1):
        tokens.add(1, {"kind": "a"})
        step = provider.steps.current
        assert step is not None
        (cell,) = step.all_cells()
    assert grown(provider) == {1: 1}
    cell.values.append(5)  # by a thread that has found the cell before the step ended
    assert grown(provider) == {}
    with Block(provider, 2):
        assert grown(provider) == {}
        tokens.add(2, {"kind": "a"})
    assert grown(provider) == {2: 7}


def test_what_a_thread_adds_long_after_its_step_ended_is_in_the_next(
    provider: BufferedMeterProvider,
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    with Block(provider, 1):
        tokens.add(1)
        step = provider.steps.current
        assert step is not None
        (cell,) = step.all_cells()
    for number in range(2, 5):  # steps and exports while the thread waits for its turn
        with Block(provider, number):
            tokens.add(1)
        grown(provider)
    cell.values.append(5)
    with Block(provider, 5):
        assert grown(provider) == {}
    assert grown(provider) == {5: 5}


def test_what_a_thread_adds_to_a_piece_that_was_merged_is_in_the_next(
    provider: BufferedMeterProvider,
) -> None:
    meter = provider.get_meter("m")
    tokens, loss = meter.create_counter("tokens"), meter.create_gauge("loss")
    loss.set(0.5, {STEP: 0})
    held: list[_Cell] = []
    for piece in range(200):
        tokens.add(1)
        if piece in (1, 100):
            assert provider.steps.current is not None
            (cell,) = provider.steps.current.all_cells()
            held.append(cell)
        loss.set(0.5, {STEP: 1})
    for cell in held:
        cell.values.append(5)  # by a thread that has found the cell before the piece was merged
    assert sum(one.value for one in shares(provider)) == 210


class Meanwhile(str):
    """A text in whose look-up something happens, as if another thread had its turn then."""

    __slots__ = ("happen",)

    happen: Callable[[], object]

    def __hash__(self) -> int:
        self.happen()
        return super().__hash__()


@pytest.mark.parametrize("is_explicit", [False, True])
def test_a_series_that_a_thread_begins_in_a_step_that_was_exported_is_in_the_next(
    provider: BufferedMeterProvider, *, is_explicit: bool
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    end = provider.steps.open(1, time_ns(), tokens)
    tokens.add(1)
    assert provider.steps.current is not None
    (cell,) = provider.steps.current.all_cells()
    seen: list[Mapping[object, float]] = []

    def end_and_export() -> None:
        if not seen:
            seen.append({})
            end(time_ns())
            seen[0] = grown(provider)

    kind = Meanwhile("a")
    kind.happen = end_and_export
    given = {STEP: 7} if is_explicit else {}
    provider.steps.count(cell.stream, 5, {"kind": kind, **given})
    assert seen == [{1: 1}]
    with Block(provider, 2):
        assert grown(provider) == {}
    assert grown(provider) == {2: 5}


def test_tasks_count_in_the_step_that_they_were_made_in(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")

    async def step(number: int, entered: asyncio.Event, other: asyncio.Event) -> None:
        with Block(provider, number):
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
    with Block(provider, 1):
        inside = contextvars.copy_context()
    with Block(provider, 2):
        inside.run(tokens.add, 5)
    inside.run(tokens.add, 7)
    assert grown(provider) == {2: 5}


def test_a_count_that_tells_its_step_is_in_that_one(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    tokens.add(1, {STEP: 3})
    with Block(provider, 7):
        tokens.add(2, {STEP: 3, "kind": "a"})
        tokens.add(4, {STEP: 7})
        tokens.add(8)
    assert grown(provider) == {3: 3, 7: 12}


def test_gauges_tell_the_steps_of_a_program_without_blocks(
    provider: BufferedMeterProvider,
) -> None:
    meter = provider.get_meter("m")
    tokens, loss, rate = meter.create_counter("tokens"), *map(meter.create_gauge, ("loss", "lr"))
    for number in range(4):
        tokens.add(10)
        loss.set(0.5, {STEP: number})
        tokens.add(1)
        rate.set(0.1, {STEP: number, "group": 0})
    # Nothing told of steps before the first gauge.
    assert grown(provider) == {0: 1, 1: 11, 2: 11, 3: 11}


def test_gauges_tell_the_steps_before_the_first_count(provider: BufferedMeterProvider) -> None:
    meter = provider.get_meter("m")
    tokens, loss = meter.create_counter("tokens"), meter.create_gauge("loss")
    loss.set(0.5, {STEP: 0})
    begun_ns = time_ns()
    for number in range(1, 4):
        loss.set(0.5, {STEP: number})
    ended_ns = time_ns()
    tokens.add(3, {STEP: 3})
    for number in range(4, 7):
        loss.set(0.5, {STEP: number})
    first, *others = shares(provider)
    assert [(one.step, one.value) for one in (first, *others)] == [(3, 3), (4, 0), (5, 0)]
    assert begun_ns <= first.start_ns <= first.end_ns <= ended_ns


@pytest.mark.parametrize(
    ("number", "is_step"),
    [(-(2**63) - 1, False), (-(2**63), True), (2**63 - 1, True), (2**63, False)],
)
def test_a_step_of_a_gauge_before_the_first_count_has_64_bits(
    provider: BufferedMeterProvider, number: int, *, is_step: bool
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    provider.steps.reached(1, time_ns())
    provider.steps.reached(number, time_ns())
    tokens.add(3)
    provider.steps.reached(number if is_step else 1, time_ns())
    assert grown(provider) == {number if is_step else 1: 3}


def test_a_step_that_gauges_tell_in_pieces_has_each_count_once(
    provider: BufferedMeterProvider,
) -> None:
    meter = provider.get_meter("m")
    tokens, loss = meter.create_counter("tokens"), meter.create_gauge("loss")
    loss.set(0.5, {STEP: 0})
    for number in range(1, 3):
        pieces = []
        for _ in range(200):
            tokens.add(1)
            loss.set(0.5, {STEP: number})
        pieces += shares(provider)
        tokens.add(1)
        loss.set(0.5, {STEP: number})
        pieces += shares(provider)
        of_step = [one for one in pieces if one.step == number]
        assert sum(one.value for one in of_step) == 201
        assert of_step[0].end_ns == of_step[1].start_ns


def test_gauges_tell_no_steps_beside_blocks(provider: BufferedMeterProvider) -> None:
    meter = provider.get_meter("m")
    tokens, loss = meter.create_counter("tokens"), meter.create_gauge("loss")
    with Block(provider, 1):
        tokens.add(1)
    loss.set(0.5, {STEP: 1})
    tokens.add(2)
    loss.set(0.5, {STEP: 2})
    assert grown(provider) == {1: 1}


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
        with Block(provider, number):
            if number == 0:
                tokens.add(1, {"kind": "a"})
    assert [(one.step, one.value, one.attributes) for one in shares(provider)] == [
        (0, 1, {"kind": "a"}),
        (1, 0, {"kind": "a"}),
        (2, 0, {"kind": "a"}),
    ]


def test_a_series_is_announced_in_its_first_step(provider: BufferedMeterProvider) -> None:
    def announced() -> list[str]:
        return [
            metric.name
            for request in parsed(provider)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for points in (metric.sum.data_points, metric.exponential_histogram.data_points)
            for point in points
            if point.flags & NO_VALUE and SHARE in pairs(point.attributes)
        ]

    meter = provider.get_meter("m")
    tokens, ages = meter.create_counter("tokens"), meter.create_histogram("age")
    with Block(provider, 1):
        tokens.add(1)
        ages.record(1)
        assert announced() == ["tokens", "age"]
        tokens.add(1)
        assert announced() == []
    assert len(shares(provider)) == 2


def test_more_sets_of_attributes_than_the_sdk_keeps_are_counted_as_one(
    provider: BufferedMeterProvider,
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    with Block(provider, 1):
        for request in range(2500):
            tokens.add(1, {"request": request})
    found = shares(provider)
    assert len(found) == 2001
    assert sum(one.value for one in found) == 2500
    assert max(found, key=lambda one: one.value).attributes == {"otel.metric.overflow": True}


def test_pieces_of_a_step_have_no_more_series_than_are_kept(
    provider: BufferedMeterProvider,
) -> None:
    meter = provider.get_meter("m")
    tokens, loss = meter.create_counter("tokens"), meter.create_gauge("loss")
    loss.set(0.5, {STEP: 0})
    for piece in range(66):
        for request in range(400):
            tokens.add(1, {"request": (piece, request)})
        loss.set(0.5, {STEP: 1})
    found = shares(provider)
    assert sum(one.value for one in found) == 66 * 400
    assert 20_000 <= len(found) < 66 * 400


def test_many_amounts_take_no_memory_for_each(provider: BufferedMeterProvider) -> None:
    ages = provider.get_meter("m").create_histogram("age")
    with Block(provider, 1):
        for number in range(20_000):
            ages.record(number)
        step = provider.steps.current
        assert step is not None
        assert max(len(cell.values) for cell in step.all_cells()) < 4096
    (one,) = shares(provider)
    assert (one.count, one.value) == (20_000, 19_999 * 10_000)


def test_attributes_of_any_type_are_series(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    with Block(provider, 1):
        for _ in range(2):
            tokens.add(1, {"sizes": [1, 2]})
            tokens.add(1, {"b": 1, "a": 2})
            tokens.add(1, {"a": 2, "b": 1})
    assert sorted(one.value for one in shares(provider)) == [2, 4]


def test_a_step_whose_block_is_gone_is_forgotten(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    block = Block(provider, 1)
    block.__enter__()
    tokens.add(1)
    del block
    assert shares(provider) == []
    assert provider.steps.current is None


def test_more_steps_than_are_kept_without_an_export_are_counted_as_dropped(
    provider: BufferedMeterProvider, drops: Drops
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    for number in range(1100):
        with Block(provider, number):
            tokens.add(1)
    assert sum(one.value for one in shares(provider)) == 1024
    assert sum(drops.counts().values()) == 76


def test_more_open_blocks_than_are_kept_leave_out_the_oldest(
    provider: BufferedMeterProvider,
) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    ends = []
    for number in range(65):
        ends.append(provider.steps.open(number, time_ns(), tokens))
        tokens.add(1)
    for end in ends:
        end(time_ns())
    assert grown(provider) == dict.fromkeys(range(1, 65), 1)


def test_a_forked_child_has_steps_of_its_own(provider: BufferedMeterProvider) -> None:
    tokens = provider.get_meter("m").create_counter("tokens")
    with Block(provider, 1):
        tokens.add(1)
        provider.restart(Resource({"service.name": "child"}), keep_buffer=False)
        assert provider.steps.current is None
        tokens.add(2)
        with Block(provider, 2):
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


def test_values_that_are_logged_with_a_step_tell_it(started: Sink) -> None:
    provider = of_the_session()
    provider.steps.forget()  # a test before may have opened a block
    tokens = provider.get_meter("m").create_counter("tokens")
    for number in range(3):
        tokens.add(10)
        otel_rl.log({"loss": 0.5}, step=number)
    assert otel_rl.flush(timeout_s=30)
    found = {one.step: one.value for one in found_in(started.metrics) if one.value}
    assert found == {1: 10, 2: 10}


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
    outside = pending = found = 0.0
    follows, told = True, False
    for action, number, step in actions:
        match action:
            case "add":
                tokens.add(number, None if step is None else {STEP: step})
                if step is None and follows and told:
                    pending += number
                elif step is None and not ends:
                    outside += number
            case "gauge":
                loss.set(0.5, {STEP: number})
                if follows:
                    told, pending = True, 0
            case "open":
                ends.append(provider.steps.open(number, time_ns(), tokens))
                outside, pending, follows = outside + pending, 0, False
            case "close" if ends:
                ends.pop(number % len(ends))(time_ns())
            case "collect":
                found += sum(one.value for one in shares(provider))
    for end in ends:
        end(time_ns())
    requests = parsed(provider)
    found += sum(one.value for one in found_in(requests))
    assert found + outside + pending == total(requests, "tokens")


def test_shares_need_no_exporter() -> None:
    steps = StepShares(Guard(Drops()))
    assert steps.take() == []


@pytest.mark.parametrize("step", ["7", None, 2**70, object()])
def test_a_gauge_whose_step_is_none_tells_nothing(
    provider: BufferedMeterProvider, step: object
) -> None:
    provider.steps.reached(step, time_ns())
    assert provider.steps.current is None
