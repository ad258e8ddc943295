"""Frozen records passed between the stages of the bridge.

All times are nanoseconds since the Unix epoch by the sender's clock, unless named ``received_*``.

    Batch -> decode -> Measurements | SumPoint | HistogramPoint | SummaryPoint -> align -> Row
                       TextSample                                              -> align -> Row
                       Announcement | Departure                                -> Description
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, Final, NamedTuple, NewType, overload

from otel_rl.semconv.names import LOG_IOSTREAM
from otel_rl.semconv.spec import AWAITING, Instrument, Reduction, Tier
from otel_rl.signals import Signal

__all__ = [
    "CONSOLE",
    "CONSOLE_COLUMNS",
    "GPUS",
    "HOSTS",
    "HOST_ID",
    "PART",
    "STACKS",
    "Announcement",
    "Attempt",
    "Batch",
    "Buckets",
    "Covered",
    "Decoded",
    "Departure",
    "Description",
    "Device",
    "ExperimentKey",
    "ExperimentStatus",
    "Export",
    "HistogramPoint",
    "KeySource",
    "KeySpec",
    "Measurements",
    "Offset",
    "Point",
    "Provenance",
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
    "WorkerFailure",
]

Value = None | bool | int | float | str | Sequence["Value"] | Mapping[str, "Value"]
"""Value of a log event: an OTLP ``AnyValue`` in its JSON form, bytes as base64 text."""

_SIGNALS: Final = frozenset({"SIGHUP", "SIGINT", "SIGTERM"})
_CTRL_C: Final = "KeyboardInterrupt"
_INTERRUPTS: Final = _SIGNALS | {_CTRL_C}
"""Errors of a worker that was asked to end."""

_UNEXPLAINED: Final = _SIGNALS | {None}
"""The same of one that was ended, without an error of its own."""

_FOLLOWS_NS: Final = 3_600_000_000_000
"""Time after an error in which its peers fail: a collective's timeout may be half an hour."""

_MAX_NAME: Final = 128
"""Characters of a trial's name, as for a worker that names it."""

PART: Final = 1_000
"""Approximate number of points, samples or spans that are made into rows at a time."""

Offset = NewType("Offset", int)
"""Position of a batch in the spool. Grows by one per batch, never reused, 0 means "nothing yet"."""


class ExperimentKey(NamedTuple):
    """Key of one tracker run, shared by all processes that report for it.

    Attributes:
        experiment: ``rl.experiment.name`` of the resource.
        trial: ``rl.trial.name`` of the resource.
    """

    experiment: str
    trial: str = "default"

    def __str__(self) -> str:
        return f"{self.experiment}/{self.trial}"

    @property
    def title(self) -> str:
        """Return the run's name in a tracker: the experiment alone if the trial is the default."""
        return self.experiment if self.trial == "default" else str(self)

    def numbered(self) -> "Iterator[ExperimentKey]":
        """Yield this run, then endlessly runs with a number behind the trial's name."""
        yield self
        for number in count(2):
            end = f"-{number}"
            yield ExperimentKey(self.experiment, f"{self.trial[: _MAX_NAME - len(end)]}{end}")


