"""Format of a run's state in the journal: MessagePack arrays, checked against the types below.

The structs here *are* the format. They are apart from the classes that they come from, so a class
may be moved, renamed or written anew as long as it reads and writes these. What reads them makes
numbers, texts and containers, never calls anything that the bytes name, and takes memory in
proportion to the bytes that are stored.

Rules for a change: ``docs/adr/0011-state-is-messagepack.md``.
"""

import math
import sys
import zlib
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar

import msgspec

from otel_rl.records import ExperimentStatus, Value
from otel_rl.semconv.spec import Instrument, Reduction, Tier

__all__ = [
    "VERSION",
    "About",
    "Aligner",
    "ArchivedDetail",
    "ArchivedPart",
    "ArchivedSeries",
    "Attributes",
    "Axis",
    "Cell",
    "Count",
    "Counted",
    "CounterLife",
    "CounterStream",
    "DataWarning",
    "Device",
    "Distribution",
    "Ended",
    "Failure",
    "Finding",
    "Goodput",
    "GoodputOfRole",
    "GoodputPlaces",
    "Group",
    "HistogramLife",
    "HistogramStream",
    "History",
    "Identities",
    "Int64",
    "Integer",
    "Interning",
    "Key",
    "KeyPart",
    "Liveness",
    "LivenessOfRole",
    "Moments",
    "Number",
    "OpenStep",
    "Passes",
    "PausableClock",
    "Returned",
    "Run",
    "Sample",
    "SampleCounts",
    "SeenPart",
    "Series",
    "Single",
    "Span",
    "SpanPart",
    "SpanWindow",
    "StateRefused",
    "StepCounts",
    "StepPart",
    "StepRow",
    "StepsOfRole",
    "Stream",
    "StreamTable",
    "Table",
    "Tables",
    "Throttle",
    "Timeline",
    "UnitChange",
    "Window",
    "Windows",
    "Worker",
    "WorkerClock",
    "WorkerColumns",
    "WrittenStep",
    "buckets",
    "check_durations",
    "check_places",
    "compress",
    "copied",
    "decode",
    "decompress",
    "decompress_each",
    "encode",
    "fields",
    "floats",
    "integer",
    "integers",
    "number",
    "numbers",
    "optional",
    "packed",
    "packed_together",
    "prepared",
    "refusing",
    "restored",
    "single",
    "value",
]

VERSION: Final = 1
"""First element of everything that is encoded here."""

_T = TypeVar("_T", bound="_Versioned")
_StructT = TypeVar("_StructT", bound=msgspec.Struct)
_RecordT = TypeVar("_RecordT")
_HashableT = TypeVar("_HashableT", bound=Hashable)

