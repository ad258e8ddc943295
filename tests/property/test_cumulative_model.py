"""The sum of the increments is what was counted: counters and histograms, over every sender's ways.

Processes count, hang, are replaced under one name, and are looked at by SDKs of their own, which
know when they started, or by Collectors, which do not. Points are repeated and overtake each other.
The model is the plain number of events that somebody could know of.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.bridge.rows.series.cumulative import CounterStream, HistogramStream
from otel_rl.records import Buckets, HistogramPoint, Series, SumPoint, Temporality, Worker
from otel_rl.semconv.spec import Instrument
from tests.support.slow import examples

S = 1_000_000_000
SERIES = Series(Worker("generator", "i"), "tokens", instrument=Instrument.COUNTER)
EDGES = (0.0, 1.0, 2.0, 4.0)


@dataclass
class Look:
    """What one look at a process gives: cumulative buckets since a start."""

    start_ns: int
    time_ns: int
    counts: tuple[int, ...]
    step: int | None = None

    def as_sum(self) -> SumPoint:
        return SumPoint(
            SERIES,
            self.start_ns,
            self.time_ns,
            sum(self.counts),
            Temporality.CUMULATIVE,
            step=self.step,
        )

    def as_histogram(self) -> HistogramPoint:
        buckets = [
            (lower, upper, n)
            for lower, upper, n in zip(EDGES, EDGES[1:], self.counts, strict=False)
            if n
        ]
        return HistogramPoint(
            SERIES,
            self.start_ns,
            self.time_ns,
            Temporality.CUMULATIVE,
            sum(self.counts),
            float(sum(n * upper for _, upper, n in buckets)),
            None,
            None,
            Buckets.of(buckets),
            step=self.step,
        )


@dataclass
class Process:
    """One that counts since ``start_ns``."""

    start_ns: int
    counts: list[int] = field(default_factory=lambda: [0] * (len(EDGES) - 1))
    looked: list[Look] = field(default_factory=list)

    def count(self, events: list[int]) -> None:
        for place in events:
            self.counts[place] += 1


def check(looks: list[Look], expected: int) -> None:
    """Both kinds of stream find ``expected``, in all and by the bucket."""
    counter, histogram = CounterStream(), HistogramStream()
    counted = 0.0
    found = bucketed = 0
    seconds = 0.0
    for look in looks:
        increment = counter.advance(look.as_sum())
        if increment is not None:
            assert increment.value >= 0
            counted += increment.value
            seconds += increment.seconds
        new = histogram.advance(look.as_histogram())
        if new is not None:
            found += new.count
            bucketed += sum(n for _, _, n in new.buckets)
        counter = CounterStream.restored(counter.stored())
        histogram = HistogramStream.restored(histogram.stored())
    assert (counted, found, bucketed) == (expected, expected, expected)
    if looks:
        first = min(look.start_ns or look.time_ns for look in looks)
        assert seconds <= (max(look.time_ns for look in looks) - first) / S


events = st.lists(st.integers(0, len(EDGES) - 2), max_size=5)


@settings(max_examples=examples(300), deadline=None)
@given(
    lives=st.lists(st.lists(events, min_size=1, max_size=5), min_size=1, max_size=4),
    overlap=st.booleans(),
    data=st.data(),
)
def test_sdks_whose_processes_hang_and_are_replaced_under_one_name(
    lives: list[list[list[int]]], overlap: bool, data: st.DataObject
) -> None:
    looks, expected, now_ns = [], 0, S
    for place, life in enumerate(lives):
        process = Process(place * 1000 * S + S if not overlap else (place + 1) * S)
        now_ns = process.start_ns
        for found in life:
            now_ns += 7 * S
            process.count(found)
            expected += len(found)
            looks.append(Look(process.start_ns, now_ns, tuple(process.counts)))
    # In any order, some of them twice.
    looks = data.draw(st.permutations(looks))
    check([*looks, *data.draw(st.lists(st.sampled_from(looks), max_size=5))], expected)


@settings(max_examples=examples(300), deadline=None)
@given(
    before=st.integers(1, 1000),
    looks=st.lists(st.tuples(events, st.booleans()), min_size=1, max_size=8),
    repeat=st.booleans(),
)
def test_a_collector_that_knows_no_start_and_is_replaced_now_and_then(
    before: int, looks: list[tuple[list[int], bool]], repeat: bool
) -> None:
    """Each new Collector says that the start was when it looked first."""
    process = Process(0)
    process.count([0] * before)
    now_ns, first_ns = S, S
    sent = [Look(now_ns, now_ns, tuple(process.counts))]
    expected = 0
    for found, is_replaced in looks:
        now_ns += S
        process.count(found)
        expected += len(found)
        first_ns = now_ns if is_replaced else first_ns
        sent.append(Look(first_ns, now_ns, tuple(process.counts)))
    check([look for look in sent for _ in range(1 + repeat)], expected)


@settings(max_examples=examples(300), deadline=None)
@given(looks=st.lists(st.tuples(events, st.integers(0, 1)), max_size=10))
def test_two_collectors_that_look_at_one_process_in_turns(
    looks: list[tuple[list[int], int]],
) -> None:
    process = Process(0)
    now_ns, starts = S, [0, 0]
    sent, expected, is_seen = [], 0, False
    for found, collector in looks:
        now_ns += S
        process.count(found)
        expected += len(found) if is_seen else 0
        is_seen = True
        starts[collector] = starts[collector] or now_ns
        sent.append(Look(starts[collector], now_ns, tuple(process.counts)))
    check(sent, expected)


@settings(max_examples=examples(300), deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 6), events), max_size=12),
    is_one_start=st.booleans(),
)
def test_a_stock_sdk_that_counts_each_step_by_itself(
    steps: list[tuple[int, list[int]]], is_one_start: bool
) -> None:
    """Every export tells the totals of all steps, past ones included, whatever their order."""
    processes: dict[int, Process] = {}
    now_ns, expected = S, 0
    sent: list[Look] = []
    for step, found in steps:
        process = processes.setdefault(step, Process(S if is_one_start else now_ns))
        process.count(found)
        expected += len(found)
        now_ns += S
        sent += [
            Look(of.start_ns, now_ns, tuple(of.counts), number) for number, of in processes.items()
        ]
    check(sent, expected)
