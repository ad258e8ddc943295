"""Gauges that keep every measurement, from the call to the points of an export.

    gauge.set, otel_rl.log ----> Buffer                  training threads: an append
    export --------------------> GaugeEncoder ----> points with an exemplar for each measurement

The exporter thread makes the checks that can wait. A measurement is an exemplar of its series'
point (ADR 0000), written as bytes: building it from protobuf's objects takes three times as long, a
third of what the SDK needs.
"""

import struct
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic, sleep, time_ns
from typing import Final, NamedTuple, TypeAlias

from opentelemetry.context import Context, get_current
from opentelemetry.metrics import _Gauge
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    DataPointFlags,
    Exemplar,
    Gauge,
    Metric,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import get_current_span
from opentelemetry.util.types import AnyValue, Attributes

from otel_rl.semconv.names import OTEL_RL_WORKER_HEARTBEAT, RL_LOOP_ITERATION, RL_REDUCE
from otel_rl.semconv.spec import Reduction
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.anyvalue import attributes as encoded_attributes
from otel_rl.worker.otlp.anyvalue import clean, key_value
from otel_rl.worker.otlp.requests import (
    Intervals,
    RequestPacker,
    encode_scope,
    pack_metric,
    serialized,
)
from otel_rl.worker.step_context import OPEN, scope_in
from otel_rl.worker.tensors import (
    PLAIN,
    Deferred,
    NotANumber,
    as_step,
    hold,
    keep_for_ever,
    number,
)

CAPACITY: Final = 1 << 17
"""Entries. A full buffer takes 24 MB, and 48 MB if the measurements have attributes besides the
step: the most that a training process should spare. At 10,000 measurements per second it holds 13 s
without an export; the exporter normally empties it every second.
"""

SCOPE_NAME: Final = "otel_rl"
"""Scope of ``otel_rl.log`` and of otel_rl's own metrics."""

MAX_NAME_LENGTH: Final = 255
"""Limit of the OpenTelemetry specification for instrument names."""

BUFFER_FULL: Final = (
    "More measurements were made between two exports than the buffer holds; the newest are "
    "dropped. Record less often, or shorten the export interval."
)

_MAX_EXEMPLARS: Final = 1024
"""Of a point: keeps it under 100 KB, so that metrics can be split between points."""

_MAX_CACHED_STREAMS: Final = 10_000
"""Bounds the cache against names that contain an id or a step."""

_DEVICE_WAIT_S: Final = 0.1
"""Time that an export waits for devices: a healthy one is so far behind the program. What it has
not computed by then is in the next export."""

_DEVICE_POLL_S: Final = 0.002

_SCALARS: Final = frozenset({str, bool, int, float})
"""Types of attributes whose encoding is equal if the values and their types are equal."""


class Stream:
    """A gauge in OTLP. Streams are equal by identity: the provider makes each once."""

    __slots__ = ("description", "name", "scope", "unit")

    def __init__(
        self, scope: InstrumentationScope, name: str, unit: str = "", description: str = ""
    ) -> None:
        self.scope = encode_scope(scope)
        self.name = clean(name)
        self.unit = clean(unit)
        self.description = clean(description)

    def metric(self) -> Metric:
        return Metric(name=self.name, description=self.description, unit=self.unit, gauge=Gauge())


Measured = tuple[Stream, object, dict[str, AnyValue] | int | None, int, Context]
"""One measurement of a gauge: (stream, value, step or attributes, time in ns, context).

A bare tuple: a named one would double the cost of ``gauge.set``. The value is a plain number or a
result of ``tensors.hold``. A plain integer step without other attributes stands alone; otherwise it
is among the attributes, which are a private copy.
"""


class Logged(NamedTuple):
    """One call of ``otel_rl.log``, as recorded.

    Attributes:
        values: A private copy of the metrics by name.
        step: The step as given, unchecked.
        reduce: The reduction as given, unchecked.
        time_ns: Time of the call.
        context: The caller's OpenTelemetry context.
        scope: Name of the instrumentation scope; empty for otel_rl's own.
    """

    values: dict[str, object]
    step: object
    reduce: object
    time_ns: int
    context: Context
    scope: str = ""


Entry = Measured | Logged