# Compressed bytes are read up to so many, or so many times what is stored. Identities of ten
# thousand series are 2 MB and one tenth of that compressed.
_MAX_RAW_BYTES: Final = 16 << 20
_MAX_RATIO: Final = 32

Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Times in ns, steps, and what else stands in columns of the database."""

Count = Annotated[int, msgspec.Meta(ge=0)]
"""A number of things, or the place of one in a list."""

Integer = int | Annotated[str, msgspec.Meta(max_length=1024)]
"""An integer; one that 64 bits do not hold is its hexadecimal digits."""

Number = Integer | float
"""A measured value; integers are exact, and NaN and infinities are data."""

Attributes = tuple[tuple[str, str], ...]


class StateRefused(Exception):
    """The bytes are no state that a bridge has written. Its text names what is wrong with them."""


class _Array(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """A fixed order of fields."""


class _Versioned(_Array, frozen=True, gc=False):
    version: int


class Moments(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    gc=False,
    rename={
        "count": "n",
        "total": "t",
        "minimum": "a",
        "maximum": "z",
        "last": "l",
        "last_time_ns": "w",
        "mean": "m",
        "squares": "s",
    },
):
    """Moments of many values. A map, to distinguish it from a list of values."""

    count: Count
    total: Number
    minimum: Number
    maximum: Number
    last: Number
    last_time_ns: Int64
    mean: float
    squares: float


Cell = Sequence[Number] | Moments
"""Values that are reduced together."""

Single = Mapping[Count, Sequence[tuple[Int64, Number]]]
"""Times and values of single measurements, by group."""


class Distribution(_Array, frozen=True, gc=False):
    """Merged histograms. ``buckets`` and ``counts`` have one length."""

    count: Integer
    total: Number | None
    minimum: Number | None
    maximum: Number | None
    bounds: tuple[Number | None, Number | None]
    buckets: Sequence[tuple[float, float]]
    counts: Sequence[Integer]
    unbucketed: Integer


class StepCounts(_Array, frozen=True, gc=False):
    """Counts of one step: begin and end by worker, and amounts by group."""

    times_ns: Mapping[str, tuple[Int64, Int64]]
    grown: Mapping[Count, Mapping[str, Number]]
    distributions: Mapping[Count, Distribution]


class StepRow(_Array, frozen=True, gc=False):
    """The row that a step has had."""

    expected: Count
    attempt: Int64 | None
    time_ns: Int64
    late_ns: Int64
    is_left_out: bool
    version: Int64 | None
    is_marked: bool


class OpenStep(_Array, frozen=True, gc=False):
    """One step that waits. The keys of the dicts are groups."""

    time_ns: Int64
    received_ns: Int64
    cells: Mapping[Count, Cell]
    single: Single
    workers: set[str]
    counts: StepCounts | None
    row: StepRow | None


class WrittenStep(_Versioned, frozen=True, gc=False):
    """One step that has a row, and waits for nothing. Its row is beside it."""

    step: OpenStep


class StepPart(_Versioned, frozen=True, gc=False):
    """Part of the log of written steps: role, step, and ``WrittenStep`` with its row.

    None where it is left.
    """

    number: Count
    steps: Sequence[tuple[str, Int64, tuple[bytes, StepRow | None] | None]]


class Returned(_Array, frozen=True, gc=False):
    """A worker that makes steps again; ``positions`` by stream."""

    since_ns: Int64
    received_ns: Int64
    through: Int64
    first: Int64
    is_sure: bool
    newest_ns: Int64
    positions: Mapping[int, Int64]
    high: Int64
    repeats: bool


class Passes(_Array, frozen=True, gc=False):
    """Passes of a role over its steps, by worker label."""

    returned: Mapping[str, Returned]
    since_ns: Int64
    newest: Mapping[str, tuple[Int64, Int64]]
    before: Mapping[str, tuple[Int64, Int64]]
    others: bool
    vacant_step: Int64 | None
    first: Int64 | None


class StepsOfRole(_Array, frozen=True, gc=False):
    """Open steps of one role."""

    open: Mapping[Int64, OpenStep]
    closed_through: Int64 | None
    late: Mapping[Int64, OpenStep]
    again: Mapping[Int64, OpenStep]
    again_closed_through: Int64 | None
    again_samples: Mapping[Int64, Count]
    passes: Passes
    size: Count
    written: Count
    left_through: Int64 | None
    begun_ns: Int64


class Counted(_Array, frozen=True, gc=False):
    """Counts of one worker in a window."""

    role: str
    label: str
    from_ns: Int64
    to_ns: Int64
    value: Number
    seconds: float
    oddity: Number


class Window(_Array, frozen=True, gc=False):
    """One open window. The keys of the dicts are groups, within them streams."""

    late: bool
    time_ns: Int64
    received_ns: Int64
    levels: Mapping[Count, Mapping[Count, Cell]]
    counted: Mapping[Count, Mapping[Count, Counted]]
    distributions: Mapping[Count, Distribution]
    single: Single
    devices: Mapping[Count, tuple[str, str]]


class Windows(_Array, frozen=True, gc=False):
    """Open windows by their end in ns."""

    open: Mapping[Int64, Window]
    first_end_ns: Int64
    closed_through_ns: Int64
    unrated: Mapping[Count, Mapping[Count, Counted]]


class Worker(_Array, frozen=True, gc=False):
    """Identity of a process."""

    role: str
    instance: str
    index: Int64 | None
    count: Int64 | None


class Sample(_Array, frozen=True, gc=False):
    """A text sample. ``fields`` are JSON values, see ``value``."""

    worker: Worker
    table: str
    step: Int64 | None
    time_ns: Int64
    fields: Mapping[str, Any]
    digest: Count
    label: str


class Table(_Array, frozen=True, gc=False):
    """An open table of samples."""

    key: str
    step: Int64 | None
    received_ns: Int64
    size_bytes: Count
    samples: Sequence[Sample]


class Tables(_Array, frozen=True, gc=False):
    """Tables that wait, and those that are full; lines of the console in earlier ones."""

    open: Sequence[Table]
    full: Sequence[Table]
    console_lines: Count


class SpanWindow(_Array, frozen=True, gc=False):
    """The window of spans without the spans, which are in a log of their own.

    Times in ns by role and step.
    """

    waiting: Mapping[tuple[str, Int64], Int64]
    explained: Mapping[tuple[str, Int64], Int64]
    places: set[tuple[str, str]]
    looked_ns: Int64
    forgotten_ns: Int64
    behind_ns: Mapping[str, Int64]
    unnamed_ns: Int64
    ranks: Mapping[tuple[str, str], Sequence[Int64]] = {}
    is_marked: bool = False


class History(_Array, frozen=True, gc=False):
    """(newest time in ns, bytes) of the history that is kept."""

    kept: Sequence[tuple[Int64, Count]]
    forgotten_ns: Int64


class Timeline(_Array, frozen=True, gc=False):
    """Two columns of integers, see ``packed``."""

    times_ns: bytes
    values: bytes


class Axis(_Array, frozen=True, gc=False):
    """Step and policy version over time."""

    role: str
    label: str
    heard_ns: Int64
    steps: Timeline
    versions: Timeline


class PausableClock(_Array, frozen=True, gc=False):
    """The clock that is paused while the bridge cannot receive."""

    deaf_ns: Int64
    since_ns: Int64
    latest_ns: Int64


class LivenessOfRole(_Array, frozen=True, gc=False):
    """Workers of one role. A vacancy is an index and a time in ns, a gap its begin and end."""

    announced: Int64
    left: set[Int64]
    left_without_index: Count
    vacancies: Sequence[tuple[Int64 | None, Int64]]
    failures: Count
    recovery_ns: Int64 | None
    silent: Count
    standing: tuple[int, int, int, float | None, int | None] | None
    gaps: Sequence[tuple[Int64, Int64]] = ()


class Failure(_Array, frozen=True, gc=False):
    """Failure of a worker."""

    worker: str
    time_ns: Int64
    error: str | None
    message: str
    step: Int64 | None
    is_in_step: bool
    recovery_s: float | None
    reports_ends: bool = True
    is_same: bool = False


class Liveness(_Array, frozen=True, gc=False):
    """Workers by role. Failures are with the last sign of their workers, in ns."""

    roles: Mapping[str, LivenessOfRole]
    went_well: bool
    failures: Sequence[tuple[Int64, Failure]] = ()


class Throttle(_Array, frozen=True, gc=False):
    """Values that are written when they change."""

    told: Mapping[str, Number]
    told_ns: Int64
    changed_ns: Int64 | None


class Finding(_Array, frozen=True, gc=False):
    """A finding of a diagnosis that is in no row yet."""

    step: Int64
    time_ns: Int64
    verdict: str
    words: str
    causes: Sequence[Mapping[str, Any]]


class DataWarning(_Array, frozen=True, gc=False):
    """A sentence that is in no row yet."""

    time_ns: Int64
    labels: Mapping[str, str]


class SampleCounts(_Array, frozen=True, gc=False):
    """Counts of samples."""

    taken: int
    late: int
    duplicate: int
    too_many_series: int
    too_old: int
    spans_too_old: int


class CounterLife(_Array, frozen=True, gc=False):
    """One life of a counter, under each start and step that it is known by."""

    keys: Sequence[tuple[int, Int64 | None]]
    time_ns: Int64
    amount: Number


class CounterStream(_Array, frozen=True, gc=False):
    """One monotonic sum series."""

    time_ns: Int64
    lost_step: tuple[int, Int64] | None
    lives: Sequence[CounterLife]


class HistogramLife(_Array, frozen=True, gc=False):
    """One life of a histogram, as ``CounterLife``; buckets as in ``Distribution``."""

    keys: Sequence[tuple[int, Int64 | None]]
    time_ns: Int64
    amount: Number
    total: Number | None
    minimum: Number | None
    maximum: Number | None
    buckets: Sequence[tuple[float, float]]
    counts: Sequence[Integer]


class HistogramStream(_Array, frozen=True, gc=False):
    """One histogram series."""

    time_ns: Int64
    lost_step: tuple[int, Int64] | None
    lives: Sequence[HistogramLife]


class WorkerClock(_Array, frozen=True, gc=False):
    """Difference of a worker's clock, and what it was seen by; times in ns."""

    ahead_ns: Int64 | None
    seen_ns: Int64
    since_ns: Int64
    exports: Count
    shift_ns: Int64


