"""The plain frozen data that flows between the stages of the bridge.

All times are nanoseconds since the Unix epoch by the sender's clock, unless named ``received_*``.

    Batch -> decode -> Measurements | SumPoint | HistogramPoint | SummaryPoint -> align -> Row
                       TextSample                                              -> align -> Row
                       Announcement | Departure                                -> Description
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, NewType

from otel_rl.semconv.spec import AWAITING, Instrument, Reduction

__all__ = [
    "PART",
    "Announcement",
    "Batch",
    "Covered",
    "Decoded",
    "Departure",
    "Description",
    "Device",
    "ExperimentKey",
    "ExperimentStatus",
    "Export",
    "HistogramPoint",
    "Measurements",
    "Offset",
    "Point",
    "RoleStanding",
    "Row",
    "Series",
    "Signal",
    "SpanRecord",
    "SumPoint",
    "SummaryPoint",
    "Table",
    "Temporality",
    "TextSample",
    "Value",
    "Worker",
]

Value = None | bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"]
"""What a log event says: an OTLP ``AnyValue`` as JSON has it, bytes as base64 text."""

PART: Final = 1_000
"""Points, samples or spans of which a batch is made into rows at a time, about."""

Offset = NewType("Offset", int)
"""Position of a batch in the spool. Grows by one per batch, never reused, 0 means "nothing yet"."""


class Signal(StrEnum):
    """The OTLP signals that the bridge takes."""

    METRICS = "metrics"
    TRACES = "traces"
    LOGS = "logs"


@dataclass(frozen=True, slots=True, order=True)
class ExperimentKey:
    """Names one tracker run, across every process that reports for it.

    Attributes:
        experiment: ``rl.experiment.name`` of the resource.
        trial: ``rl.trial.name`` of the resource.
    """

    experiment: str
    trial: str = "default"

    def __str__(self) -> str:
        return f"{self.experiment}/{self.trial}"


@dataclass(frozen=True, slots=True)
class Batch:
    """What one accepted OTLP export request holds of one experiment: the unit of the spool.

    Attributes:
        experiment: Whose it is, so that experiments wait, fail and are removed apart.
        signal: Picks the protobuf type of ``payload``.
        payload: ``Export{Metrics,Trace,Logs}ServiceRequest`` as protobuf, unzipped, parsed once and
            freed of what was refused, so that nothing malformed is ever spooled.
        received_ns: By the bridge's own clock.
    """

    experiment: ExperimentKey
    signal: Signal
    payload: bytes
    received_ns: int


@dataclass(frozen=True, slots=True)
class Worker:
    """One process that reports for an experiment. A restarted process is another worker.

    Attributes:
        role: ``trainer``, ``generator``, ``replay_buffer``, ``reward``, ... or any other word.
        instance: ``service.instance.id`` with the service that it belongs to, unique to the
            process.
        index: Place among the workers of the role, or None if the process does not know it.
        count: Number of workers of the role, or None if the process does not know it.
    """

    role: str
    instance: str
    index: int | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """What is measured, how, and by whom. One writer each, so that repetitions can be told.

    Attributes:
        worker: The process that measures.
        name: The metric's name, e.g. ``rl.train.loss`` or a user's own word.
        unit: UCUM unit as sent, possibly empty.
        attributes: Sorted pairs without the step, so that equal series compare and hash equal. They
            are what the run shows: the integer 1 and the text "1" are one text here.
        reduction: The reduction that the sender asked for, or None for the registry's.
        instrument: What kind of points it has.
        scope: Name, version and attributes of the instrumentation scope, as one text.
        typed: Of the attributes that are no texts, (name, unambiguous spelling of the value), so
            that two series whose values only look alike have totals of their own.
        data: The kind of OTLP data where ``instrument`` does not tell: ``summary``,
            ``exponential`` or ``delta``; else empty.
    """

    worker: Worker
    name: str
    unit: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    reduction: Reduction | None = None
    instrument: Instrument = Instrument.GAUGE
    scope: str = ""
    typed: tuple[tuple[str, str], ...] = ()
    data: str = ""
    # Of everything above, once: a series is looked up for each of its points.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self._identity()))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type["Series"], tuple[object, ...]]:
        # Another process hashes texts in another way.
        return Series, self._identity()

    def _identity(self) -> tuple[object, ...]:
        return (
            self.worker,
            self.name,
            self.unit,
            self.attributes,
            self.reduction,
            self.instrument,
            self.scope,
            self.typed,
            self.data,
        )


class Covered(NamedTuple):
    """The time that a point stands for, by which it is known when it comes again.

    The points of a series with a ``start_ns`` tile time: what lies inside of what was taken is a
    repetition, however a collector cut the requests. A point without is known by ``end_ns`` alone.

    Attributes:
        start_ns: Exclusive; 0 if the sender promises nothing about it.
        end_ns: Inclusive; the point's own time.
    """

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Measurements:
    """Single measurements of one gauge series, in the order in which they were made.

    The three sequences have one length, n >= 1.

    Attributes:
        series: Identity.
        times_ns: When each was made.
        values: NaN and infinities are kept: a diverged loss is a finding, not bad input.
        steps: The step each belongs to, None for a time-driven one.
        covers: What tells the point from every other of the series, see ``Covered``; None if each
            measurement is known by its own time and step.
        told_since_ns: Not None if the sender tells the last value of a step again with every
            export, at its time, as stock SDKs do: only another value is another measurement then.
            The start that it gives, 0 for none, tells processes of one name apart.
    """

    series: Series
    times_ns: Sequence[int]
    values: Sequence[float]
    steps: Sequence[int | None]
    covers: Covered | None = None
    told_since_ns: int | None = None


class Temporality(StrEnum):
    """What a sum or histogram point counts from."""

    DELTA = "delta"
    CUMULATIVE = "cumulative"


@dataclass(frozen=True, slots=True)
class SumPoint:
    """One point of a counter or up-down counter, as sent.

    Attributes:
        series: Identity.
        start_ns: Start of what the point counts, 0 if unknown.
        time_ns: End of what the point counts.
        value: Since ``start_ns``.
        temporality: Whether ``start_ns`` moves with each point.
        covers: As of ``Measurements``; None if a repetition cannot be told.
        step: The step that was taken out of the attributes. A stock SDK counts each by itself.
    """

    series: Series
    start_ns: int
    time_ns: int
    value: float
    temporality: Temporality
    covers: Covered | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class HistogramPoint:
    """One point of an explicit-bucket or exponential histogram, as sent.

    A bucket is (lower bound, upper bound, count) and holds lower < measurement <= upper; the first
    lower bound may be -inf, the last upper bound +inf. An exponential histogram is the same thing
    with computed bounds. Empty buckets are left out.

    Attributes:
        series: Identity.
        start_ns: Start of what the point counts, 0 if unknown.
        time_ns: End of what the point counts.
        temporality: Whether ``start_ns`` moves with each point.
        count: Number of measurements.
        total: Sum of the measurements, or None if not reported.
        minimum: Smallest measurement, or None if not reported.
        maximum: Largest measurement, or None if not reported.
        buckets: Ascending and disjoint.
        covers: As of ``Measurements``; None if a repetition cannot be told.
        step: As of ``SumPoint``.
        bounds: No measurement is below the first or above the second, where they are known. They
            are wider than the extremes where a cumulative point became a difference.
    """

    series: Series
    start_ns: int
    time_ns: int
    temporality: Temporality
    count: int
    total: float | None
    minimum: float | None
    maximum: float | None
    buckets: tuple[tuple[float, float, int], ...]
    covers: Covered | None = None
    step: int | None = None
    bounds: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, slots=True)
class SummaryPoint:
    """One point of a Prometheus-style summary: quantiles that cannot be merged.

    Attributes:
        series: Identity.
        time_ns: When it was taken.
        count: Number of measurements since the process started.
        total: Their sum.
        quantiles: (quantile in 0..1, value).
        covers: As of ``Measurements``; None if a repetition cannot be told.
        step: As of ``SumPoint``.
    """

    series: Series
    time_ns: int
    count: int
    total: float
    quantiles: tuple[tuple[float, float], ...]
    covers: Covered | None = None
    step: int | None = None


Point = Measurements | SumPoint | HistogramPoint | SummaryPoint


@dataclass(frozen=True, slots=True)
class Export:
    """The fact that a worker has reported: its lease, and how far it has come.

    Attributes:
        worker: Who.
        time_ns: What it recorded up to this time is in this export or was in one before; 0 if the
            export does not say.
        says_goodbye: Whether the worker says goodbye when it ends in order.
    """

    worker: Worker
    time_ns: int
    says_goodbye: bool = False


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A span, as far as a diagnosis needs it.

    Attributes:
        span_id: 16 bytes of the trace and 8 of the span: unique in a run.
        parent_id: As ``span_id``; None for a root. The parent may be of another process, and may
            have ended before the span began.
        links: As ``span_id``, of spans of any process that this one uses something from.
        role: Of the worker.
        worker: Unique to the process.
        host: Whose clock the times are of.
        start_ns: By that clock.
        end_ns: By that clock; not before ``start_ns``.
        name: The span's own.
        phase: ``rl.phase``; empty for what is no phase.
        phase_class: ``rl.phase_class``; empty for what is no phase.
        step: The training step that it belongs to, if it says so.
        failed: Whether its status is an error.
    """

    span_id: bytes
    parent_id: bytes | None
    links: tuple[bytes, ...]
    role: str
    worker: str
    host: str
    start_ns: int
    end_ns: int
    name: str
    phase: str = ""
    phase_class: str = ""
    step: int | None = None
    failed: bool = False

    @property
    def is_wait(self) -> bool:
        """Whether somebody else decides when it ends, at least in part."""
        return self.phase_class in AWAITING