class Buffer:
    """Bounded queue. Any thread puts and takes; it has no lock, so that fork() cannot break it.

    ``append`` and ``__len__`` of a deque are atomic. Writers check the length first, so that a full
    buffer drops the newest entry; threads that check at the same moment may each add one entry over
    the capacity.

    Attributes:
        entries: Queue to which writers append after comparing its length with ``capacity``.
        capacity: Largest number of entries.
        unready_since_ns: Time of the oldest entry that the last reader put back because a device
            has yet to compute it; None for none.
    """

    __slots__ = ("capacity", "entries", "unready_since_ns")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.entries: deque[Entry] = deque()
        self.capacity = capacity
        self.unready_since_ns: int | None = None

    def take_all(self) -> Iterator[Entry]:
        """Return all entries put before the call, in order. They are taken during iteration."""
        for _ in range(len(self.entries)):
            try:
                yield self.entries.popleft()
            except IndexError:  # at the end of a process two threads may run this
                return

    def put_back(self, unready: Sequence[Entry]) -> None:
        """Return taken entries that wait for a device; the next reader takes them first."""
        self.unready_since_ns = min((entry[3] for entry in unready), default=None)
        self.entries.extendleft(reversed(unready))

    def abandon(self) -> int:
        """Clear the buffer. Returns the number of measurements in it."""
        self.unready_since_ns = None
        return sum(
            len(entry.values) if isinstance(entry, Logged) else 1 for entry in self.take_all()
        )

    def clear(self) -> None:
        self.unready_since_ns = None
        self.entries.clear()

    def forget(self) -> None:
        """Clear the buffer in a forked child: the parent sends the entries.

        Copies of tensors are kept for ever.
        """
        keep_for_ever([entry for entry in self.entries if _is_on_device(entry)])
        self.clear()


def _is_on_device(entry: Entry) -> bool:
    values = entry.values.values() if isinstance(entry, Logged) else (entry[1],)
    return any(isinstance(value, Deferred) for value in values)


class BufferedGauge(_Gauge):
    """Synchronous gauge that keeps every measurement. ``set`` never raises and never waits."""

    def __init__(self, stream: Stream, buffer: Buffer, guard: Guard) -> None:
        self._stream = stream
        self._entries = buffer.entries
        self._capacity = buffer.capacity
        self._guard = guard

    def set(
        self,
        amount: float,
        attributes: Attributes = None,
        context: Context | None = None,
    ) -> None:
        """Record ``amount`` now. The attributes are copied, so the caller may reuse the dict."""
        held = amount if type(amount) in PLAIN else hold(amount)
        try:
            if len(self._entries) < self._capacity:
                kept: dict[str, AnyValue] | int | None = None
                if attributes:
                    step = attributes.get(RL_LOOP_ITERATION)
                    # The common case is the step alone; a dict each would be half of the buffer.
                    kept = step if len(attributes) == 1 and type(step) is int else {**attributes}
                self._entries.append(
                    (self._stream, held, kept, time_ns(), context or get_current())
                )
            else:
                self._guard.drop(DropReason.BUFFER_FULL, BUFFER_FULL)
        except (TypeError, AttributeError):
            self._guard.drop(
                DropReason.BAD_ATTRIBUTES,
                f"{self._stream.name}: attributes must be a mapping with text keys "
                f"(got {type(attributes).__name__}). The measurement is dropped.",
            )
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            self._guard.caught(error)


def without_step(attributes: Attributes) -> Attributes:
    """Return the attributes without the step, which would make a new series every step."""
    if not attributes or RL_LOOP_ITERATION not in attributes:
        return attributes
    return {key: value for key, value in attributes.items() if key != RL_LOOP_ITERATION}


_Place: TypeAlias = tuple[str | None, str]
"""(reduction, scope) of a call of ``otel_rl.log``."""

_Series: TypeAlias = defaultdict[Stream, defaultdict[bytes, list[bytes]]]
"""Exemplars by stream and attributes, which are encoded as a point that has nothing else."""