class WorkerColumns(_Array, frozen=True, gc=False):
    """Changing fields of a worker."""

    first_ns: Int64
    received_ns: Int64
    event_ns: Int64
    newest_step: Int64 | None
    settled_step: Int64 | None
    unsettled: Sequence[tuple[Int64, Int64]]
    standing: int
    gone_ns: Int64
    pause_ns: Int64
    is_replacement: bool
    sends_exit_report: bool
    error: Failure | None = None
    clock: WorkerClock | None = None
    stepped_ns: Int64 = 0


class UnitChange(_Array, frozen=True, gc=False):
    """A second unit of a metric, of which the run has no note yet."""

    key: str
    unit: str
    other_key: str
    other_unit: str


class StreamTable(_Array, frozen=True, gc=False):
    """Series and workers. The keys of the dicts and the places in lists are those of the streams.

    ``identities`` is ``compress`` of ``Identities``, which change seldom; ``totals`` are by group.
    """

    identities: bytes
    workers: Sequence[WorkerColumns]
    totals: Mapping[Count, Number]
    last_steps: Sequence[Int64 | None]
    counters: Mapping[Count, CounterStream]
    histograms: Mapping[Count, HistogramStream]
    levels: Mapping[Count, Number]
    bound_counts: Sequence[Count]
    bounds: bytes
    forgotten_ns: Int64
    lost_steps: Mapping[int, Int64]
    unit_changes: Sequence[UnitChange]
    overflowed: Sequence[Count]
    with_shares: Sequence[Count] = ()


