"""The bridge's own counters: a closed set of names, each with a closed set of reasons.

Every drop adds to a counter. To add a counter, add its line in ``Counter``, and if it has reasons,
their enum. The documentation and the bridge's metrics are made of these lines.
"""

import threading
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self

from otel_rl.records import ExperimentKey

__all__ = [
    "ArchiveDrop",
    "CommitRefusal",
    "Counter",
    "Counters",
    "Gauge",
    "Outcome",
    "Refusal",
    "Reload",
    "Removal",
    "SampleDrop",
    "StateFault",
    "TrackerFailure",
    "ValueFold",
    "Where",
]

_PREFIX: Final = "otel_rl.bridge."


class Outcome(StrEnum):
    """Outcome of an export request. Senders retry after the last six.

    Attributes:
        OK: Accepted.
        PARTIAL: Partly refused, with the reason in the answer.
        MALFORMED: The request is not OTLP.
        HTTP2: HTTP/2 on the HTTP port.
        TOO_LARGE: Over ``receive.max_body_bytes``, or too many points or messages in one request.
        UNAUTHENTICATED: No valid token.
        UNSUPPORTED_MEDIA_TYPE: Neither protobuf nor JSON.
        WRONG_METHOD: Not a POST.
        NOT_FOUND: Unknown path.
        DISCONNECTED: The sender left early.
        CANCELLED: gRPC call without a message, or with one over ``receive.max_body_bytes``.
        SLOW: Its body took over ten seconds, or was too slow while other gRPC calls wait.
        OVERLOADED: Over 16 times ``receive.max_body_bytes`` in all, or too many requests wait.
        TOO_MANY_CONNECTIONS: Over ``receive.max_connections``.
        NO_ROOM: Journal or disk full.
        STOPPING: The bridge stops.
        FAILED: Not stored, see the log.
    """

    OK = "ok"
    PARTIAL = "partial"
    MALFORMED = "malformed"
    HTTP2 = "http2"
    TOO_LARGE = "too_large"
    UNAUTHENTICATED = "unauthenticated"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    WRONG_METHOD = "wrong_method"
    NOT_FOUND = "not_found"
    DISCONNECTED = "disconnected"
    CANCELLED = "cancelled"
    SLOW = "slow"
    OVERLOADED = "overloaded"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    NO_ROOM = "no_room"
    STOPPING = "stopping"
    FAILED = "failed"


class Refusal(StrEnum):
    """Reason to refuse a point, exemplar, span or log record of a request.

    Attributes:
        MALFORMED: Its resource is not OTLP.
        NO_EXPERIMENT: No ``rl.experiment.name`` or ``receive.default_experiment``.
        NOT_ALLOWED: The token may not write this experiment.
        TOO_MANY_EXPERIMENTS: Beyond 1,000 in use at once.
        SHARE_USED_UP: Beyond the token's share of the experiments.
        INVALID_NAME: A name or tag is no text, empty, long, unprintable or repeated.
        INVALID_METRIC_NAME: Empty, too long or unprintable.
        INVALID_ID: A trace or span id is missing, zero or of wrong length.
        NO_VALUE: Neither a number nor the flag for none.
        INVALID_BUCKETS: Bounds do not ascend or fit the counts.
        INVALID_EVENT: A field of the event is missing or wrong.
        EVENT_TOO_LARGE: Event with too many bytes or too deep nesting.
        SPAN_TOO_LARGE: Too many bytes or links, or a long name or phase.
        TOO_MANY_ATTRIBUTES: Too many attributes, or fields of a text sample.
        ATTRIBUTE_TOO_LONG: A key, a value, or all attributes together.
        TOO_MANY_BUCKETS: More than 512 buckets or quantiles.
        TOO_MANY_EXEMPLARS: More than 4,096 exemplars of a point.
        TIME_OUT_OF_RANGE: Over 14 days old, or over 10 minutes ahead.
    """

    MALFORMED = "malformed"
    NO_EXPERIMENT = "no_experiment"
    NOT_ALLOWED = "not_allowed"
    TOO_MANY_EXPERIMENTS = "too_many_experiments"
    SHARE_USED_UP = "share_used_up"
    INVALID_NAME = "invalid_name"
    INVALID_METRIC_NAME = "invalid_metric_name"
    INVALID_ID = "invalid_id"
    NO_VALUE = "no_value"
    INVALID_BUCKETS = "invalid_buckets"
    INVALID_EVENT = "invalid_event"
    EVENT_TOO_LARGE = "event_too_large"
    SPAN_TOO_LARGE = "span_too_large"
    TOO_MANY_ATTRIBUTES = "too_many_attributes"
    ATTRIBUTE_TOO_LONG = "attribute_too_long"
    TOO_MANY_BUCKETS = "too_many_buckets"
    TOO_MANY_EXEMPLARS = "too_many_exemplars"
    TIME_OUT_OF_RANGE = "time_out_of_range"