class GaugeEncoder:
    """Makes points from entries, and counts bad entries. One thread uses it."""

    def __init__(
        self, guard: Guard, intervals: Intervals, max_exemplars: int = _MAX_EXEMPLARS
    ) -> None:
        self._guard = guard
        self._intervals = intervals
        self._max_exemplars = max_exemplars
        self._streams: dict[_Place, dict[str, Stream]] = {}
        self._until_s = 0.0  # when to wait no longer for devices, in the present export

    def pack(self, entries: Iterable[Entry], packer: RequestPacker) -> list[Entry]:
        """Encode entries; a bad entry loses only itself. Returns entries that wait for a device."""
        self._until_s = monotonic() + _DEVICE_WAIT_S
        frame = _Frame()
        series: _Series = defaultdict(lambda: defaultdict(list))
        known: dict[object, bytes] = {}
        unready: list[Entry] = []
        for entry in entries:
            try:
                if isinstance(entry, Logged):
                    self._add_row(entry, frame, series, unready)
                    continue
                stream, value, kept, time_ns, context = entry
                if type(value) is not float and self._is_late(value):
                    unready.append(entry)
                    continue
                attributes = b""
                step: object = kept
                if isinstance(kept, dict):
                    step = kept.pop(RL_LOOP_ITERATION, None)
                    attributes = _encoded(kept, known)
                before = frame.before(step, context, time_ns)
                if type(value) is float:
                    exemplar = before + _DOUBLE(0x11, time_ns, 0x19, value)
                    series[stream][attributes].append(exemplar)
                else:
                    self._add(series[stream][attributes], stream.name, before, time_ns, value)
            except _Bad as bad:
                self._guard.drop(bad.reason, f"{stream.name}: {bad}. It is dropped.")
            except Exception as error:  # noqa: BLE001  # the exporter thread must survive
                self._guard.caught(error)
        lost = 0
        for stream in (*series,):  # exemplars are freed as soon as they are encoded
            of_stream = series.pop(stream)
            count = sum(map(len, of_stream.values()))
            if not count:
                continue  # none of its values was a number
            metric = self._metric(stream, of_stream)
            lost += pack_metric(packer, stream.scope.head, metric, count)
        if lost:
            self._guard.drop(
                DropReason.TOO_LARGE,
                "Points larger than a request may be are dropped. Shorten their attributes.",
                lost,
            )
        return unready

    def _add(
        self, exemplars: list[bytes], name: str, before: bytes, time_ns: int, value: object
    ) -> None:
        plain = value if type(value) is float else number(value)
        if isinstance(plain, NotANumber):
            self._guard.not_a_number(name, plain.description)
        elif isinstance(plain, int):
            exemplars.append(before + _INT(0x11, time_ns, 0x31, plain))
        else:
            exemplars.append(before + _DOUBLE(0x11, time_ns, 0x19, plain))

    def _add_row(self, row: Logged, frame: "_Frame", series: _Series, unready: list[Entry]) -> None:
        try:
            place = None if row.reduce is None else _checked_reduction(row.reduce), row.scope
            before = frame.before(row.step, row.context, row.time_ns)
        except _Bad as bad:
            text = f"otel_rl.log: {bad}. The metrics of the call are dropped."
            self._guard.drop(bad.reason, text, len(row.values))
            return
        streams = self._streams.setdefault(place, {})
        late: dict[str, object] = {}
        for name, value in row.values.items():
            try:
                if type(value) is not float and self._is_late(value):
                    late[name] = value
                    continue
                stream = streams[name] if name in streams else self._new_stream(name, place)
                self._add(series[stream][b""], name, before, row.time_ns, value)
            except _Bad as bad:
                self._guard.drop(bad.reason, f"otel_rl.log: {bad}. It is dropped.")
            except Exception as error:  # noqa: BLE001  # the other values are kept
                self._guard.caught(error)
        if late:
            unready.append(row._replace(values=late))

    def _is_late(self, value: object) -> bool:
        """Return whether a device has yet to compute a value, after a short wait for it."""
        if not isinstance(value, Deferred):
            return False
        try:
            while not value.is_ready:
                if monotonic() >= self._until_s:
                    return True
                sleep(_DEVICE_POLL_S)
        except Exception:  # noqa: BLE001  # of a failed device: to read it fails, and is counted
            return False
        return False

    def _new_stream(self, name: object, place: _Place) -> Stream:
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_LENGTH:
            raise _Bad(
                DropReason.BAD_NAME,
                f"a metric's name must be text of 1 to {MAX_NAME_LENGTH} characters "
                f"(got {str(name)[:80]!r})",
            )
        streams, (reduce, scope_name) = self._streams[place], place
        if len(streams) >= _MAX_CACHED_STREAMS:
            streams.clear()
        attributes = {RL_REDUCE: reduce} if reduce else None
        scope = InstrumentationScope(scope_name or SCOPE_NAME, __version__, None, attributes)
        stream = streams[name] = Stream(scope, name)
        return stream

    def _metric(self, stream: Stream, series: Mapping[bytes, list[bytes]]) -> Metric:
        metric = stream.metric()
        for attributes, exemplars in series.items():
            for first in range(0, len(exemplars), self._max_exemplars):
                point = metric.gauge.data_points.add()
                some = exemplars[first : first + self._max_exemplars]
                point.MergeFromString(b"".join((attributes, *some)))
                last = point.exemplars[-1]  # a point repeats its last measurement
                times_ns = self._intervals.following(
                    (stream.scope.identity, stream.name, attributes), last.time_unix_nano
                )
                point.start_time_unix_nano, point.time_unix_nano = times_ns
                if last.HasField("as_int"):
                    point.as_int = last.as_int
                else:
                    point.as_double = last.as_double
        return metric