@dataclass(frozen=True, slots=True)
class Batch:
    """Content of one accepted OTLP export request for one experiment: the unit of the spool.

    Attributes:
        experiment: Run that owns the batch, so that experiments wait, fail and are removed
            independently.
        signal: Signal, which selects the protobuf type of ``payload``.
        payload: ``Export{Metrics,Trace,Logs}ServiceRequest`` as protobuf, uncompressed, parsed once
            and without the refused parts, so that the spool holds nothing malformed.
        received_ns: Arrival of the request, by the bridge's clock.
        columns: Metrics of the batch as they were read on receipt, see ``ResourceReading``; empty
            if they must be read from the payload.
    """

    experiment: ExperimentKey
    signal: Signal
    payload: bytes
    received_ns: int
    columns: Sequence[Any] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Worker:
    """Process that reports for an experiment. A restarted process is another worker.

    Attributes:
        role: ``trainer``, ``generator``, ``replay_buffer``, ``reward``, ... or any other word.
        instance: ``service.instance.id`` with its service, unique to the process.
        index: Index among the workers of the role, or None if unknown to the process.
        count: Number of workers of the role, or None if unknown to the process.
    """

    role: str
    instance: str
    index: int | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Identity of one time series. It has one writer, so that repetitions can be detected.

    Attributes:
        worker: The process that measures.
        name: The metric's name, e.g. ``rl.train.loss`` or a user's own word.
        unit: UCUM unit as sent, possibly empty.
        attributes: Sorted pairs without the step, so that equal series compare and hash equal. The
            run shows them as text: the integer 1 and the text "1" are the same here.
        reduction: The reduction that the sender requested, or None for the registry's.
        instrument: Kind of the series' points.
        scope: Name, version and attributes of the instrumentation scope, as one text.
        typed: (name, unambiguous spelling of the value) of each non-text attribute, so that two
            series whose values only look alike have separate totals; and pairs that were folded.
        data: The kind of OTLP data where ``instrument`` does not define it: ``summary``,
            ``exponential``, ``delta`` or ``share``; else empty.
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
    # Hash of all fields above, computed once: a series is looked up for each of its points.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self._identity()))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type["Series"], tuple[object, ...]]:
        # Text hashes differ between processes, so pickling leaves the hash out.
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
    """Time that a point covers, which identifies the point when it is sent again.

    The points of a series with a ``start_ns`` tile time: a point inside accepted time is a
    repetition, however a collector split the requests. A point without a start is identified by
    ``end_ns`` alone.

    Attributes:
        start_ns: Start of the covered time, exclusive; 0 if the sender does not define it.
        end_ns: End of the covered time, inclusive: the point's own time.
    """

    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Measurements:
    """Measurements of one gauge series, in the order in which they were made.

    The three sequences have the same length n >= 1, and are never changed. The class is not frozen
    because there is one object for each measurement of a run with many workers, and a frozen one
    takes thrice as long.

    Attributes:
        values: NaN and infinities are kept: a diverged loss is a finding, not bad input.
        steps: Step of each measurement, None for a time-driven one.
        covers: Key that identifies the point within the series, see ``Covered``; None if each
            measurement is identified by its own time and step.
        told_since_ns: None unless the sender repeats the last value of a step in every export, at
            the export's time, as stock SDKs do: then only a changed value is a new measurement. The
            number is the start that the sender gives, 0 for none, and separates processes of one
            name.
    """

    series: Series
    times_ns: Sequence[int]
    values: Sequence[float]
    steps: Sequence[int | None]
    covers: Covered | None = None
    told_since_ns: int | None = None


class Temporality(StrEnum):
    """Reference point of a sum or histogram point."""

    DELTA = "delta"
    CUMULATIVE = "cumulative"