class Reload(StrEnum):
    """Outcome of reading tokens and certificates again.

    Attributes:
        OK: They are used from now on.
        FAILED: The former ones stay, see the log.
    """

    OK = "ok"
    FAILED = "failed"


class SampleDrop(StrEnum):
    """Reason to drop an accepted sample.

    Attributes:
        TOO_MANY_SERIES: Beyond ``rows.max_series``, or twice as many tracker keys.
        TOO_OLD: Older than the points that are remembered, four million a run.
        RUN_REMOVED: From before the run's removal (``journal.keep_ended``).
        TOO_MANY_CONFIG_KEYS: Beyond 4,096 hyper-parameters or 256 tags of a run.
        DAMAGED: Its batch was damaged on the disk and is set aside.
        UNDECODABLE: Its batch cannot be decoded and is set aside; a defect, see the log.
    """

    TOO_MANY_SERIES = "too_many_series"
    TOO_OLD = "too_old"
    RUN_REMOVED = "run_removed"
    TOO_MANY_CONFIG_KEYS = "too_many_config_keys"
    DAMAGED = "damaged"
    UNDECODABLE = "undecodable"


class ValueFold(StrEnum):
    """Reason to leave values of a row out of the tracker. They are in the journal.

    Attributes:
        WORKER: Series of single workers, beyond ``tracker.max_values_per_minute``.
        FURTHER: Beyond the basic detail, if that was not enough.
        TOO_MANY_KEYS: Beyond 100,000 keys in all runs.
        ATTRIBUTES: Series beyond 1,000 keys of a metric.
    """

    WORKER = "worker"
    FURTHER = "further"
    TOO_MANY_KEYS = "too_many_keys"
    ATTRIBUTES = "attributes"


class ArchiveDrop(StrEnum):
    """Reason to leave accepted values out of the archive. Their rows are not affected.

    Attributes:
        NO_ROOM: More than a tenth of ``journal.max_bytes`` waited, and more than 16 MiB.
        DAMAGED: Damaged on the journal's disk.
        RUN_REMOVED: The run was removed.
    """

    NO_ROOM = "no_room"
    DAMAGED = "damaged"
    RUN_REMOVED = "run_removed"


class StateFault(StrEnum):
    """Reason to discard the stored state of a run, with its open steps and samples.

    Attributes:
        DAMAGED: Changed on the disk: check it.
        REFUSED: Something else writes to the journal.
    """

    DAMAGED = "damaged"
    REFUSED = "refused"


class TrackerFailure(StrEnum):
    """Reason to retry a delivery. The rows are kept.

    Attributes:
        UNAVAILABLE: Unreachable, hanging, failing, or the writer died.
        REJECTED: It refuses key, project or run.
        JOURNAL: The database is unreachable.
        UNEXPECTED: A defect or failing disk, see the log.
    """

    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    JOURNAL = "journal"
    UNEXPECTED = "unexpected"


class CommitRefusal(StrEnum):
    """Reason to undo a transaction of rows. Its batches wait and are retried.

    Attributes:
        SHARE_USED_UP: The token's share is used up.
    """

    SHARE_USED_UP = "share_used_up"