class _Bad(Exception):
    """Recorded entry that cannot be sent; the text gives the reason, without a full stop."""

    def __init__(self, reason: DropReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


# Exemplar { time_unix_nano = 2, as_double = 3, as_int = 6 }
_DOUBLE: Final = struct.Struct("<BQBd").pack
_INT: Final = struct.Struct("<BQBq").pack
_MEASURED_BYTES: Final = 18


class _Frame:
    """Encodes exemplars up to time and value: most share the step and span of the last one."""

    def __init__(self) -> None:
        self._numbered = Exemplar(filtered_attributes=[key_value(RL_LOOP_ITERATION, 0)])
        self._number = self._numbered.filtered_attributes[0].value
        self._step: object = None
        self._context: Context | None = None
        self._until_ns = OPEN
        self._before = self._encoded(None, None)

    def before(self, step: object, context: Context, time_ns: int) -> bytes:
        """Return the bytes before the time and the value of a measurement.

        Without a ``step``, it is the step that the context was in at that time.

        Raises:
            _Bad: The step is not a 64-bit integer.
        """
        is_same = step is self._step or (type(step) is int and step == self._step)
        if not is_same or context is not self._context or time_ns > self._until_ns:
            scope = scope_in(context) if step is None else None
            found = step if scope is None else scope.number_at(time_ns)
            self._before = self._encoded(found, context)
            self._step, self._context = step, context
            self._until_ns = OPEN
            if scope is not None:  # after its end another step counts, and again at an earlier time
                self._until_ns = scope.ended_ns if time_ns <= scope.ended_ns else -1
        return self._before

    def _encoded(self, step: object, context: Context | None) -> bytes:
        around = b""
        if step is not None:
            number = as_step(step)
            if number is None:
                raise _Bad(
                    DropReason.BAD_STEP,
                    f"the step must be an integer of 64 bits (got {str(step)[:80]!r})",
                )
            self._number.int_value = number
            around = self._numbered.SerializeToString()
        span = get_current_span(context).get_span_context() if context else None
        if span is not None and span.is_valid:
            around += Exemplar(
                span_id=span.span_id.to_bytes(8), trace_id=span.trace_id.to_bytes(16)
            ).SerializeToString()
        # NumberDataPoint { exemplars = 5 }; the length, of at most 90, is one byte.
        return bytes((0x2A, len(around) + _MEASURED_BYTES)) + around


def _encoded(attributes: Mapping[str, AnyValue], known: dict[object, bytes]) -> bytes:
    """Encode the attributes of a series, or find those that were encoded before."""
    types = (*map(type, attributes.values()),)
    if not _SCALARS.issuperset(types):
        return serialized(encoded_attributes(attributes))
    # 1, 1.0 and True are equal in Python but not in OTLP.
    place = (*attributes.items(), types)
    found = known.get(place)
    if found is None:
        found = known[place] = serialized(encoded_attributes(attributes))
    return found


def _checked_reduction(reduce: object) -> str:
    try:
        return Reduction(str(reduce)).value
    except ValueError:
        words = ", ".join(Reduction)
        raise _Bad(
            DropReason.BAD_REDUCE, f"reduce must be one of {words} (got {str(reduce)[:80]!r})"
        ) from None


_HEARTBEAT: Final = Stream(
    InstrumentationScope(SCOPE_NAME, __version__), OTEL_RL_WORKER_HEARTBEAT, "1"
)


def pack_heartbeat(packer: RequestPacker, time_ns: int) -> None:
    """Add a metric without measurements that only renews the lease of its sender.

    The metric's point is marked as having no value: a collector would drop a request without any
    point.
    """
    metric = _HEARTBEAT.metric()
    flags = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
    metric.gauge.data_points.add(time_unix_nano=time_ns, flags=flags)
    packer.add(_HEARTBEAT.scope.head, metric.SerializeToString(), 0)
