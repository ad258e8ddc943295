"""The bridge's own counters: a closed set of names, each with a closed set of reasons.

Every drop adds to a counter. To add a counter, add its line in ``Counter``, and if it has reasons,
their enum. The documentation and the bridge's metrics are made of these lines.
"""

import bisect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from otel_rl.records import ExperimentKey

_PREFIX: Final = "otel_rl.bridge."


class Outcome(StrEnum):
    """Outcome of an export request. Senders retry after the last six.

    Attributes:
        OK: The request was accepted.
        PARTIAL: A part was refused, and the answer says why. Look its reason up under Refusal.
        MALFORMED: The request is not OTLP. Look for a proxy, a wrong port or a broken sender.
        HTTP2: A sender speaks HTTP/2 on the HTTP port. Give it the gRPC port, or ``http/protobuf``.
        TOO_LARGE: The request is over ``receive.max_body_bytes``, or has too many points or
            messages. Let the sender make smaller batches.
        UNAUTHENTICATED: The request has no valid token, and its sender drops the data. The log
            names its address.
        UNSUPPORTED_MEDIA_TYPE: The body is neither protobuf nor JSON. Set
            ``OTEL_EXPORTER_OTLP_PROTOCOL``.
        WRONG_METHOD: The request is not a POST. A browser or a health check asks the wrong path.
        NOT_FOUND: The path is unknown. OTLP is at ``/v1/metrics``, ``/v1/traces`` and ``/v1/logs``.
        DISCONNECTED: The sender left before its answer. It retries if it still lives.
        CANCELLED: A gRPC call had no message, or one over ``receive.max_body_bytes``.
        SLOW: The body took over ten seconds, or was too slow while other gRPC calls waited. Check
            the network.
        OVERLOADED: Requests hold 16 times ``receive.max_body_bytes``, or too many wait. Send less,
            or put a gateway in front.
        TOO_MANY_CONNECTIONS: There are more than ``receive.max_connections``. Put a gateway in
            front, or raise the setting.
        NO_ROOM: The journal or the disk is full. Make room, or raise ``journal.max_bytes``.
        STOPPING: The bridge stops. Senders come again after its restart.
        FAILED: The request could not be stored; the log has the reason.
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
        MALFORMED: The resource of these items is not OTLP. Fix the sender.
        NO_EXPERIMENT: The resource has no ``rl.experiment.name``, and
            ``receive.default_experiment`` is not set. Set one of the two.
        NOT_ALLOWED: The token may not write this experiment. Add the experiment to the token's
            ``experiments``.
        WRONG_TEAM: The resource attribute ``otel_rl.team`` is not the team of the token, or a
            gateway's resource has none that the bridge knows. Let the gateway write it, and set
            ``gateway = true`` for the gateway's token.
        TOO_MANY_EXPERIMENTS: 1,000 experiments are in use. Look for a sender that makes a name for
            each process or step.
        SHARE_USED_UP: The token's share of the experiments is used up. Raise its ``share``, or look
            as above.
        INVALID_NAME: A name or tag is no text, empty, too long, unprintable or repeated.
        INVALID_METRIC_NAME: The name of the metric is empty, too long or unprintable.
        INVALID_ID: A trace or span id is missing, zero or of the wrong length.
        NO_VALUE: The point has neither a number nor the flag that says that it has none.
        INVALID_BUCKETS: The bounds of the histogram do not ascend, or do not fit its counts.
        INVALID_EVENT: A field of the event is missing or of the wrong type; the answer names it.
        EVENT_TOO_LARGE: The event has too many bytes, or its values are nested too deeply.
        SPAN_TOO_LARGE: The span has too many bytes or links, or a long name or phase.
        TOO_MANY_ATTRIBUTES: The item has too many attributes, or the text sample too many fields.
        ATTRIBUTE_TOO_LONG: A key, a value, or all attributes together are too long.
        TOO_MANY_BUCKETS: The histogram or summary has more than 512 buckets or quantiles.
        TOO_MANY_EXEMPLARS: The point has more than 4,096 exemplars. Let the sender export more
            often.
        TIME_OUT_OF_RANGE: The time is over 14 days ago, or over 10 minutes ahead. Correct the
            sender's clock.
    """

    MALFORMED = "malformed"
    NO_EXPERIMENT = "no_experiment"
    NOT_ALLOWED = "not_allowed"
    WRONG_TEAM = "wrong_team"
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