class ExperimentStatus(StrEnum):
    """How an experiment stands."""

    RUNNING = "running"
    COMPLETE = "complete"
    ABORTED = "aborted"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class TextSample:
    """What the policy said once: one line of a table of rollouts.

    Attributes:
        worker: Who reports it.
        table: Name of the table.
        step: The step it belongs to, None for a time-driven one.
        time_ns: When it was reported.
        fields: In the sender's order, e.g. prompt, completion and reward.
        digest: Of 63 bits; with ``time_ns`` it tells the sample from every other of the run.
    """

    worker: Worker
    table: str
    step: int | None
    time_ns: int
    fields: Mapping[str, Value]
    digest: int


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a process says of the whole run. What is None or empty is not spoken of.

    Attributes:
        time_ns: When; of two that speak of the same, the later one is right.
        status: RUNNING at every start of a process, else how the experiment has ended.
        config: Hyper-parameters.
        notes: Free text.
        tags: Of the run.
        group: Of the run, in the tracker.
        job_type: Of the run, in the tracker.
    """

    time_ns: int
    status: ExperimentStatus | None = None
    config: Mapping[str, Value] = field(default_factory=dict)
    notes: str | None = None
    tags: Sequence[str] = ()
    group: str | None = None
    job_type: str | None = None


@dataclass(frozen=True, slots=True)
class Departure:
    """A process says that it ends. One that is killed says nothing.

    Attributes:
        worker: Who.
        time_ns: When.
        failed: Whether an error ends it.
    """

    worker: Worker
    time_ns: int
    failed: bool


class RoleStanding(NamedTuple):
    """How a role stands.

    Attributes:
        expected: Workers that should be there: as many as one of them says there are, else as many
            as there were; without those that have said goodbye.
        alive: Workers that hold a lease.
        failures: Leases that have ended without a goodbye, and workers that said they failed.
        recovery_s: From the last sign of the worker that was replaced last to the first of the one
            that replaced it; None if none was.
        silent: Workers that ended without a goodbye although all ended well; None if none did.
    """

    expected: int
    alive: int
    failures: int
    recovery_s: float | None
    silent: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a part of one, that workers of the run report.

    Attributes:
        uuid: The device's own id, which makes it one device however many report it.
        host: Where it is, possibly empty.
        name: What it is called there, e.g. ``gpu0``.
        model: Its product name, possibly empty.
        workers: Who reports it, each as ``<role>/<index>``, in the order in which they began to.
    """

    uuid: str
    host: str
    name: str
    model: str
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """What a run is, beside its rows.

    Attributes:
        config: Hyper-parameters, of all processes.
        notes: Free text.
        tags: Of all processes, each once.
        group: In the tracker; empty for the experiment's own.
        job_type: In the tracker.
        status: How the experiment stands. Rows may still come after its end.
        devices: The run's GPUs, by what all keys of each begin with, e.g. ``gpu/node1/gpu0``.
    """

    config: Mapping[str, Value] = field(default_factory=dict)
    notes: str = ""
    tags: Sequence[str] = ()
    group: str = ""
    job_type: str = ""
    status: ExperimentStatus = ExperimentStatus.RUNNING
    devices: Mapping[str, Device] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one batch says about its experiment.

    Attributes:
        points: In the order of the request.
        exports: One per worker in the batch.
        samples: Lines of tables, in the order of the request.
        spans: In the order of the request.
        announcements: Of the run.
        departures: Of workers.
        has_more: Whether this is a part of a batch, of which more comes.
    """

    points: Sequence[Point]
    exports: Sequence[Export]
    samples: Sequence[TextSample] = ()
    spans: Sequence[SpanRecord] = ()
    announcements: Sequence[Announcement] = ()
    departures: Sequence[Departure] = ()
    has_more: bool = False

    @property
    def items(self) -> int:
        """How many points, samples and spans."""
        return len(self.points) + len(self.samples) + len(self.spans)


@dataclass(frozen=True, slots=True)
class Table:
    """Some lines of text.

    Attributes:
        columns: Their names.
        rows: Each as long as ``columns``; None where a line has no such field.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Row:
    """What a tracker gets: axes plus values.

    Attributes:
        number: Place in the run, from 0 without gaps. It is the tracker's idempotency key.
        step: The training step; for time-driven rows, the one in progress at ``time_ns``.
        time_ns: Event time.
        values: Tracker key to value. NaN and infinities are data.
        policy_version: The policy version at ``time_ns``, or None if nobody reported one.
        tables: Tracker key to table. Empty if there are values, and the other way round.
        labels: Tracker key to text.
    """

    number: int
    step: int
    time_ns: int
    values: Mapping[str, float] = field(default_factory=dict)
    policy_version: int | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