class Buckets(Sequence[tuple[float, float, int]]):
    """Buckets of a histogram that have a count, as (lower bound, upper bound, count).

    The points of a series nearly always have the same layout. The layout is then one object, and
    the increment between two points is a difference of columns.

    Attributes:
        layout: Lower and upper bound of each bucket, including empty ones.
    """

    __slots__ = ("counts", "layout")

    def __init__(self, layout: tuple[tuple[float, float], ...], counts: Sequence[int]) -> None:
        self.layout = layout
        self.counts = counts

    @classmethod
    def of(cls, buckets: Iterable[tuple[float, float, int]]) -> "Buckets":
        """Return the buckets given one by one, as (lower bound, upper bound, count)."""
        known = [*buckets]
        return cls(tuple([one[:2] for one in known]), [n for _, _, n in known])

    def __iter__(self) -> Iterator[tuple[float, float, int]]:
        pairs = zip(self.layout, self.counts, strict=True)
        return iter([(lower, upper, n) for (lower, upper), n in pairs if n])

    def __len__(self) -> int:
        return len(self.counts) - self.counts.count(0)

    @overload
    def __getitem__(self, place: int) -> tuple[float, float, int]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[tuple[float, float, int]]: ...
    def __getitem__(
        self, place: int | slice
    ) -> tuple[float, float, int] | Sequence[tuple[float, float, int]]:
        return [*self][place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # a count is no identity

    def __repr__(self) -> str:
        return repr([*self])


@dataclass(slots=True)
class SumPoint:
    """One point of a counter or up-down counter, as sent.

    Attributes:
        start_ns: Start of the counted interval, 0 if unknown.
        time_ns: End of the counted interval.
        value: Amount counted since ``start_ns``.
        temporality: DELTA if ``start_ns`` moves with each point.
        covers: See ``Measurements``; None if a repetition cannot be detected.
        step: The step, removed from the attributes. A stock SDK counts each step separately.
        is_share: Whether the point is a step's share of counts that other points have, too (ADR
            0015).
        is_scraped: Whether a Collector has scraped the point from a process that may be older than
            the run.
    """

    series: Series
    start_ns: int
    time_ns: int
    value: float
    temporality: Temporality
    covers: Covered | None = None
    step: int | None = None
    is_share: bool = False
    is_scraped: bool = False


@dataclass(slots=True)
class HistogramPoint:
    """One point of an explicit-bucket or exponential histogram, as sent.

    A bucket is (lower bound, upper bound, count) and holds lower < measurement <= upper; the first
    lower bound may be -inf, the last upper bound +inf. The bounds of an exponential histogram are
    computed.

    Attributes:
        start_ns: Start of the counted interval, 0 if unknown.
        time_ns: End of the counted interval.
        temporality: DELTA if ``start_ns`` moves with each point.
        count: Number of measurements.
        total: Sum of the measurements, or None if not reported.
        minimum: Smallest measurement, or None if not reported.
        maximum: Largest measurement, or None if not reported.
        buckets: Buckets, ascending and disjoint.
        covers: See ``Measurements``; None if a repetition cannot be detected.
        step: See ``SumPoint``.
        bounds: Limits of all measurements, where known. They are wider than the extremes where a
            cumulative point was converted to a difference.
        is_share: See ``SumPoint``.
    """

    series: Series
    start_ns: int
    time_ns: int
    temporality: Temporality
    count: int
    total: float | None
    minimum: float | None
    maximum: float | None
    buckets: Buckets
    covers: Covered | None = None
    step: int | None = None
    bounds: tuple[float | None, float | None] = (None, None)
    is_share: bool = False
    is_scraped: bool = False


@dataclass(frozen=True, slots=True)
class SummaryPoint:
    """One point of a Prometheus-style summary: quantiles that cannot be merged.

    Attributes:
        count: Number of measurements since the process started.
        total: Sum of the measurements.
        quantiles: Quantiles as (quantile in 0..1, value).
        covers: See ``Measurements``; None if a repetition cannot be detected.
        step: See ``SumPoint``.
        start_ns: See ``SumPoint``.
        is_scraped: See ``SumPoint``.
    """

    series: Series
    time_ns: int
    count: int
    total: float
    quantiles: tuple[tuple[float, float], ...]
    covers: Covered | None = None
    step: int | None = None
    start_ns: int = 0
    is_scraped: bool = False


Point = Measurements | SumPoint | HistogramPoint | SummaryPoint


@dataclass(frozen=True, slots=True)
class Export:
    """Export of one worker, which renews its lease and advances its watermark.

    Attributes:
        time_ns: All records up to this time are in this export or an earlier one; 0 if the export
            does not define it.
        sends_exit_report: True if the worker announces its orderly end.
        has_work: Whether spans of the export have a step or a phase; those of a starting process
            have none.
        host: Host of the worker; empty if it is unknown.
        pid: Process id of the worker on its host; None if it is unknown.
    """

    worker: Worker
    time_ns: int
    sends_exit_report: bool = False
    has_work: bool = False
    host: str = ""
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A span, with the fields that a diagnosis needs.

    Attributes:
        span_id: 16 bytes of the trace id and 8 of the span id: unique in a run.
        parent_id: Id of the parent, like ``span_id``; None for a root. The parent may belong to
            another process, and may have ended before the span began.
        links: Ids, like ``span_id``, of spans of any process whose output this span uses.
        worker: Instance of the worker, unique to the process.
        host: Host of the clock that the times refer to.
        start_ns: Start of the span, by that clock.
        end_ns: End of the span, by that clock; not before ``start_ns``.
        name: The span's own name.
        phase: ``rl.phase``; empty if the span is no phase.
        phase_class: ``rl.phase_class``; empty if the span is no phase.
        step: The span's training step, if it has one.
        failed: Whether the span's status is an error.
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
        """Return whether another process decides, at least in part, when the span ends."""
        return self.phase_class in AWAITING


class ExperimentStatus(StrEnum):
    """Status of an experiment."""

    RUNNING = "running"
    COMPLETE = "complete"
    ABORTED = "aborted"
    CRASHED = "crashed"


CONSOLE: Final = "otel_rl/console"
"""Name and tracker key of the table of the run's console, whose columns are ``CONSOLE_COLUMNS``."""

CONSOLE_COLUMNS: Final = ("line", "time_ns", "worker", "stream", "text")
"""``line`` counts the lines of the run from 0."""

PROGRESS: Final = "otel_rl/rollouts"
"""Name under which the progress of rollouts in flight is a sample. It makes no table."""

STACKS: Final = "stacks"
"""Name of the tables of where workers stand whose phases take too long."""


@dataclass(frozen=True, slots=True)
class TextSample:
    """One sample of a table of rollouts.

    Attributes:
        step: The sample's step, None for a time-driven one.
        time_ns: Time at which the sample was reported.
        fields: Fields in the sender's order, e.g. prompt, completion and reward.
        digest: Digest of 63 bits; unique in the run together with ``time_ns``.
    """

    worker: Worker
    table: str
    step: int | None
    time_ns: int
    fields: Mapping[str, Value]
    digest: int

    @property
    def is_console(self) -> bool:
        """Return whether the sample holds lines of a worker's console."""
        return self.table == CONSOLE and self.fields.keys() == {LOG_IOSTREAM, "text"}

    @property
    def is_progress(self) -> bool:
        """Return whether the sample is the progress of a rollout that has not ended."""
        return self.table == PROGRESS


@dataclass(frozen=True, slots=True)
class Provenance:
    """Command, code and machine of one process; unknown fields are empty.

    Attributes:
        index: Index of the worker; -1 if it has none.
        host: Name of the process's machine.
        command: Program and arguments, without secrets.
        executable: Path of the interpreter.
        runtime: Version of the interpreter.
        system: Name and version of the operating system.
        commit: Commit of the working tree that the program is in.
        repository: URL of the working tree's remote.
        diff: Difference of the working tree to the commit.
        packages: ``name==version``, sorted.
        time_ns: Time at which the process started to report.
    """

    role: str = ""
    index: int = -1
    host: str = ""
    command: Sequence[str] = ()
    executable: str = ""
    runtime: str = ""
    system: str = ""
    commit: str = ""
    repository: str = ""
    diff: str = ""
    packages: Sequence[str] = ()
    time_ns: int = 0


@dataclass(frozen=True, slots=True)
class Announcement:
    """Metadata of the whole run, from one process. None and empty values change nothing.

    Attributes:
        time_ns: Time of the announcement; the latest value of a field wins.
        status: RUNNING at each start of a process, else the final status of the experiment.
        config: Hyper-parameters.
        notes: Free text.
        group: Group of the run in the tracker.
        job_type: Job type of the run in the tracker.
        provenance: Provenance of the process.
        defaults: Hyper-parameters that hold where no announcement has the key in its config.
        project: Project in the tracker; the first one named counts, as for ``entity`` and ``mode``.
        entity: Account or team at the tracker.
        mode: ``online``, ``offline`` or another word.
        name: Name of the run in the tracker.
        own_run: See ``Description``; the first path counts.
    """

    time_ns: int
    status: ExperimentStatus | None = None
    config: Mapping[str, Value] = field(default_factory=dict)
    notes: str | None = None
    tags: Sequence[str] = ()
    group: str | None = None
    job_type: str | None = None
    provenance: Provenance | None = None
    defaults: Mapping[str, Value] = field(default_factory=dict)
    project: str | None = None
    entity: str | None = None
    mode: str | None = None
    name: str | None = None
    own_run: str | None = None


@dataclass(frozen=True, slots=True)
class Departure:
    """Orderly end of a process. A killed process sends none.

    Attributes:
        worker: The process that ends.
        failed: Whether an error ends the process.
        error: Type of the error; empty if it is unknown.
        message: Text of the error, without secrets.
        step: Step that the error has ended; None if it is unknown.
        has_ended: False for an error that has only ended a step, after which the process may go on.
    """

    worker: Worker
    time_ns: int
    failed: bool
    error: str = ""
    message: str = ""
    step: int | None = None
    has_ended: bool = True


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """Failure of one process, which ended by an error or without an exit report.

    Attributes:
        worker: ``<role>/<index>``.
        time_ns: Time of the process's end; without an exit report, of its last progress.
        error: Type of the error, empty if it is unknown; None without an exit report. For a command
            that was asked to end, the signal.
        message: Text of the error, without secrets.
        step: Step that the error has ended, else the last known step; None without steps.
        is_in_step: Whether ``step`` is the step that the error has ended.
        recovery_s: Seconds until another process took the failed one's place; None while none has.
        reports_ends: Whether the process's SDK reports ends. If not, its silence may be an orderly
            end.
        is_same: Whether the process that took the place is this one, which was silent and reports
            again.
    """

    worker: str
    time_ns: int
    error: str | None = None
    message: str = ""
    step: int | None = None
    is_in_step: bool = False
    recovery_s: float | None = None
    reports_ends: bool = True
    is_same: bool = False

    @property
    def is_interrupt(self) -> bool:
        """Return whether a person or a scheduler has ended the process, by Ctrl-C or a signal."""
        return self.error in _INTERRUPTS

    @property
    def is_by_lost_peer(self) -> bool:
        """Return whether the process's error reports the end of another process."""
        if not self.error:
            return False
        return bool(_LOST_PEER.search(self.error) or _LOST_PEER_IN_WORDS.search(self.message))

    @property
    def is_reported(self) -> bool:
        """Return whether the process reported its end by itself, after everything else."""
        return self.error not in _UNEXPLAINED

    def __str__(self) -> str:
        """Return who failed, how and when: ``trainer/0, RuntimeError at step 3``."""
        if self.error is None:
            has_ended = self.reports_ends and not self.is_same
            what = " ended without an exit report" if has_ended else " fell silent"
        else:
            by = "ended by " if self.error in _SIGNALS else ""
            what = f", {by}{self.error}" if self.error else " failed"
        back = "reported again" if self.is_same else "replaced"
        after = "" if self.recovery_s is None else f"; {back} after {self.recovery_s:.1f} s"
        return f"{self.worker}{what}{self._when}{after}"

    @property
    def in_a_live_run(self) -> str:
        """Return the same text for a run that goes on, in which a silent process may be alive."""
        if self.error is not None or self.recovery_s is not None:
            return str(self)
        since = "" if self.step is None else f" since step {self.step}"
        may_be = "killed, frozen, or cut off"
        if not self.reports_ends:
            may_be = "killed, stopped in order, frozen or cut off (its SDK reports no end)"
        return f"{self.worker} has reported nothing{since}: {may_be}"

    @property
    def as_crash(self) -> str:
        """Return the text for the failure that ended the run, in one line without its message."""
        by = f" by {self.error}" if self.error in _SIGNALS else ""
        return (
            f"interrupted{by}: {self.worker}{self._when}"
            if self.is_interrupt
            else f"crashed: {self}"
        )

    @property
    def _when(self) -> str:
        if self.step is None:
            return ""
        return f" {'at' if self.is_in_step else 'after'} step {self.step}"

    @staticmethod
    def first_cause(failures: "Iterable[WorkerFailure]") -> "WorkerFailure | None":
        """Return the failure that caused the last ones: the first error of an ended worker.

        The worker's peers hang or are killed because of that error, so failures without an exit
        report come second. If the errors report a lost peer, the cause is a worker that had stopped
        before them. Ctrl-C comes before all, because others fail by it. A signal may be a
        launcher's answer to an error.
        """
        lasting = [one for one in failures if one.recovery_s is None]
        since_ns = max((one.time_ns for one in lasting), default=0) - _FOLLOWS_NS
        late = [one for one in lasting if one.time_ns >= since_ns]
        late = [*_not_by_a_lost_peer(late)]
        return min(
            late,
            key=lambda one: (one.error != _CTRL_C, one.error in _UNEXPLAINED, one.time_ns),
            default=None,
        )


_LOST_PEER: Final = re.compile(
    r"Connection|BrokenPipe|DistBackend|DistNetwork|ActorDied|ActorUnavailable|RayActor|RpcError"
)
"""Errors of a process that has lost another one."""

_LOST_PEER_IN_WORDS: Final = re.compile(
    r"by peer|broken pipe|connection (was )?(refused|reset|closed|aborted)|remote process exited|"
    r"remote end closed|server disconnected",
    re.IGNORECASE,
)
"""The same in the messages of errors of any type: gloo's are plain runtime errors."""


def _not_by_a_lost_peer(failures: "Sequence[WorkerFailure]") -> "Sequence[WorkerFailure]":
    """Return the failures without those that follow from the silent end of another worker.

    A launcher that kills the rest after an error leaves more of those without a report.
    """
    by_peer = [one for one in failures if one.is_by_lost_peer]
    silent = [one for one in failures if one.error in _UNEXPLAINED]
    if not by_peer or len(by_peer) + len(silent) < len(failures) or len(silent) > len(by_peer):
        return failures
    first_ns = min(one.time_ns for one in by_peer)
    return [one for one in silent if one.time_ns <= first_ns] or failures


class RoleStanding(NamedTuple):
    """Liveness of the workers of one role.

    Attributes:
        expected: Number of workers that should be alive: the count that one of them reports, else
            the largest number seen; without workers that ended in order.
        alive: Number of workers that hold a lease.
        failures: Number of expired leases, and of workers that reported a failure.
        recovery_s: Seconds from the last export of the most recently replaced worker to the first
            export of its replacement; None if none was replaced.
        silent: Number of workers that sent no departure although the experiment completed; None if
            every worker sent one.
    """

    expected: int
    alive: int
    failures: int
    recovery_s: float | None
    silent: int | None = None


GPUS: Final = "gpu"
"""Section of the keys of GPUs."""

HOSTS: Final = "host"
"""Section of the keys of hosts."""

HOST_ID: Final = "host:"
"""Begins the id of a host, before its name."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, a part of a GPU, or a host that workers of the run report.

    Attributes:
        uuid: The device's own id, the same for every worker that reports it.
        host: Host of the device, possibly empty.
        name: Name of the device on its host, e.g. ``gpu0``; empty for a host.
        model: Product name of the device, possibly empty.
        workers: Workers that report the device, each as ``<role>/<index>``, in the order of their
            first reports.
    """

    uuid: str
    host: str
    name: str
    model: str
    workers: tuple[str, ...]

    @property
    def is_host(self) -> bool:
        """Return whether the device is a whole host."""
        return self.uuid.startswith(HOST_ID)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A pass of a run over its steps, from an earlier step on, see ADR 17.

    Attributes:
        number: Number of the attempt, from 2 on; attempt 1 begins with the run.
        first_step: Step that the attempt goes back to.
        since_ns: Time after which values belong to the attempt, by the clock of the worker that
            leads the run's axis.
    """

    number: int
    first_step: int
    first_row: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class Description:
    """Metadata of a run, apart from its rows.

    Attributes:
        config: Hyper-parameters of all processes.
        notes: Free text.
        tags: Tags of all processes, each once.
        group: Group in the tracker; empty for the experiment's own.
        job_type: Job type in the tracker.
        status: Status of the experiment. Rows may still arrive after its end.
        devices: The run's GPUs and reported hosts, by the common prefix of their keys, e.g.
            ``gpu/node1/gpu0`` and ``host/node1``.
        provenance: Provenance of the first trainer; without trainers, of the first worker.
        hosts: Machines of the run, each with the roles of its workers.
        failures: The last failures of the run's workers, in order.
        attempts: The last attempts after the first, in order.
        project: Project in the tracker, as the program names it; empty if it does not.
        entity: Account or team, as the program names it; empty if it does not.
        mode: ``online``, ``offline`` or another word, as the program names it; empty if it does
            not.
        name: Name of the run in the tracker, as the program names it; empty if it does not.
        own_run: Path of the W&B run that the program has made itself; empty if that run cannot be
            joined, None if the program has not said.
    """

    config: Mapping[str, Value] = field(default_factory=dict)
    notes: str = ""
    tags: Sequence[str] = ()
    group: str = ""
    job_type: str = ""
    status: ExperimentStatus = ExperimentStatus.RUNNING
    devices: Mapping[str, Device] = field(default_factory=dict)
    provenance: Provenance | None = None
    hosts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    failures: Sequence[WorkerFailure] = ()
    attempts: Sequence[Attempt] = ()
    project: str = ""
    entity: str = ""
    mode: str = ""
    name: str = ""
    own_run: str | None = None

    def attempt_below(self, row: int) -> int:
        """Return the newest attempt that has a row with a number below ``row``."""
        return max((one.number for one in self.attempts if one.first_row < row), default=1)

    @property
    def crash(self) -> WorkerFailure | None:
        """Return the failure that ended the run; None if none did."""
        if self.status is not ExperimentStatus.CRASHED:
            return None
        return WorkerFailure.first_cause(self.failures)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded content of one batch.

    Attributes:
        points: Points in the order of the request.
        exports: One per worker in the batch.
        samples: Lines of tables, in the order of the request.
        spans: Spans in the order of the request.
        departures: Ends of workers.
        has_more: Whether further parts of the batch follow.
        sampled: By worker, the latest end of a span that says that other spans of its step may have
            been dropped.
    """

    points: Sequence[Point]
    exports: Sequence[Export]
    samples: Sequence[TextSample] = ()
    spans: Sequence[SpanRecord] = ()
    announcements: Sequence[Announcement] = ()
    departures: Sequence[Departure] = ()
    has_more: bool = False
    sampled: Mapping[Worker, int] = field(default_factory=dict)

    @property
    def items(self) -> int:
        """Return the number of points, samples and spans."""
        return len(self.points) + len(self.samples) + len(self.spans)


@dataclass(frozen=True, slots=True)
class Table:
    """Table of text columns.

    Attributes:
        rows: Rows, each as long as ``columns``; None where a row lacks the field.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


class KeySource(NamedTuple):
    """Metric behind a tracker key.

    Attributes:
        role: Role of the workers; empty for metrics of all roles.
        attributes: Attributes without the step.
    """

    role: str
    name: str
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Meaning of one tracker key of a run.

    Attributes:
        name: Name of the metric; empty if it is unknown.
        role: Role of the workers; empty for metrics of all roles.
        attributes: Attributes of the points, without the step.
        statistic: ``value``; ``total`` or ``rate`` of a counter, ``mean`` of a histogram, or the
            name of a statistic, e.g. ``p99`` or ``rank_max``; ``table``; ``text``.
        unit: Unit as UCUM, with its annotation; empty if unknown.
        axis: ``step`` if the key was in the row of a step first, else ``time``.
        section: First segment of the key.
        tier: Detail from which on a tracker gets the key.
        reduction: Reduction over the workers; empty for values that belong to no worker.
        worker: Index of the single worker; empty for the value of the role.
        own_name: Name that the worker's framework gave it; empty without one.
        own_scale: Factor from the framework's value to the key's value.
    """

    key: str
    name: str = ""
    role: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    statistic: str = "value"
    unit: str = ""
    axis: str = "time"
    section: str = ""
    tier: Tier = Tier.BASIC
    reduction: str = ""
    worker: str = ""
    own_name: str = ""
    own_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """A row for a tracker: its axes and its values.

    Attributes:
        number: Position in the run, from 0 without gaps. It is the tracker's idempotency key.
        step: The training step; for time-driven rows, the step in progress at ``time_ns``.
        values: Tracker key to value. NaN and infinities are data.
        policy_version: The policy version at ``time_ns``, or None if none was reported.
        tables: Tracker key to table. A row has either values or tables.
        labels: Tracker key to text.
        devices: Tracker key to value of GPUs and hosts, for a tracker's own panels only.
        new_keys: Meaning of keys of this and later rows, sent once in each opening of the tracker.
        attempt: Pass over the steps, counted from 1.
        replaces: Whether the values replace those of earlier rows of the same step and attempt.
        stored_bytes: Size in the journal that the row was read from; 0 for any other row.
        stored_ns: Time at which the row was stored there, by the bridge's clock; 0 for any other
            row.
    """

    number: int
    step: int
    time_ns: int
    values: Mapping[str, float] = field(default_factory=dict)
    policy_version: int | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, float] = field(default_factory=dict)
    new_keys: Sequence[KeySpec] = ()
    attempt: int = 1
    replaces: bool = False
    stored_bytes: int = field(default=0, init=False, compare=False, repr=False)
    stored_ns: int = field(default=0, init=False, compare=False, repr=False)
