"""Synchronous gauge that keeps every measurement."""

from collections.abc import Sequence
from functools import partial
from time import time_ns

from opentelemetry.context import Context, get_current
from opentelemetry.metrics import _Gauge
from opentelemetry.util.types import AnyValue, Attributes

from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.late_copies import LateCopies
from otel_rl.worker.metrics.buffer import Buffer
from otel_rl.worker.metrics.step_counts import Steps
from otel_rl.worker.otlp.gauges import Stream
from otel_rl.worker.tensors import PLAIN, Deferred, NotANumber, hold, number

__all__ = ["BUFFER_FULL", "BufferedGauge", "MirroredGauge", "without_step"]

BUFFER_FULL = (
    "More measurements were made between two exports than the buffer holds; the newest are "
    "dropped. Record less often, or shorten the export interval."
)


class BufferedGauge(_Gauge):
    """Synchronous gauge that keeps every measurement. ``set`` never raises and never waits.

    Args:
        stream: Its identity on the wire.
        buffer: Receives the measurements.
        guard: Counts losses.
        steps: Of the process.
    """

    def __init__(self, stream: Stream, buffer: Buffer, guard: Guard, steps: Steps) -> None:
        self._stream = stream
        self._steps = steps
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
        try:
            if len(self._entries) < self._capacity:
                kept: dict[str, AnyValue] | int | None = None
                now_ns = time_ns()
                if attributes:
                    step = attributes.get(RL_LOOP_ITERATION)
                    # The common case is the step alone; a dict each would be half of the buffer.
                    kept = step if len(attributes) == 1 and type(step) is int else {**attributes}
                    if step is not None and self._steps.follows_gauges:
                        self._steps.reached(step, now_ns)
                self._entries.append(
                    (
                        self._stream,
                        amount if type(amount) in PLAIN else hold(amount),
                        kept,
                        now_ns,
                        context or get_current(),
                    )
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

    def show_in(self, copies: Sequence[_Gauge], late: LateCopies) -> None:
        """Record the values in other gauges as well, from now on.

        Args:
            copies: Of the SDK.
            late: Receives the values that a device has yet to compute.
        """
        self._mirrored = copies
        self._late = late
        self._has_late = False
        # Replaces a check in each ``set``, which runs in training loops.
        self.__class__ = MirroredGauge


class MirroredGauge(BufferedGauge):
    """Gauge that readers of the program receive, too."""

    _mirrored: Sequence[_Gauge]
    _late: LateCopies
    _has_late: bool
    """True once a device had to compute one: later ones must not come before it."""

    def set(
        self,
        amount: float,
        attributes: Attributes = None,
        context: Context | None = None,
    ) -> None:
        """See ``BufferedGauge``."""
        held = amount if type(amount) in PLAIN else hold(amount)
        super().set(held, attributes, context)  # type: ignore[arg-type]  # a held one is taken
        with self._guard:
            copied = without_step(attributes)
            if self._has_late or isinstance(held, Deferred):
                self._has_late = True
                kept = {**copied} if copied else None
                self._late.add(self, held, partial(self._copy, attributes=kept, context=context))
                return
            plain = number(held)
            if not isinstance(plain, NotANumber):
                self._copy(plain, copied, context)

    def _copy(self, amount: float, attributes: Attributes, context: Context | None) -> None:
        for gauge in self._mirrored:
            gauge.set(amount, attributes, context)


def without_step(attributes: Attributes) -> Attributes:
    """Return the attributes without the step, which would make a new series every step."""
    if not attributes or RL_LOOP_ITERATION not in attributes:
        return attributes
    return {key: value for key, value in attributes.items() if key != RL_LOOP_ITERATION}
