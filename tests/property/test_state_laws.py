"""A state that is written and read again goes on as the same state would have without that.

Two aligners take the same batches. One of them is written and read in between, with its logs, as a
bridge does that is restarted. Then their rows are the same, and so is all that they keep.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from otel_rl.bridge.journal.state import decode, decompress, encode
from otel_rl.bridge.rows.messages import Finding, RunMetadata
from otel_rl.bridge.rows.reduce import Moments
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.series.table_state import Identities
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.steps.role_steps import RoleSteps
from otel_rl.bridge.rows.steps.step import OpenStep
from otel_rl.bridge.rows.stored_run import StoredRun
from otel_rl.records import (
    Announcement,
    Buckets,
    Covered,
    Decoded,
    Departure,
    ExperimentStatus,
    Export,
    HistogramPoint,
    Measurements,
    Point,
    Row,
    Series,
    SpanRecord,
    SummaryPoint,
    SumPoint,
    Temporality,
    TextSample,
    Value,
    Worker,
)
from otel_rl.semconv.spec import STEP_SPAN, Instrument, Reduction
from tests.support.kept import from_bytes, to_bytes
from tests.support.slow import examples

S = 1_000_000_000
T0 = 1_700_000_000 * S

WORKERS = [
    Worker(role, f"{role}/{place}", index, 2 if index is not None else None)
    for role in ("trainer", "generator")
    for place, index in enumerate((0, 1, None))
]

GPU = (("hw.id", "GPU-1"), ("hw.name", "gpu0"), ("hw.type", "gpu"))

numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.sampled_from([0, -0.0, math.nan, math.inf, -math.inf, 2**63 - 1]),
)
workers = st.sampled_from(WORKERS)
steps = st.integers(0, 30)
ages = st.integers(0, 40).map(lambda tenths: tenths * S // 10)
leaves = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=5)
)
values: st.SearchStrategy[Value] = st.recursive(
    leaves,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=3), some),
    max_leaves=5,
)


@st.composite
def series(draw: st.DrawFn, instrument: Instrument) -> Series:
    name = draw(
        st.sampled_from(
            ["loss", "depth", "rl.policy.version", "hw.gpu.utilization", "rl.phase.duration"]
        )
    )
    return Series(
        draw(workers),
        name,
        unit=draw(st.sampled_from(["", "s", "ms", "1"])),
        attributes=GPU if name.startswith("hw.") else draw(st.sampled_from([(), (("k", "v"),)])),
        reduction=draw(st.sampled_from([None, *Reduction])),
        instrument=instrument,
        scope=draw(st.sampled_from(["", "scope"])),
    )


@st.composite
def measurements(draw: st.DrawFn, now_ns: int) -> Measurements:
    n = draw(st.sampled_from([1, 1, 2, 3, 140]))
    first = draw(st.none() | steps)
    time_ns = now_ns - draw(ages)
    told = draw(st.sampled_from([None, None, 0, T0])) if first is not None and n == 1 else None
    value = draw(numbers)
    return Measurements(
        draw(series(Instrument.GAUGE)),
        [time_ns + place for place in range(n)],
        [value] * n,
        [None if first is None else first + place // 2 for place in range(n)],
        draw(st.sampled_from([None, Covered(0, time_ns), Covered(time_ns - S, time_ns)])),
        told,
    )


@st.composite
def sums(draw: st.DrawFn, now_ns: int) -> SumPoint:
    start_ns, time_ns = draw(st.sampled_from([0, T0 - S, T0])), now_ns - draw(ages)
    return SumPoint(
        draw(series(draw(st.sampled_from([Instrument.COUNTER, Instrument.UP_DOWN_COUNTER])))),
        start_ns,
        time_ns,
        draw(numbers),
        draw(st.sampled_from(Temporality)),
        draw(st.sampled_from([None, Covered(start_ns, time_ns)])),
        draw(st.none() | steps),
    )


@st.composite
def histograms(draw: st.DrawFn, now_ns: int) -> HistogramPoint:
    counts = draw(st.lists(st.integers(1, 9), max_size=3))
    bounds = [-math.inf, 0.0, 1.5, math.inf]
    known = draw(st.booleans())
    return HistogramPoint(
        draw(series(Instrument.HISTOGRAM)),
        draw(st.sampled_from([0, T0 - S, T0])),
        now_ns - draw(ages),
        draw(st.sampled_from(Temporality)),
        sum(counts) or draw(st.sampled_from([0, 3, 2**64 - 1])),
        draw(st.none() | st.floats()),
        -1.0 if known else None,
        2.0 if known else None,
        Buckets.of((bounds[place], bounds[place + 1], count) for place, count in enumerate(counts)),
        step=draw(st.none() | steps),
    )


@st.composite
def summaries(draw: st.DrawFn, now_ns: int) -> SummaryPoint:
    quantiles = ((0.5, draw(st.floats())), (0.99, 2.0))
    return SummaryPoint(
        draw(series(Instrument.GAUGE)), now_ns - draw(ages), 3, draw(st.floats()), quantiles
    )


@st.composite
def spans(draw: st.DrawFn, now_ns: int) -> SpanRecord:
    number, worker = draw(st.integers(0, 60)), draw(workers)
    end_ns = now_ns - draw(ages)
    is_root = number % 3 == 0
    return SpanRecord(
        bytes(23) + bytes([number]),
        None if is_root else bytes(23) + bytes([number // 3 * 3]),
        (bytes(23) + bytes([draw(st.integers(0, 60))]),) if draw(st.booleans()) else (),
        worker.role,
        worker.instance,
        "host",
        end_ns - S,
        end_ns,
        STEP_SPAN if is_root else "train",
        "" if is_root else "train",
        "" if is_root else draw(st.sampled_from(["compute", "wait"])),
        draw(steps) if is_root else None,
        draw(st.booleans()),
    )


@st.composite
def samples(draw: st.DrawFn, now_ns: int) -> TextSample:
    fields = draw(st.dictionaries(st.text(max_size=3), values, max_size=3))
    time_ns, digest = now_ns - draw(ages), draw(st.integers(0, 2**63 - 1))
    return TextSample(draw(workers), "answers", draw(st.none() | steps), time_ns, fields, digest)


@st.composite
def batches(draw: st.DrawFn, now_ns: int) -> Decoded:
    points: list[st.SearchStrategy[Point]] = [
        measurements(now_ns),
        sums(now_ns),
        histograms(now_ns),
        summaries(now_ns),
    ]
    clock, now = st.sampled_from([0, now_ns, now_ns - 5 * S]), st.just(now_ns)
    return Decoded(
        draw(st.lists(st.one_of(points), max_size=4)),
        draw(st.lists(st.builds(Export, workers, clock, st.booleans()), max_size=2)),
        draw(st.lists(samples(now_ns), max_size=1)),
        draw(st.lists(spans(now_ns), max_size=4)),
        departures=draw(st.lists(st.builds(Departure, workers, now, st.booleans()), max_size=1)),
        has_more=draw(st.sampled_from([False, False, False, True])),
    )


@dataclass
class Twins:
    """Two aligners, of which the second is written and read, and the logs that it has given out."""

    straight: Run
    restarted: Run
    logs: list[bytes] = dataclasses.field(default_factory=list)
    trails: list[bytes] = dataclasses.field(default_factory=list)
    steps: list[bytes] = dataclasses.field(default_factory=list)
    rows: list[Row] = dataclasses.field(default_factory=list)

    def __iter__(self) -> Iterator[Run]:
        return iter((self.straight, self.restarted))

    def restart(self) -> None:
        straight, restarted = (
            (
                aligner.take_dedup(),
                aligner.span_window.recent.take_log(),
                aligner.committed(0, ""),
                aligner.intake.steps.take_log(),
            )
            for aligner in self
        )
        assert straight == restarted
        log, trail, _, steps = straight
        self.steps += [steps.body] if steps else []
        self.logs += [log.body] if log else []
        self.trails += [trail.body] if trail else []
        body = to_bytes(self.restarted)
        self.restarted = from_bytes(body, self.restarted)
        for one in self.logs:
            self.restarted.restore_dedup(one)
        for one in self.trails:
            self.restarted.restore_spans(one)
        for one in self.steps:
            self.restarted.intake.steps.restore_log(
                one, len(self.restarted.intake.series.keys.groups)
            )
        self.restarted.intake.steps.is_restored()
        assert kept(self.restarted) == kept(self.straight)

    def close(self, now_ns: int, *, everything: bool) -> None:
        straight, restarted = (
            [repr(row) for row in aligner.close(now_ns, everything=everything)] for aligner in self
        )
        assert straight == restarted
        assert self.straight.roles == self.restarted.roles
        assert self.straight.devices == self.restarted.devices
        assert self.straight.status == self.restarted.status


def kept(aligner: Run) -> object:
    """All that an aligner keeps, with NaN equal to itself.

    Steps are explained where they were left off, and what was known of the workers of spans is in
    the spans; both follow from the rest.
    """
    read = decode(to_bytes(aligner), StoredRun).state
    identities = decode(decompress(read.table.identities), Identities)
    # Compressed, a set has the order that it had.
    read = replace(read, table=replace(read.table, identities=b""))
    return repr(in_order((read, identities)))


def in_order(found: object) -> object:
    """The fields of structs, and what is in sets and dicts in one order."""
    if isinstance(found, msgspec.Struct):
        return [in_order(getattr(found, name)) for name in found.__struct_fields__]
    if isinstance(found, Mapping):
        return sorted((repr(key), repr(in_order(one))) for key, one in found.items())
    if isinstance(found, set):
        return sorted(map(repr, found))
    return [*map(in_order, found)] if isinstance(found, (list, tuple)) else found


moves = st.lists(
    st.one_of(
        st.just(("batch", 0.1)),
        st.just(("batch", 0.1)),
        st.tuples(st.just("close"), st.sampled_from([0.1, 1.0, 4.0, 20.0])),
        st.tuples(st.just("clock"), st.sampled_from([-3.0, 0.5])),
        st.tuples(st.just("surplus"), st.just(0.1)),
    ),
    max_size=12,
)


@given(
    moves=moves,
    restarts=st.lists(st.booleans(), min_size=12, max_size=12),
    data=st.data(),
    per_worker=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_state_that_was_written_and_read_goes_on_as_it_would_have(
    moves: Sequence[tuple[str, float]],
    restarts: Sequence[bool],
    data: st.DataObject,
    per_worker: bool,
) -> None:
    set_up = AlignSettings(
        window_s=1,
        wait_s=3,
        worker_timeout_s=5,
        forget_s=15,
        spans_wait_s=2,
        per_worker=per_worker,
        max_keys=60,
        max_series=25,
        max_open_steps=8,
        max_devices=1,
    )
    twins, now_ns = Twins(Run(set_up), Run(set_up)), T0
    for (move, seconds), restart in zip(moves, restarts, strict=False):
        now_ns += int(seconds * S)
        batch = data.draw(batches(now_ns)) if move == "batch" else None
        for aligner in twins:
            aligner.clock_is(now_ns)
            if batch is not None:
                aligner.add(batch, received_ns=now_ns)
            elif move == "surplus":
                aligner.close_surplus(now_ns)
        if move == "close":
            twins.close(now_ns, everything=False)
        if restart:
            twins.restart()
    for aligner in twins:
        aligner.findings.add(
            Finding(3, now_ns, "cause", "It is slow.", [{"kind": "slow", "score": 0.5}])
        )
        aligner.end(failed=False)
    twins.restart()
    twins.close(now_ns + 60 * S, everything=True)


@given(st.lists(st.tuples(st.text(max_size=2), values), max_size=6))
def test_announcements_that_were_written_and_read_describe_the_same_run(
    said: Sequence[tuple[str, Value]],
) -> None:
    about = RunMetadata()
    about.add(
        Announcement(T0 + place, ExperimentStatus.RUNNING, {key: value}, key, [key])
        for place, (key, value) in enumerate(said)
    )
    read = decode(encode(StoredRun(Run().stored().state, about, (7, 8))), StoredRun)
    assert read.cut == (7, 8)
    assert repr(read.metadata.describe()) == repr(about.describe())


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 2**200, -(2**200)])
def test_integers_that_64_bits_do_not_hold_are_exact(number: int) -> None:
    large = Moments(1, number, number, number, number, 0, 0.0, 0.0)
    for cell in ([number, 1.5], large):
        step = OpenStep(cells={0: cell}, workers={"a"})
        state = replace(Run().stored().state, steps={"a": RoleSteps({1: step})})
        read = decode(encode(StoredRun(state, RunMetadata(), None)), StoredRun)
        (one,) = read.state.steps["a"].open[1].cells.values()
        found = one.total if isinstance(one, Moments) else one[0]
        assert (found, type(found)) == (number, int)
