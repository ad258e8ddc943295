"""mlogger.log: many gauges in one call, for loops that think in dicts."""

from collections.abc import Mapping
from time import time_ns
from typing import Protocol, SupportsFloat

from opentelemetry.context import get_current

from otel_rl.worker import session
from otel_rl.worker.buffer import Logged
from otel_rl.worker.drops import DropReason
from otel_rl.worker.provider import BUFFER_FULL
from otel_rl.worker.values import PLAIN, hold

__all__ = ["MLogger", "Tensor", "mlogger"]


_new = tuple.__new__


class Tensor(Protocol):
    """An array or tensor of one element: numpy, torch, jax, ..."""

    def item(self) -> object:
        """The element as a Python number."""
        ...


class MLogger:
    """Logs metrics of the process. One instance, ``otel_rl.mlogger``; any thread may use it."""

    def log(
        self,
        metrics: Mapping[str, SupportsFloat | Tensor],
        step: int | None = None,
        reduce: str | None = None,
        *,
        at_ns: int | None = None,
    ) -> None:
        """Record each metric now, as a gauge of its name would. Never raises, never waits.

        Costs a copy of the mapping; everything else happens on the exporter thread. Tensors on a
        device are copied there without waiting for it, so the loop may change them at once.

        Args:
            metrics: Name to number, or to an array or tensor of one element. NaN is kept.
            step: The training step the values belong to.
            reduce: How the values of several workers become one: mean (the default), sum, min,
                max, std or last. Applies to every metric of the call.
            at_ns: When it was measured, in ns since the Unix epoch, if not now.
        """
        current = session.running()
        if current is None:
            current = session.started_or_dropped("mlogger.log", _size(metrics))
            if current is None:
                return
        guard = session.GUARD
        try:
            values: dict[str, object] = dict(metrics)
            if not PLAIN.issuperset(map(type, values.values())):
                values = {name: hold(value) for name, value in values.items()}
            buffer = current.providers.meter.buffer
            if len(buffer.entries) < buffer.capacity:
                when = time_ns() if at_ns is None else at_ns
                kept = step if type(step) is int else hold(step)
                # What Logged() does, without a function of Python's between.
                entry = (values, kept, reduce, when, get_current())
                buffer.entries.append(_new(Logged, entry))
            else:
                guard.drop(DropReason.BUFFER_FULL, BUFFER_FULL, len(values))
        except (TypeError, ValueError):
            guard.drop(
                DropReason.NOT_A_NUMBER,
                f"mlogger.log: metrics must map names to numbers (got {type(metrics).__name__}). "
                "The call is dropped.",
            )
        except Exception as error:  # noqa: BLE001  # nothing may raise into training code
            guard.caught(error)


def _size(metrics: object) -> int:
    return len(metrics) if isinstance(metrics, Mapping) else 1


mlogger = MLogger()
"""The process's logger."""