class Series(_Array, frozen=True, gc=False):
    """A series without its worker."""

    name: str
    unit: str
    attributes: Attributes
    reduction: Reduction | None
    instrument: Instrument
    scope: str
    typed: Attributes
    data: str


class Group(_Array, frozen=True, gc=False):
    """A tracker key, with the identity by which it is found; groups stand in order of number."""

    identity: tuple[str, str, Attributes, Reduction, str]
    key: str
    role: str
    name: str
    attributes: Attributes
    reduction: Reduction
    statistics: tuple[str, ...]
    extra: tuple[str, ...]
    own: bool
    unit: str
    own_name: str = ""
    own_scale: float = 1.0


class Key(_Array, frozen=True, gc=False):
    """Meaning of a tracker key, see ``records.KeySpec``."""

    key: str
    name: str
    role: str
    attributes: Attributes
    statistic: str
    unit: str
    axis: str
    section: str
    tier: Tier
    reduction: str
    worker: str
    own_name: str
    own_scale: float


class KeyPart(_Versioned, frozen=True, gc=False):
    """Keys that appeared in the rows of one transaction."""

    keys: Sequence[Key]


class Stream(_Array, frozen=True, gc=False):
    """A stream: places of its worker and groups, its number, its device."""

    worker: Count
    series: Series
    number: Count
    group: Count
    own: Count | None
    wider: Sequence[Count]
    device: str
    unknown_through_ns: Int64


class Ended(_Array, frozen=True, gc=False):
    """A series of a worker that is forgotten; ``worker`` is a place in ``ended_workers``."""

    worker: Count
    series: Series
    number: Count
    counter: CounterStream | None
    histogram: HistogramStream | None
    level: Number
    bounds: bytes
    unknown_through_ns: Int64


class Device(_Array, frozen=True, gc=False):
    """A GPU."""

    uuid: str
    host: str
    name: str
    model: str
    workers: tuple[str, ...]


class Identities(_Versioned, frozen=True, gc=False):
    """Part of a table that changes only when something is new or forgotten."""

    workers: Sequence[tuple[Worker, str]]
    groups: Sequence[Group]
    streams: Sequence[Stream]
    next_stream: Count
    own_keys: set[str]
    indexes: Mapping[str, set[int]]
    ended_workers: Sequence[Worker]
    ended: Sequence[Ended]
    unknown_through_ns: Int64
    devices: Mapping[str, Device]


class Attempt(_Array, frozen=True, gc=False):
    """A pass from an earlier step on; ``first_row`` is -1 before it has a row."""

    number: Count
    first_step: Int64
    first_row: Int64
    since_ns: Int64