class Notification(StrEnum):
    """What became of news for ``notify.url``.

    Attributes:
        SENT: Its receiver has taken the message.
        REPEATED: The same news was sent less than ``notify.every`` ago.
        REFUSED: The receiver answers with an error of the sender, such as 404. The log says which.
        DROPPED: The receiver was away for ten minutes, or for the end of the bridge, or too much
            news waited for it.
    """

    SENT = "sent"
    REPEATED = "repeated"
    REFUSED = "refused"
    DROPPED = "dropped"


class Reload(StrEnum):
    """Outcome of reading tokens and certificates again.

    Attributes:
        OK: The files are used from now on.
        FAILED: A file cannot be used, so the former ones stay in use. The log says which file and
            why. The files are read again when they change, and every half a minute.
    """

    OK = "ok"
    FAILED = "failed"


class SampleDrop(StrEnum):
    """Reason to drop an accepted sample.

    Attributes:
        TOO_MANY_SERIES: The run has more than ``rows.max_series``, or twice as many tracker keys.
            Look for an id in an attribute or a name.
        TOO_OLD: The point is older than the four million that a run remembers, so it may be a
            repeat. Let the sender deliver sooner.
        RUN_REMOVED: The point is from before the removal of its run. Raise ``journal.keep_ended``.
        TOO_MANY_CONFIG_KEYS: The run has more than 4,096 hyper-parameters or 256 tags. Log fewer.
        DAMAGED: The batch was damaged on the disk and is set aside. Check the disk.
        UNDECODABLE: The batch cannot be decoded and is set aside. This is a defect: report it with
            the log.
        TOO_MANY_IN_FLIGHT: A run had 4,096 rollouts in flight: the page shows further ones when
            they have ended.
        OLD_ROLLOUT: A run had 256 MiB of finished rollouts, compressed: the page lacks its oldest.
    """

    TOO_MANY_SERIES = "too_many_series"
    TOO_OLD = "too_old"
    RUN_REMOVED = "run_removed"
    TOO_MANY_CONFIG_KEYS = "too_many_config_keys"
    DAMAGED = "damaged"
    UNDECODABLE = "undecodable"
    TOO_MANY_IN_FLIGHT = "too_many_in_flight"
    OLD_ROLLOUT = "old_rollout"


class ValueFold(StrEnum):
    """Reason to leave values of a row out of the tracker. They are in the journal.

    Attributes:
        ATTRIBUTES: Series beyond 1,000 keys of a metric. Look for an id in an attribute.
        ROLLOUTS: Samples with an id beyond 256 of a table. The page has them.
    """

    ATTRIBUTES = "attributes"
    ROLLOUTS = "rollouts"


class ArchiveDrop(StrEnum):
    """Reason to leave accepted values out of the archive. Their rows are not affected.

    Attributes:
        NO_ROOM: More than a tenth of ``journal.max_bytes``, and more than 16 MiB, waited. Check the
            directory of the archive.
        DAMAGED: The values were damaged on the journal's disk. Check it.
        RUN_REMOVED: The run was removed before its values were in a file.
    """

    NO_ROOM = "no_room"
    DAMAGED = "damaged"
    RUN_REMOVED = "run_removed"


class StateFault(StrEnum):
    """Reason to discard the stored state of a run, with its open steps and samples.

    Attributes:
        DAMAGED: The state was changed on the disk. Check the disk.
        REFUSED: The state has a form that no bridge writes. Find what else writes to the journal.
    """

    DAMAGED = "damaged"
    REFUSED = "refused"


class TrackerFailure(StrEnum):
    """Reason to retry a delivery. The rows are kept.

    Attributes:
        UNAVAILABLE: The tracker is unreachable, hangs or fails, or its writer died. Wait, or check
            the network.
        REJECTED: The tracker refuses the key, the project or the run. ``otel-rl doctor`` prints its
            reason.
        JOURNAL: The database is unreachable. Check the server of ``journal.url``.
        UNEXPECTED: A defect or a failing disk; the log has more.
    """

    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    JOURNAL = "journal"
    UNEXPECTED = "unexpected"


class Removal(StrEnum):
    """Reason to remove an ended run from the journal. Its tracker has all rows.

    Attributes:
        TOO_OLD: The run ended ``journal.keep_ended`` ago.
        OVER_SHARE: Ended runs took more than half of ``journal.max_bytes``, or of a token's share:
            the oldest went.
    """

    TOO_OLD = "too_old"
    OVER_SHARE = "over_share"