class Removal(StrEnum):
    """Reason to remove an ended run from the journal. Its tracker has all rows.

    Attributes:
        TOO_OLD: Ended ``journal.keep_ended`` ago.
        OVER_SHARE: The oldest beyond half of ``journal.max_bytes``, or of a token's share.
    """

    TOO_OLD = "too_old"
    OVER_SHARE = "over_share"


class Where(StrEnum):
    """Place that caught an unexpected exception.

    Attributes:
        HTTP: HTTP requests; senders retry.
        GRPC: gRPC requests; senders retry.
        INBOX: Requests in files; they are read again.
        DRAIN: Making rows; they are made again.
        DELIVERY: Writing to trackers; rows are written again.
        WATCH: Diagnosis; this one is left out.
        SETTLE: Ended runs; they are unloaded or removed later.
        ARCHIVE: Archive; its files are written again.
        VIEW: Page with the runs; it asks again.
    """

    HTTP = "http"
    GRPC = "grpc"
    INBOX = "inbox"
    DRAIN = "drain"
    DELIVERY = "delivery"
    WATCH = "watch"
    SETTLE = "settle"
    ARCHIVE = "archive"
    VIEW = "view"


class Counter(StrEnum):
    """The bridge's counters. Each is its name, which begins with ``otel_rl.bridge.``.

    Attributes:
        description: One sentence for people.
        reasons: Its closed set of reasons, or None if it has none.
        unit: UCUM unit.
    """

    description: str
    reasons: type[StrEnum] | None
    unit: str

    def __new__(
        cls, name: str, unit: str, description: str, reasons: type[StrEnum] | None = None
    ) -> Self:
        """Make a counter of a line of the table."""
        counter = str.__new__(cls, _PREFIX + name)
        counter._value_ = _PREFIX + name
        counter.description, counter.reasons, counter.unit = description, reasons, unit
        return counter

    REQUESTS = "requests", "{request}", "Export requests answered, by outcome.", Outcome
    POINTS_ACCEPTED = "points.accepted", "{point}", "Data points acknowledged."
    POINTS_REFUSED = "points.refused", "{point}", "Data points refused by partial success.", Refusal
    EXEMPLARS_REFUSED = (
        "exemplars.refused",
        "{measurement}",
        "Measurements refused from accepted points.",
        Refusal,
    )
    SPANS_ACCEPTED = "spans.accepted", "{span}", "Spans acknowledged."
    SPANS_REFUSED = "spans.refused", "{span}", "Spans refused by partial success.", Refusal
    SPANS_TOO_OLD = "spans.too_old", "{span}", "Spans too late, or without room, for step analysis."
    LOGS_ACCEPTED = "logs.accepted", "{record}", "Log events acknowledged."
    LOGS_REFUSED = "logs.refused", "{record}", "Log events refused by partial success.", Refusal
    LOGS_IGNORED = "logs.ignored", "{record}", "Other log records, not kept."
    BATCHES_SPOOLED = "batches.spooled", "{batch}", "Batches stored and acknowledged."
    SAMPLES_TAKEN = "samples.taken", "{sample}", "Samples in rows, written or still open."
    SAMPLES_DUPLICATE = (
        "samples.duplicate",
        "{sample}",
        "Repeated samples, or totals older than the known one.",
    )
    SAMPLES_LATE = "samples.late", "{sample}", "Samples that came after their row."
    SAMPLES_DROPPED = "samples.dropped", "{sample}", "Accepted samples in no row.", SampleDrop
    ROWS_CREATED = "rows.created", "{row}", "Rows numbered and stored for delivery."
    ROWS_WRITTEN = "rows.written", "{row}", "Rows handed to the tracker, repeats included."
    ROWS_CONFIRMED = "rows.confirmed", "{row}", "Rows confirmed by the tracker."
    VALUES_FOLDED = (
        "values.folded",
        "{value}",
        "Values left out of the tracker as too many.",
        ValueFold,
    )
    ARCHIVE_WRITTEN = "archive.written", "{value}", "Values in files of the archive."
    ARCHIVE_DROPPED = (
        "archive.dropped",
        "{value}",
        "Accepted values left out of the archive.",
        ArchiveDrop,
    )
    TRACKER_RETRIES = "tracker.retries", "{retry}", "Retried deliveries.", TrackerFailure
    STATES_LOST = "states.lost", "{state}", "Unusable states, or parts of span logs.", StateFault
    COMMITS_REFUSED = (
        "commits.refused",
        "{transaction}",
        "Undone transactions of rows, retried.",
        CommitRefusal,
    )
    RUNS_REMOVED = "runs.removed", "{run}", "Ended runs removed from the journal.", Removal
    RELOADS = "reloads", "{reading}", "Readings of tokens and certificates on SIGHUP.", Reload
    EXCEPTIONS = "exceptions", "{exception}", "Unexpected exceptions, by place.", Where


