"""Converts recorded entries to input of the encoder, with the checks that can wait.

Runs on the exporter thread, so that the training thread pays for an append only.
"""

from collections.abc import Iterable
from time import monotonic, sleep
from typing import Final, TypeAlias

from opentelemetry.context import Context
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl.semconv.names import RL_LOOP_ITERATION, RL_REDUCE
from otel_rl.semconv.spec import Reduction
from otel_rl.version import __version__
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.metrics.buffer import Entry, Logged
from otel_rl.worker.otlp.exemplars import (
    AS_DOUBLE,
    LOWEST_DIGIT,
    AlikeRows,
    BadStep,
    Framing,
    pack,
)
from otel_rl.worker.otlp.gauges import MAX_EXEMPLARS_PER_POINT, Encoder, Stream
from otel_rl.worker.otlp.intervals import Intervals
from otel_rl.worker.otlp.request_packer import RequestPacker
from otel_rl.worker.step_context import OPEN, scope_in
from otel_rl.worker.tensors import Deferred, NotANumber, number

__all__ = ["MAX_NAME_LENGTH", "SCOPE_NAME", "Expander"]

SCOPE_NAME: Final = "otel_rl"
"""Scope of ``otel_rl.log`` and of otel_rl's own metrics."""

MAX_NAME_LENGTH: Final = 255
"""Limit of the OpenTelemetry specification for instrument names."""

_MAX_CACHED_STREAMS: Final = 10_000
"""Bounds the cache against names that contain an id or a step."""

_DEVICE_WAIT_S: Final = 0.1
"""Time that an export waits for devices: a healthy one is so far behind the program. What it has
not computed by then is in the next export."""

_DEVICE_POLL_S: Final = 0.002


_FLOAT: Final = frozenset({float})

_Place: TypeAlias = tuple[str | None, str]
"""(reduction, scope)."""

_Shape: TypeAlias = tuple[_Place, tuple[str, ...], int, bytes]
"""(place, names, length of the bytes before a measurement, bytes after it) of a row of floats."""


