"""From what training threads recorded to what the encoder takes: checks that can wait.

Everything here runs on the exporter thread, so that the training thread pays for an append only.
"""

import operator
from collections.abc import Iterable, Mapping
from typing import Final, SupportsIndex

from opentelemetry.context import Context
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_rl import __version__
from otel_rl.semconv.names import RL_LOOP_ITERATION, RL_REDUCE
from otel_rl.semconv.spec import Reduction
from otel_rl.worker.buffer import Logged, Measured
from otel_rl.worker.drops import DropReason
from otel_rl.worker.encode import Encoder, Request, Stream
from otel_rl.worker.guard import Guard
from otel_rl.worker.values import NotANumber, number

__all__ = ["MAX_NAME_LENGTH", "SCOPE_NAME", "Expander"]

SCOPE_NAME: Final = "otel_rl"
"""Scope of ``mlogger`` and of what otel_rl says about itself."""

MAX_NAME_LENGTH: Final = 255
"""The limit of the OpenTelemetry specification for instrument names."""

_MAX_CACHED_STREAMS: Final = 10_000
"""Bounds the cache against names that carry an id or a step."""


class Expander:
    """Turns entries into requests. One thread.

    Args:
        guard: Where bad entries are counted.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._scopes: dict[str | None, InstrumentationScope] = {}
        self._streams: dict[tuple[str, str | None], Stream] = {}

    def requests(self, entries: Iterable[Measured | Logged], resource: bytes) -> list[Request]:
        """Encode ``entries`` under ``resource``. A bad entry costs itself only."""
        encoder = Encoder(resource)
        for entry in entries:
            # One try for each: a with statement would cost as much as the encoding.
            try:
                if isinstance(entry, Logged):
                    self._add_logged(encoder, entry)
                else:
                    stream, value, attributes, time_ns, context = entry
                    if attributes is None:
                        self._add(encoder, stream, value, None, None, time_ns, context)
                    else:
                        step = attributes.pop(RL_LOOP_ITERATION, None)
                        self._add(encoder, stream, value, step, attributes, time_ns, context)
            except Exception as error:  # noqa: BLE001  # nothing may end the exporter thread
                self._guard.caught(error)
        requests = encoder.requests()
        if encoder.too_large:
            self._guard.drop(
                DropReason.TOO_LARGE,
                "Points larger than a request may be are dropped. Shorten their attributes.",
                encoder.too_large,
            )
        return requests

    def _add(
        self,
        encoder: Encoder,
        stream: Stream,
        value: object,
        step: object,
        attributes: Mapping[str, object] | None,
        time_ns: int,
        context: Context,
    ) -> None:
        measured = value if type(value) is float else number(value)
        if isinstance(measured, NotANumber):
            self._guard.drop(
                DropReason.NOT_A_NUMBER,
                f"{stream.name}: not a number (got {measured.description}). It is dropped. "
                "Log Python numbers, or arrays and tensors of one element.",
            )
        elif step is None or (type(step) is int and -(1 << 63) <= step < 1 << 63):
            encoder.add(stream, measured, step, attributes, time_ns, context)
        else:
            checked = self._checked_step(stream.name, step)
            if checked is not None:
                encoder.add(stream, measured, checked, attributes, time_ns, context)

    def _add_logged(self, encoder: Encoder, logged: Logged) -> None:
        reduce = self._checked_reduce(logged.reduce, len(logged.values))
        if reduce is not None:
            scope = reduce or None
            for name, value in logged.values.items():
                stream = self._streams.get((name, scope)) or self._new_stream(name, scope)
                if stream is not None:
                    step, time_ns, context = logged.step, logged.time_ns, logged.context
                    self._add(encoder, stream, value, step, None, time_ns, context)

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
        """The reduction's name, "" for none given, or None if it is bad and was counted."""
        if reduce is None:
            return ""
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

    def _checked_step(self, name: str, step: object) -> int | None:
        """The step as an int of 64 bits, or None if it is none and was counted."""
        if isinstance(step, float) and step.is_integer():
            step = int(step)
        if isinstance(step, SupportsIndex) and not isinstance(step, bool):
            try:
                found = operator.index(step)
            except (TypeError, ValueError):
                pass
            else:
                if -(1 << 63) <= found < 1 << 63:
                    return found
        self._guard.drop(
            DropReason.BAD_STEP,
            f"{name}: the step must be an integer (got {str(step)[:80]!r}). "
            "The measurement is dropped.",
        )
        return None
