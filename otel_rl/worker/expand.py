"""From what training threads recorded to what the encoder takes: checks that can wait.

Everything here runs on the exporter thread, so that the training thread pays for an append only.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl import __version__
from otel_rl.semconv.names import RL_LOOP_ITERATION, RL_REDUCE
from otel_rl.semconv.spec import Reduction
from otel_rl.worker.buffer import Logged, Measured
from otel_rl.worker.drops import DropReason
from otel_rl.worker.encode import Encoder, Measurement, Request, Stream
from otel_rl.worker.guard import Guard
from otel_rl.worker.intervals import Intervals
from otel_rl.worker.values import NotANumber, as_step, is_plain_step, number

__all__ = ["MAX_NAME_LENGTH", "SCOPE_NAME", "Expander"]

SCOPE_NAME: Final = "otel_rl"
"""Scope of ``mlogger`` and of what otel_rl says about itself."""

MAX_NAME_LENGTH: Final = 255
"""The limit of the OpenTelemetry specification for instrument names."""

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1

_MAX_CACHED_STREAMS: Final = 10_000
"""Bounds the cache against names that carry an id or a step."""


class Expander:
    """Turns entries into requests. One thread.

    Args:
        guard: Where bad entries are counted.
        intervals: Of all that the process exports.
    """

    def __init__(self, guard: Guard, intervals: Intervals) -> None:
        self._guard = guard
        self._intervals = intervals
        self._scopes: dict[str | None, InstrumentationScope] = {}
        self._streams: dict[tuple[str, str | None], Stream] = {}

    def requests(self, entries: Iterable[Measured | Logged], resource: bytes) -> list[Request]:
        """Encode ``entries`` under ``resource``. A bad entry costs itself only."""
        encoder = Encoder(resource, self._intervals)
        encoder.extend(self._measurements(entries), self._guard.caught)
        requests = encoder.requests()
        if encoder.too_large:
            self._guard.drop(
                DropReason.TOO_LARGE,
                "Points larger than a request may be are dropped. Shorten their attributes.",
                encoder.too_large,
            )
        return requests

    def _measurements(self, entries: Iterable[Measured | Logged]) -> Iterator[Measurement]:
        for entry in entries:
            # One try for each: a with statement would cost as much as the encoding.
            try:
                if isinstance(entry, Logged):
                    yield from self._logged(entry)
                    continue
                stream, value, attributes, time_ns, context = entry
                step = attributes.pop(RL_LOOP_ITERATION, None) if attributes else None
                # What nearly all are; spelled out, because a call would cost a tenth of it all.
                if type(value) is float and (
                    step is None or (type(step) is int and _INT64_MIN <= step <= _INT64_MAX)
                ):
                    yield stream, value, step, attributes, time_ns, context
                else:
                    checked = self._checked(stream.name, value, step)
                    if checked is not None:
                        yield stream, *checked, attributes, time_ns, context
            except Exception as error:  # noqa: BLE001  # nothing may end the exporter thread
                self._guard.caught(error)

    def _logged(self, logged: Logged) -> Iterator[Measurement]:
        values, step, reduce, time_ns, context = logged
        scope = None if reduce is None else self._checked_reduce(reduce, len(values))
        if reduce is not None and scope is None:
            return
        for name, value in values.items():
            stream = self._streams.get((name, scope)) or self._new_stream(name, scope)
            if stream is None:
                continue
            checked = self._checked(name, value, step)
            if checked is not None:
                yield stream, *checked, None, time_ns, context

    def _checked(self, name: str, value: object, step: object) -> tuple[float, int | None] | None:
        """(value, step) as the encoder takes them, or None if one is bad and was counted."""
        measured = number(value)
        if isinstance(measured, NotANumber):
            self._guard.drop(
                DropReason.NOT_A_NUMBER,
                f"{name}: not a number (got {measured.description}). It is dropped. "
                "Log Python numbers, or arrays and tensors of one element.",
            )
            return None
        if step is None or is_plain_step(step):
            return measured, step
        found = as_step(step)
        if found is None:
            self._guard.drop(
                DropReason.BAD_STEP,
                f"{name}: the step must be an integer of 64 bits (got {str(step)[:80]!r}). "
                "The measurement is dropped.",
            )
            return None
        return measured, found

    def _new_stream(self, name: object, reduce: str | None) -> Stream | None:
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_LENGTH:
            self._guard.drop(
                DropReason.BAD_NAME,
                f"mlogger.log: a metric's name must be text of 1 to {MAX_NAME_LENGTH} characters "
                f"(got {str(name)[:80]!r}). It is dropped.",
            )
            return None
        if len(self._streams) >= _MAX_CACHED_STREAMS:
            self._streams.clear()
        scope = self._scopes.get(reduce)
        if scope is None:
            attributes = {RL_REDUCE: reduce} if reduce else None
            scope = InstrumentationScope(SCOPE_NAME, __version__, None, attributes)
            self._scopes[reduce] = scope
        stream = self._streams[name, reduce] = Stream(scope, name)
        return stream

    def _checked_reduce(self, reduce: object, count: int) -> str | None:
        """The reduction's name, or None if it is none and was counted."""
        try:
            return Reduction(str(reduce)).value
        except ValueError:
            words = ", ".join(Reduction)
            self._guard.drop(
                DropReason.BAD_REDUCE,
                f"mlogger.log: reduce must be one of {words} (got {str(reduce)[:80]!r}). "
                "The metrics of the call are dropped.",
                count,
            )
            return None