class Gauge(StrEnum):
    """The bridge's gauges. Each is its name, which begins with ``otel_rl.bridge.``.

    Attributes:
        description: One sentence for people.
        unit: UCUM unit.
    """

    description: str
    unit: str

    def __new__(cls, name: str, unit: str, description: str) -> Self:
        """Make a gauge of a line of the table."""
        gauge = str.__new__(cls, _PREFIX + name)
        gauge._value_ = _PREFIX + name
        gauge.description, gauge.unit = description, unit
        return gauge

    JOURNAL_SIZE = "journal.size", "By", "Size of the journal, bounded by ``journal.max_bytes``."
    SPOOL_SIZE = "spool.size", "By", "Acknowledged batches not yet in rows, by experiment."
    ROWS_PENDING = "rows.pending", "{row}", "Rows not yet handed to the tracker, by experiment."


class Counters:
    """Counts since the process started. Any thread may call any method.

    Every pair of counter and reason exists from the start, so that 0 differs from "unknown". What
    concerns one run is counted for that run, too.
    """

    def __init__(self) -> None:
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], int] = {}
        self._of_runs: dict[ExperimentKey, dict[tuple[str, str], int]] = {}
        for counter in Counter:
            reasons = [str(reason) for reason in counter.reasons] if counter.reasons else [""]
            self._values.update(((str(counter), reason), 0) for reason in reasons)

    def add(
        self,
        counter: Counter,
        n: int = 1,
        *,
        reason: StrEnum | None = None,
        run: ExperimentKey | None = None,
    ) -> None:
        """Add ``n`` to the counter.

        Args:
            counter: The counter.
            n: Amount.
            reason: A member of the counter's own reasons; None for a counter without reasons.
            run: Run of the samples, points or rows, if it is known.

        Raises:
            KeyError: The counter has no such reason: a mistake in the calling code.
        """
        key = (str(counter), "" if reason is None else str(reason))
        with self._lock:
            self._values[key] += n
            if run is not None and n:
                of_run = self._of_runs.setdefault(run, {})
                of_run[key] = of_run.get(key, 0) + n

    def take_run(self, run: ExperimentKey) -> Mapping[tuple[str, str], int]:
        """Remove and return the counts of a run since the last call, by (name, reason)."""
        with self._lock:
            return self._of_runs.pop(run, {})

    def give_back_run(self, run: ExperimentKey, counts: Mapping[tuple[str, str], int]) -> None:
        """Restore counts from ``take_run`` that could not be stored."""
        with self._lock:
            of_run = self._of_runs.setdefault(run, {}) if counts else {}
            for name, n in counts.items():
                of_run[name] = of_run.get(name, 0) + n

    def value(self, counter: Counter, *, reason: StrEnum | None = None) -> int:
        """Return the count so far; without a reason, the total over all reasons."""
        with self._lock:
            if reason is not None:
                return self._values[str(counter), str(reason)]
            return sum(n for (name, _), n in self._values.items() if name == str(counter))

    def snapshot(self) -> Mapping[tuple[str, str], int]:
        """Copy all counts, by (name, reason), zeros included; "" where there is no reason."""
        with self._lock:
            return dict(self._values)
