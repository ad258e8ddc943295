"""The bridge's own counters: a closed set of names, each with a closed set of reasons.

Nothing is lost in silence: every drop adds to a counter, and ``COUNTERS`` describes each one. To
add a counter, add its name, give it a line in ``COUNTERS``, and if it has reasons, their enum.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from otel_rl.records import ExperimentKey

__all__ = [
    "COUNTERS",
    "GAUGES",
    "Counter",
    "CounterSpec",
    "Counters",
    "Gauge",
    "GaugeSpec",
    "Outcome",
    "Refusal",
    "SampleDrop",
    "StateFault",
    "TrackerFailure",
    "Where",
]


class Counter(StrEnum):
    """The name of every counter of the bridge."""

    REQUESTS = "otel_rl.bridge.requests"
    POINTS_ACCEPTED = "otel_rl.bridge.points.accepted"
    POINTS_REFUSED = "otel_rl.bridge.points.refused"
    EXEMPLARS_REFUSED = "otel_rl.bridge.exemplars.refused"
    SPANS_ACCEPTED = "otel_rl.bridge.spans.accepted"
    SPANS_REFUSED = "otel_rl.bridge.spans.refused"
    SPANS_TOO_OLD = "otel_rl.bridge.spans.too_old"
    LOGS_ACCEPTED = "otel_rl.bridge.logs.accepted"
    LOGS_REFUSED = "otel_rl.bridge.logs.refused"
    LOGS_IGNORED = "otel_rl.bridge.logs.ignored"
    BATCHES_SPOOLED = "otel_rl.bridge.batches.spooled"
    SAMPLES_TAKEN = "otel_rl.bridge.samples.taken"
    SAMPLES_DUPLICATE = "otel_rl.bridge.samples.duplicate"
    SAMPLES_LATE = "otel_rl.bridge.samples.late"
    SAMPLES_DROPPED = "otel_rl.bridge.samples.dropped"
    ROWS_CREATED = "otel_rl.bridge.rows.created"
    ROWS_WRITTEN = "otel_rl.bridge.rows.written"
    ROWS_CONFIRMED = "otel_rl.bridge.rows.confirmed"
    TRACKER_RETRIES = "otel_rl.bridge.tracker.retries"
    STATES_LOST = "otel_rl.bridge.states.lost"
    EXCEPTIONS = "otel_rl.bridge.exceptions"


class Gauge(StrEnum):
    """The name of every gauge of the bridge."""

    JOURNAL_SIZE = "otel_rl.bridge.journal.size"
    SPOOL_SIZE = "otel_rl.bridge.spool.size"
    ROWS_PENDING = "otel_rl.bridge.rows.pending"


class Outcome(StrEnum):
    """How one export request ended.

    Attributes:
        OK: Everything in it was taken.
        PARTIAL: Some of it was refused; the answer says what and why.
        MALFORMED: The bytes are not OTLP.
        HTTP2: A connection to the port for HTTP that begins as HTTP/2 does: a gRPC client at the
            wrong port.
        TOO_LARGE: Over ``receive.max_body_bytes``, ``receive.max_messages_per_request`` or
            ``receive.max_points_per_request``.
        UNAUTHENTICATED: Without a token that the bridge knows.
        UNSUPPORTED_MEDIA_TYPE: Neither protobuf nor JSON by its ``Content-Type``.
        WRONG_METHOD: Not a POST.
        NOT_FOUND: Another path than ``/v1/metrics``, ``/v1/traces`` and ``/v1/logs``.
        DISCONNECTED: The sender went away before the request was complete.
        CANCELLED: A gRPC call ended before its message was complete: its sender gave up, or gRPC
            itself refused a message over ``receive.max_body_bytes``, which it does unseen.
        SLOW: The body took longer than ``receive.body_timeout_s``, or others waited for the place
            of a gRPC call whose message had not come; the sender retries.
        OVERLOADED: Over ``receive.max_in_flight_bytes`` of requests at once, or too many gRPC calls
            without a place; the sender retries.
        TOO_MANY_CONNECTIONS: Over ``receive.max_connections``; the sender retries.
        NO_ROOM: The journal or its disk is full; the sender retries.
        STOPPING: The bridge is ending; the sender retries.
        FAILED: The bridge could not store it, and its log says why; the sender retries.
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
    """Why a point, exemplar, span or log record of a request was not taken with the rest.

    Attributes:
        MALFORMED: The bytes of one resource are no OTLP; what else came with them is taken.
        NO_EXPERIMENT: The resource lacks ``rl.experiment.name`` and there is no
            ``receive.default_experiment``.
        NOT_ALLOWED: The request's token may not write this experiment.
        TOO_MANY_EXPERIMENTS: The bridge has ``receive.max_experiments`` and this is another one.
        SHARE_USED_UP: The token has its share of ``receive.max_experiments`` and this is another
            one.
        INVALID_NAME: Experiment, trial or role, or a table, tag, group or key in an event, is no
            text, is empty, too long or unprintable, or is given twice.
        INVALID_METRIC_NAME: The metric's name is empty, too long or unprintable.
        INVALID_ID: A span's trace id or span id is missing, of the wrong length or all zero.
        NO_VALUE: The point of a gauge or sum has neither a number nor the flag that it has none.
        INVALID_BUCKETS: Histogram bounds do not ascend, do not fit the counts, or are no doubles.
        INVALID_EVENT: A log event lacks what it is for, or has it as another type or word.
        EVENT_TOO_LARGE: A log event, or a text in it, has too many bytes, or is nested too deep.
        SPAN_TOO_LARGE: A span has too many bytes or links, or its name or phase is too long.
        TOO_MANY_ATTRIBUTES: More attributes than the limit for a resource, a point, a span or an
            event, or more fields in a sample.
        ATTRIBUTE_TOO_LONG: An attribute's key or value is over its limit, or all together are.
        TOO_MANY_BUCKETS: Over ``receive.max_buckets``.
        TOO_MANY_EXEMPLARS: Over ``receive.max_exemplars`` in one point.
        TIME_OUT_OF_RANGE: Older than ``receive.max_age_s`` or ahead by ``receive.max_future_s``.
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


class SampleDrop(StrEnum):
    """Why an accepted sample cannot become part of a row.

    Attributes:
        TOO_MANY_SERIES: The experiment has ``align.max_series`` series or ``align.max_keys`` keys,
            and this would be another one.
        TOO_OLD: So old that nobody can tell any more whether it was taken, see
            ``align.max_remembered``.
        TOO_MANY_CONFIG_KEYS: Hyper-parameters and tags beyond 4,096 and 256 of a run.
        DAMAGED: A whole batch was damaged on the disk of the journal and set aside there.
        UNDECODABLE: A whole batch could not be read and was set aside in the journal: a defect of
            otel_rl, with a logged traceback.
    """

    TOO_MANY_SERIES = "too_many_series"
    TOO_OLD = "too_old"
    TOO_MANY_CONFIG_KEYS = "too_many_config_keys"
    DAMAGED = "damaged"
    UNDECODABLE = "undecodable"


class StateFault(StrEnum):
    """Why a run does not go on from what was kept of it: open steps and samples are forgotten.

    Attributes:
        DAMAGED: It is not as it was written. Check the disk.
        REFUSED: It is nothing that a bridge has written, or has a class that no state has: somebody
            else writes to the journal. Nothing of it was run.
    """

    DAMAGED = "damaged"
    REFUSED = "refused"


class TrackerFailure(StrEnum):
    """Why a delivery was tried again. The rows are kept.

    Attributes:
        UNAVAILABLE: The tracker is away, hangs, or answers with a failure that passes; or the
            writer process died.
        REJECTED: The tracker refuses the key, the project, or the run.
        JOURNAL: The rows could not be read: the bridge's database is away.
        UNEXPECTED: A defect of otel_rl or a failing disk, with a logged traceback.
    """

    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    JOURNAL = "journal"
    UNEXPECTED = "unexpected"


class Where(StrEnum):
    """The edge at which an unexpected exception was caught.

    Attributes:
        HTTP: While a request over HTTP was answered; its sender retries.
        GRPC: While a request over gRPC was answered; its sender retries.
        DRAIN: While rows were made; the batches are kept and read again.
        DELIVERY: While a run was written; the rows are kept and written again.
        WATCH: While a run was diagnosed; it goes on without.
    """

    HTTP = "http"
    GRPC = "grpc"
    DRAIN = "drain"
    DELIVERY = "delivery"
    WATCH = "watch"


@dataclass(frozen=True, slots=True)
class CounterSpec:
    """What a counter counts.

    Attributes:
        description: One sentence for people.
        reasons: Its closed set of reasons, or None if it has none.
        unit: UCUM unit.
    """

    description: str
    reasons: type[StrEnum] | None = None
    unit: str = "{sample}"


@dataclass(frozen=True, slots=True)
class GaugeSpec:
    """What a gauge shows.

    Attributes:
        description: One sentence for people.
        unit: UCUM unit.
    """

    description: str
    unit: str


GAUGES: Mapping[Gauge, GaugeSpec] = {
    Gauge.JOURNAL_SIZE: GaugeSpec("What the journal holds, of ``journal.max_bytes``.", "By"),
    Gauge.SPOOL_SIZE: GaugeSpec(
        "What is acknowledged and not yet made into rows, by experiment.", "By"
    ),
    Gauge.ROWS_PENDING: GaugeSpec(
        "Rows that wait to be handed to the tracker, by experiment: how far it lags.", "{row}"
    ),
}
"""Every gauge, described. The documentation is checked against it."""


COUNTERS: Mapping[Counter, CounterSpec] = {
    Counter.REQUESTS: CounterSpec(
        "Export requests answered, by how they ended.", Outcome, unit="{request}"
    ),
    Counter.POINTS_ACCEPTED: CounterSpec("Data points acknowledged to the sender.", unit="{point}"),
    Counter.POINTS_REFUSED: CounterSpec(
        "Data points refused by partial success; the sender was told why.", Refusal, unit="{point}"
    ),
    Counter.EXEMPLARS_REFUSED: CounterSpec(
        "Single measurements refused while the point that carried them was taken.",
        Refusal,
        unit="{measurement}",
    ),
    Counter.SPANS_ACCEPTED: CounterSpec("Spans acknowledged to the sender.", unit="{span}"),
    Counter.SPANS_REFUSED: CounterSpec(
        "Spans refused by partial success; the sender was told why.", Refusal, unit="{span}"
    ),
    Counter.SPANS_TOO_OLD: CounterSpec(
        "Spans that came too late to explain a step, or made room for newer ones.", unit="{span}"
    ),
    Counter.LOGS_ACCEPTED: CounterSpec(
        "Log records acknowledged to the sender that are events of otel_rl.", unit="{record}"
    ),
    Counter.LOGS_REFUSED: CounterSpec(
        "Log records refused by partial success; the sender was told why.",
        Refusal,
        unit="{record}",
    ),
    Counter.LOGS_IGNORED: CounterSpec(
        "Log records acknowledged and not kept, because they are no events of otel_rl.",
        unit="{record}",
    ),
    Counter.BATCHES_SPOOLED: CounterSpec(
        "Requests made durable before they were acknowledged.", unit="{batch}"
    ),
    Counter.SAMPLES_TAKEN: CounterSpec("Samples that stand in a row, or will; each counted once."),
    Counter.SAMPLES_DUPLICATE: CounterSpec(
        "Samples that came again, or were overtaken by a later total, and were left out."
    ),
    Counter.SAMPLES_LATE: CounterSpec(
        "Samples that came after their row and made one of their own."
    ),
    Counter.SAMPLES_DROPPED: CounterSpec(
        "Accepted samples that cannot become part of a row.", SampleDrop
    ),
    Counter.ROWS_CREATED: CounterSpec("Rows numbered and kept for delivery.", unit="{row}"),
    Counter.ROWS_WRITTEN: CounterSpec("Rows handed to a tracker, repeats included.", unit="{row}"),
    Counter.ROWS_CONFIRMED: CounterSpec("Rows that the tracker said it has.", unit="{row}"),
    Counter.TRACKER_RETRIES: CounterSpec(
        "Deliveries tried again because the tracker took no rows.", TrackerFailure, unit="{retry}"
    ),
    Counter.STATES_LOST: CounterSpec(
        "States of runs, and parts of their logs of spans, that could not be gone on from.",
        StateFault,
        unit="{state}",
    ),
    Counter.EXCEPTIONS: CounterSpec(
        "Unexpected exceptions, by the edge that caught them.", Where, unit="{exception}"
    ),
}
"""Every counter, described. The documentation is checked against it."""


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
        for counter, spec in COUNTERS.items():
            reasons = [str(reason) for reason in spec.reasons] if spec.reasons else [""]
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
            counter: Which one.
            n: How many.
            reason: A member of the counter's own reasons; None for a counter without reasons.
            run: Whose samples, points or rows they are, if it is known.

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
        """Take out what was counted for a run since the last call, by (name, reason)."""
        with self._lock:
            return self._of_runs.pop(run, {})

    def give_back_run(self, run: ExperimentKey, counts: Mapping[tuple[str, str], int]) -> None:
        """What ``take_run`` gave was not kept: it is given again."""
        with self._lock:
            of_run = self._of_runs.setdefault(run, {}) if counts else {}
            for name, n in counts.items():
                of_run[name] = of_run.get(name, 0) + n

    def value(self, counter: Counter, *, reason: StrEnum | None = None) -> int:
        """The count so far; without a reason, the total over all reasons."""
        with self._lock:
            if reason is not None:
                return self._values[str(counter), str(reason)]
            return sum(n for (name, _), n in self._values.items() if name == str(counter))

    def snapshot(self) -> Mapping[tuple[str, str], int]:
        """A copy of all counts, by (name, reason), zeros included; "" where there is no reason."""
        with self._lock:
            return dict(self._values)