class Expander:
    """Converts entries to gauges. One thread.

    Args:
        guard: Counts bad entries.
        intervals: Of all exports of the process.
        max_exemplars: See ``Encoder``.
    """

    def __init__(
        self,
        guard: Guard,
        intervals: Intervals,
        max_exemplars: int = MAX_EXEMPLARS_PER_POINT,
    ) -> None:
        self._guard = guard
        self._intervals = intervals
        self._max_exemplars = max_exemplars
        self._streams: dict[_Place, dict[str, Stream]] = {}
        # Of the present export: exemplars by name, rows like the last one, entries that wait for a
        # device, and until when to wait for it.
        self._logged: dict[_Place, dict[str, list[bytes]]] = {}
        self._alike: tuple[_Shape, AlikeRows] | None = None
        self._unready: list[Entry] = []
        self._until_s = 0.0

    def pack(self, entries: Iterable[Entry], packer: RequestPacker) -> list[Entry]:
        """Encode ``entries`` into requests. A bad entry loses only itself.

        Returns:
            Entries, or their parts, that a device has yet to compute.
        """
        encoder = Encoder(self._intervals, self._max_exemplars)
        self._logged, self._alike = {}, None
        self._unready, self._until_s = [], monotonic() + _DEVICE_WAIT_S
        self._extend(encoder, entries)
        self._end_alike()
        self._logged = {}  # or it keeps the exemplars until the next export
        too_large = encoder.pack(packer)
        if too_large:
            self._guard.drop(
                DropReason.TOO_LARGE,
                "Points larger than a request may be are dropped. Shorten their attributes.",
                too_large,
            )
        return self._unready

    def _extend(self, encoder: Encoder, entries: Iterable[Entry]) -> None:
        """Pass the valid ``entries`` to the encoder.

        The common case is one loop over local names instead of a call per entry: this is the cost
        of every measurement.
        """
        framing = Framing()
        before, after, pack_double = framing.before, framing.after, framing.pack_double
        head, high, tail = framing.head, framing.high, framing.tail
        last_step: object = None
        last_context: Context | None = None
        until_ns = OPEN
        series = encoder.plain
        for entry in entries:
            try:
                if isinstance(entry, Logged):
                    self._extend_by_row(series, framing, entry)
                    continue
                stream, value, kept, time_ns, context = entry
                if type(value) is not float and self._is_late(value):
                    self._unready.append(entry)
                    continue
                if isinstance(kept, dict):
                    step, attributes = kept.pop(RL_LOOP_ITERATION, None), kept
                else:
                    step, attributes = kept, None
                if step is not last_step or context is not last_context or time_ns > until_ns:
                    if high and context is last_context and type(step) is int and step >> 7 == high:
                        before = head + LOWEST_DIGIT[step & 127] + tail
                    else:
                        scope = scope_in(context) if step is None else None
                        framing(step if scope is None else scope.number_at(time_ns), context)
                        until_ns = OPEN if scope is None else scope.ended_ns
                        before, after = framing.before, framing.after
                        head, high, tail = framing.head, framing.high, framing.tail
                        pack_double, last_context = framing.pack_double, context
                    last_step = step
                if type(value) is float:
                    exemplar = pack_double(before, time_ns, AS_DOUBLE, value)
                else:
                    exemplar = _packed(before, time_ns, value)
                if attributes:
                    exemplars = encoder.exemplars(stream, attributes)
                elif stream in series:
                    exemplars = series[stream]
                else:
                    exemplars = series[stream] = []
                exemplars.append(exemplar + after)
            except (BadStep, _NotNumeric) as bad:
                self._refuse(stream.name, bad)
            except Exception as error:  # noqa: BLE001  # the exporter thread must survive
                self._guard.caught(error)

    def _extend_by_row(
        self, series: dict[Stream, list[bytes]], framing: Framing, logged: Logged
    ) -> None:
        """Add one call of ``otel_rl.log``."""
        values, step, reduce, time_ns, context, scope = logged
        try:
            place = None if reduce is None else _checked_reduction(reduce), scope
            around = scope_in(context) if step is None else None
            framing(step if around is None else around.number_at(time_ns), context)
        except _Bad as bad:
            self._guard.drop(bad.reason, str(bad), len(values))
            return
        except BadStep as bad:
            message = f"otel_rl.log: {bad}. The metrics of the call are dropped."
            self._guard.drop(DropReason.BAD_STEP, message, len(values))
            return
        names, floats = tuple(values), _FLOAT.issuperset(map(type, values.values()))
        shape = _shape(place, names, framing)
        if floats and self._alike is not None and self._alike[0] == shape:
            self._alike[1].add(framing.before, time_ns, values.values())
            return
        self._end_alike()
        values = values if floats else self._ready(logged)
        before, after, pack_double = framing.before, framing.after, framing.pack_double
        streams = self._streams.setdefault(place, {})
        known = self._logged.setdefault(place, {})
        for name, value in values.items():
            try:
                exemplars = known.get(name)
                if exemplars is None:
                    stream = streams[name] if name in streams else self._new_stream(name, place)
                    exemplars = known[name] = series.setdefault(stream, [])
                if type(value) is float:
                    exemplar = pack_double(before, time_ns, AS_DOUBLE, value)
                else:
                    exemplar = _packed(before, time_ns, value)
                exemplars.append(exemplar + after)
            except (_Bad, _NotNumeric) as bad:
                self._refuse(name, bad)
            except Exception as error:  # noqa: BLE001  # the other values are kept
                self._guard.caught(error)
        if floats and known.keys() >= values.keys():
            rows = AlikeRows([known[name] for name in names], len(framing.before), framing.after)
            self._alike = shape, rows

    def _ready(self, logged: Logged) -> dict[str, object]:
        """Return the values of a row that no device has yet to compute; the others wait."""
        late = {name: value for name, value in logged.values.items() if self._is_late(value)}
        if not late:
            return logged.values
        self._unready.append(logged._replace(values=late))
        return {name: value for name, value in logged.values.items() if name not in late}

    def _end_alike(self) -> None:
        alike, self._alike = self._alike, None
        if alike is not None:
            alike[1].encode()

    def _refuse(self, name: str, bad: "BadStep | _Bad | _NotNumeric") -> None:
        if isinstance(bad, _NotNumeric):
            self._guard.not_a_number(name, str(bad))
        elif isinstance(bad, _Bad):
            self._guard.drop(bad.reason, str(bad))
        else:
            self._guard.drop(DropReason.BAD_STEP, f"{name}: {bad}. It is dropped.")

    def _is_late(self, value: object) -> bool:
        """Report whether a device has yet to compute a value, after waiting for it a little."""
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
                f"otel_rl.log: a metric's name must be text of 1 to {MAX_NAME_LENGTH} characters "
                f"(got {str(name)[:80]!r}). It is dropped.",
            )
        streams, (reduce, scope_name) = self._streams[place], place
        if len(streams) >= _MAX_CACHED_STREAMS:
            streams.clear()
        attributes = {RL_REDUCE: reduce} if reduce else None
        scope = InstrumentationScope(scope_name or SCOPE_NAME, __version__, None, attributes)
        stream = streams[name] = Stream(scope, name)
        return stream


def _shape(place: _Place, names: tuple[str, ...], framing: Framing) -> _Shape:
    return place, names, len(framing.before), framing.after


class _Bad(Exception):
    """Recorded entry that cannot be sent; the message gives the reason."""

    def __init__(self, reason: DropReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _NotNumeric(Exception):
    """Recorded value that is no number; the message says what it is."""


def _packed(before: bytes, time_ns: int, held: object) -> bytes:
    """Return the exemplar, without its end, of a number that is not a plain float."""
    value = number(held)
    if isinstance(value, NotANumber):
        raise _NotNumeric(value.description)
    return pack(before, time_ns, value)


def _checked_reduction(reduce: object) -> str:
    try:
        return Reduction(str(reduce)).value
    except ValueError:
        words = ", ".join(Reduction)
        raise _Bad(
            DropReason.BAD_REDUCE,
            f"otel_rl.log: reduce must be one of {words} (got {str(reduce)[:80]!r}). "
            "The metrics of the call are dropped.",
        ) from None