class Where(StrEnum):
    """Place that caught an unexpected exception. Each is a defect: report it with the log.

    Attributes:
        HTTP: An HTTP request; the sender retries.
        GRPC: A gRPC request; the sender retries.
        INBOX: Requests in files; they are read again.
        DRAIN: The making of rows; they are made again.
        DELIVERY: The writing to a tracker; the rows are written again.
        WATCH: A diagnosis; this one is left out.
        SETTLE: The removal of ended runs; it is done later.
        ARCHIVE: The archive; its files are written again.
        VIEW: The page; it asks again.
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
        reasons: Closed set of the counter's reasons; None if it has none.
        unit: UCUM unit.
    """

    description: str
    reasons: type[StrEnum] | None
    unit: str

    def __new__(
        cls, name: str, unit: str, description: str, reasons: type[StrEnum] | None = None
    ) -> Self:
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
    RUNS_REMOVED = "runs.removed", "{run}", "Ended runs removed from the journal.", Removal
    RELOADS = "reloads", "{reading}", "Further readings of tokens and certificates.", Reload
    NOTIFICATIONS = "notifications", "{message}", "News for notify.url, by result.", Notification
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
        gauge = str.__new__(cls, _PREFIX + name)
        gauge._value_ = _PREFIX + name
        gauge.description, gauge.unit = description, unit
        return gauge

    JOURNAL_SIZE = "journal.size", "By", "Size of the journal, bounded by ``journal.max_bytes``."
    SPOOL_SIZE = "spool.size", "By", "Acknowledged batches not yet in rows, by experiment."
    RELOAD_FAILED = (
        "reload.failed",
        "{reading}",
        "1 while a changed file of tokens or certificates cannot be used, else 0.",
    )
    ROWS_PENDING = "rows.pending", "{row}", "Rows not yet handed to the tracker, by experiment."


class Delay(StrEnum):
    """The bridge's histograms, in seconds. Each is its name, which begins with ``otel_rl.bridge.``.

    Attributes:
        description: One sentence for people.
    """

    description: str

    def __new__(cls, name: str, description: str) -> Self:
        delay = str.__new__(cls, _PREFIX + name)
        delay._value_ = _PREFIX + name
        delay.description = description
        return delay

    ROW = "row.delay", "Time from the last request for a row until the row is stored, by team."
    TRACKER = "tracker.delay", "Time from a stored row until a tracker is handed it, by team."


DELAY_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""Upper bounds of the buckets of a ``Delay``, in seconds; one more bucket has all beyond."""


@dataclass(slots=True)
class Delays:
    """Delays that have the same attributes.

    Attributes:
        counts: Number of delays in each bucket.
        total_s: Sum of the delays, in seconds.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(DELAY_BOUNDS_S) + 1))
    total_s: float = 0.0


class Counters:
    """Counts since the process started. Any thread may call any method.

    Every pair of counter and reason exists from the start, so that 0 differs from "unknown". Counts
    that belong to one run are also counted for that run.

    Attributes:
        on_delay: Called for each delay with its seconds and attributes, by the thread that adds the
            delay.
    """

    def __init__(self) -> None:
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], int] = {}
        self._of_runs: dict[ExperimentKey, dict[tuple[str, str], int]] = {}
        self._delays: dict[tuple[Delay, tuple[tuple[str, str], ...]], Delays] = {}
        self.on_delay: Callable[[Delay, float, Mapping[str, str]], None] | None = None
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
            reason: A member of the counter's own reasons; None for a counter without reasons.
            run: Run of the counted samples, points or rows, if it is known.

        Raises:
            KeyError: The counter has no such reason: the calling code is wrong.
        """
        key = (str(counter), "" if reason is None else str(reason))
        with self._lock:
            self._values[key] += n
            if run is not None and n:
                of_run = self._of_runs.setdefault(run, {})
                of_run[key] = of_run.get(key, 0) + n

    def delayed(self, delay: Delay, seconds: Iterable[float], **attributes: str) -> None:
        """Add one delay for each of ``seconds``; one below 0, from a clock set back, counts as 0.

        Args:
            attributes: Attributes with a bounded number of values, such as the team. Empty ones are
                left out.
        """
        named = {name: value for name, value in attributes.items() if value}
        key = delay, tuple(named.items())
        with self._lock:
            of = self._delays.setdefault(key, Delays())
            for one_s in (found := [max(0.0, one_s) for one_s in seconds]):
                of.counts[bisect.bisect_left(DELAY_BOUNDS_S, one_s)] += 1
                of.total_s += one_s
        if (on_delay := self.on_delay) is not None:
            for one_s in found:
                on_delay(delay, one_s, named)

    def delays(self, delay: Delay) -> Sequence[tuple[Mapping[str, str], Delays]]:
        """Copy the delays so far, with their attributes."""
        with self._lock:
            return [
                (dict(attributes), Delays([*of.counts], of.total_s))
                for (kind, attributes), of in self._delays.items()
                if kind is delay
            ]

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