class GoodputPlaces(_Array, frozen=True, gc=False):
    """Places of the workers of a role: columns, see ``packed``.

    Times in ns, one column after another: begun, heard, end of the last phase, start of a process
    without phases. Durations in s: reported, productive, overhead. ``held`` are places in
    ``labels``.
    """

    labels: Sequence[str]
    times_ns: bytes
    seconds: bytes
    held: Sequence[Count]
    past: tuple[float, float, float]


class GoodputOfRole(_Array, frozen=True, gc=False):
    """Work of a role; ``parts`` are seconds of work by time, in 2**shift ns."""

    places: GoodputPlaces
    has_work: bool
    worked: tuple[float, float, float]
    rolled_back: float
    shift: Count
    parts: Mapping[int, Number]


class Goodput(_Array, frozen=True, gc=False):
    """Goodput of a run; ``told`` are its last values in a row: role to seconds by part."""

    roles: Mapping[str, GoodputOfRole]
    counted: Mapping[str, Number]
    attempt: Count
    told_ns: Int64
    told: Mapping[str, tuple[float, float, float, float]]


class Aligner(_Array, frozen=True, gc=False):
    """Open rows of one run, and the state of its workers and series."""

    next_number: Count
    sample_counts: SampleCounts
    counts: Sequence[tuple[str, str, int]]
    newest_ns: Int64
    table: StreamTable
    axis: Axis
    steps: Mapping[str, StepsOfRole]
    windows: Windows
    tables: Tables
    spans: SpanWindow
    history: History
    findings: Sequence[Finding]
    told: tuple[str, ...] | None
    warnings: Sequence[DataWarning]
    dropped: Mapping[str, tuple[Count, str]]
    is_told_shared: bool
    clock: PausableClock
    liveness: Liveness
    throttle: Throttle
    is_watching: bool
    begun: tuple[bool, bool] | None
    attempts: Sequence[Attempt]
    goodput: Goodput | None = None
    is_told_sampled: bool = False
    first_ns: Int64 = 0


_Provenance = tuple[
    str,
    Int64,
    str,
    tuple[str, ...],
    str,
    str,
    str,
    str,
    str,
    str,
    tuple[str, ...],
    Int64,
]
"""The fields of ``Provenance``, in order."""


class About(_Array, frozen=True, gc=False):
    """Announcements of a run, each with its time in ns; config values as in ``value``."""

    config: Mapping[str, tuple[Int64, Any]]
    texts: Mapping[str, tuple[Int64, str]]
    status: tuple[Int64, ExperimentStatus]
    tags: Sequence[str]
    provenance: _Provenance | None
    hosts: Mapping[str, Sequence[str]]


class Run(_Versioned, frozen=True, gc=False):
    """A state. ``cut`` is a batch and how many of its points, samples and spans are in it."""

    aligner: Aligner
    about: About
    cut: tuple[Int64, Count] | None


class Span(_Array, frozen=True, gc=False):
    """A span; ``role`` to ``phase_class`` are places in the texts of its part."""

    span_id: bytes
    parent_id: bytes | None
    links: tuple[bytes, ...]
    role: Count
    worker: Count
    host: Count
    start_ns: Int64
    end_ns: Int64
    name: Count
    phase: Count
    phase_class: Count
    step: Int64 | None
    failed: bool


class SpanPart(_Versioned, frozen=True, gc=False):
    """A part of a log of spans. A body of the log is ``compress`` of one or more."""

    texts: Sequence[str]
    spans: Sequence[Span]


class SeenPart(_Versioned, frozen=True, gc=False):
    """A part of a log of points that were taken: columns, see ``packed``, of one length each.

    Single points by stream, time and step; values of steps by stream, step, start and time.
    """

    numbers: bytes
    times_ns: bytes
    steps: bytes
    changed_numbers: bytes
    changed_steps: bytes
    changed_starts_ns: bytes
    changed_times_ns: bytes
    changed_values: bytes


class ArchivedSeries(_Array, frozen=True, gc=False):
    """A series with its worker."""

    role: str
    instance: str
    index: Integer | None
    name: str
    unit: str
    attributes: Attributes
    instrument: Instrument
    data: str
    scope: str


class ArchivedDetail(_Array, frozen=True, gc=False):
    """Values of a histogram or summary beside its time and step; ``place`` has a column."""

    place: Count
    count: Count
    total: Number | None
    minimum: Number | None
    maximum: Number | None
    buckets: Sequence[tuple[Number, Number, Count]]
    quantiles: Sequence[tuple[Number, Number]]


class ArchivedPart(_Versioned, frozen=True, gc=False):
    """Accepted values of a run for its archive: columns, see ``packed``.

    The first four have an element for each run of values of one series: its place in ``series``,
    the number of values, the start of the counted interval, and 0 for measurements, 1 for a
    cumulative point, 2 for a delta, 3 for a share of a step. The other three have one for each
    value. The lowest integer stands for no start and no step.
    """

    series: Sequence[ArchivedSeries]
    places: bytes
    lengths: bytes
    starts_ns: bytes
    kinds: bytes
    times_ns: bytes
    steps: bytes
    values: bytes
    details: Sequence[ArchivedDetail] = ()


class _Head(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of anything that is versioned."""

    version: int


_ENCODER: Final = msgspec.msgpack.Encoder()
_HEAD: Final = msgspec.msgpack.Decoder(_Head)
_DECODERS: Final[dict[type[_Versioned], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (Run, Identities, SpanPart, SeenPart, StepPart, WrittenStep, KeyPart, ArchivedPart)
}


def prepared(kept: _Array) -> Any:
    """Encode a part that many others contain; the result replaces it there."""
    return msgspec.Raw(encode(kept))


def encode(kept: _Array) -> bytes:
    """Encode a state or a part of a log."""
    try:
        return _ENCODER.encode(kept)
    except (OverflowError, UnicodeEncodeError):  # so seldom that no value is looked at before
        return _ENCODER.encode(_fitting(kept))


def copied(record: object, kind: type[_StructT]) -> _StructT:
    """Make a struct of a record that has attributes with the names of its fields."""
    return kind(*_fields_of(kind)(record))


def restored(kept: _Array, kind: Callable[..., _RecordT]) -> _RecordT:
    """Undo ``copied``."""
    return kind(**msgspec.structs.asdict(kept))


@cache
def _fields_of(kind: type[msgspec.Struct]) -> Callable[[object], Sequence[Any]]:
    return attrgetter(*kind.__struct_fields__)


def decode(body: bytes, kind: type[_T]) -> _T:
    """Decode the result of ``encode``.

    Raises:
        StateRefused: It is something else.
    """
    with refusing():
        version = _HEAD.decode(body).version
        if version != VERSION:
            raise StateRefused(f"it has version {version}, this bridge reads {VERSION}")
        found: _T = _DECODERS[kind].decode(body)
        return found


@contextmanager
def refusing() -> Iterator[None]:
    """Turn any failure into ``StateRefused``: forged bytes may fail in any way.

    Raises:
        StateRefused: Something within was raised.
    """
    try:
        yield
    except StateRefused:
        raise
    except Exception as exc:
        raise StateRefused(f"it cannot be read ({type(exc).__name__}: {exc})") from exc


def compress(raw: bytes) -> bytes:
    """Compress the result of ``encode``, within the bound of ``decompress``."""
    body = zlib.compress(raw, level=1)
    return body if len(raw) <= _most_raw(body) else zlib.compress(raw, level=0)


def decompress(body: bytes) -> bytes:
    """Undo ``compress``. Memory is bounded by the bytes that are stored.

    Raises:
        StateRefused: It is something else.
    """
    raw, rest = _decompress(body, _most_raw(body))
    if rest:
        raise StateRefused("there is more behind its end")
    return raw


def decompress_each(body: bytes) -> Iterator[bytes]:
    """Undo ``compress`` of small parts, joined, one at a time.

    Raises:
        StateRefused: It is something else.
    """
    while body:
        raw, body = _decompress(body, _MAX_RAW_BYTES)
        yield raw


def _most_raw(body: bytes) -> int:
    return max(_MAX_RAW_BYTES, _MAX_RATIO * len(body))


def _decompress(body: bytes, most: int) -> tuple[bytes, bytes]:
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(body, most + 1)
    except zlib.error as exc:
        raise StateRefused(f"it cannot be decompressed ({exc})") from exc
    if len(raw) > most:
        raise StateRefused(f"it is more than {most} bytes when it is decompressed")
    if not stream.eof:
        raise StateRefused("it breaks off")
    return raw, stream.unused_data


def packed(column: "array[int] | array[float]") -> bytes:
    """A column of 64 bits a number, the lowest byte first."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def packed_together(columns: "Iterable[array[int]]") -> bytes:
    """``packed`` of columns, one behind the other."""
    joined = b"".join(columns)
    return joined if sys.byteorder == "little" else packed(array("q", joined))


def integers(column: bytes) -> "array[int]":
    """Undo ``packed`` of integers."""
    return _unpacked(array("q"), column)


def floats(column: bytes) -> "array[float]":
    """Undo ``packed`` of floats."""
    return _unpacked(array("d"), column)


_ColumnT = TypeVar("_ColumnT", "array[int]", "array[float]")


def _unpacked(column: _ColumnT, body: bytes) -> _ColumnT:
    column.frombytes(body)
    if sys.byteorder == "big":
        column.byteswap()
    return column


def number(kept: Number) -> float:
    """The number that is kept."""
    return int(kept, 16) if isinstance(kept, str) else kept


def optional(kept: Number | None) -> float | None:
    """The number that is kept, or None."""
    return None if kept is None else number(kept)


def numbers(kept: Sequence[Number]) -> list[float]:
    """The numbers that are kept."""
    return [number(one) for one in kept]


def integer(kept: Integer) -> int:
    """The integer that is kept."""
    return int(kept, 16) if isinstance(kept, str) else kept


def buckets(
    bounds: Sequence[tuple[float, float]], counts: Sequence[Integer]
) -> dict[tuple[float, float], int]:
    """The counts of buckets by their bounds."""
    return dict(zip(bounds, map(integer, counts), strict=True))


def single(kept: Single) -> dict[int, list[tuple[int, float]]]:
    """The single measurements that are kept."""
    return {
        place: [(time_ns, number(one)) for time_ns, one in made] for place, made in kept.items()
    }


def check_places(groups: int, *kept: Mapping[int, object]) -> None:
    """Check that the keys are places of groups, of which there are so many.

    Raises:
        StateRefused: One is not.
    """
    for of_groups in kept:
        if of_groups and max(of_groups) >= groups:
            raise StateRefused(f"it has values of group {max(of_groups)}, of {groups}")


def check_durations(durations_s: Iterable[float]) -> None:
    """Check that durations in s are finite, in ns too.

    Raises:
        StateRefused: One is not.
    """
    if not all(math.isfinite(one * 1e9) for one in durations_s):
        raise StateRefused("it has a duration that is not finite")


class Interning:
    """Interns equal texts and attributes: ten thousand series have few different ones."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def __call__(self, one: _HashableT) -> _HashableT:
        """Return the first object that is equal to ``one``."""
        first: _HashableT = self._known.setdefault(one, one)
        return first


def value(kept: Any) -> Value:
    """The JSON value that is kept.

    Raises:
        StateRefused: It is something else, such as bytes or a date.
    """
    if kept is None or isinstance(kept, (bool, int, float, str)):
        return kept
    if isinstance(kept, list):
        return [value(one) for one in kept]
    if isinstance(kept, dict):
        return fields(kept)
    raise StateRefused(f"it has a {type(kept).__name__} where a value of JSON should be")


def fields(kept: Mapping[Any, Any]) -> dict[str, Value]:
    """The JSON object that is kept; see ``value``."""
    for key in kept:
        if not isinstance(key, str):
            raise StateRefused(f"it has a {type(key).__name__} where a name should be")
    return {key: value(one) for key, one in kept.items()}


def _fitting(kept: Any) -> Any:
    """The same without integers and texts that MessagePack does not take."""
    if isinstance(kept, str):
        return kept.encode(errors="replace").decode()
    if isinstance(kept, int):
        return kept if -(1 << 63) <= kept < 1 << 64 else hex(kept)
    if isinstance(kept, _Array):
        return [_fitting(getattr(kept, name)) for name in kept.__struct_fields__]
    if isinstance(kept, msgspec.Struct):
        names = zip(kept.__struct_fields__, kept.__struct_encode_fields__, strict=True)
        return {encoded: _fitting(getattr(kept, name)) for name, encoded in names}
    if isinstance(kept, Mapping):
        return {_fitting(key): _fitting(one) for key, one in kept.items()}
    if isinstance(kept, tuple):  # may be a key
        return tuple(_fitting(one) for one in kept)
    if isinstance(kept, Iterable) and not isinstance(kept, bytes):
        return [_fitting(one) for one in kept]
    return kept
