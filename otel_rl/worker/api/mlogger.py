"""Logs metrics from a mapping, the config of the run, and tables of samples."""

from collections.abc import Mapping
from time import time_ns
from typing import Protocol, SupportsFloat

from opentelemetry.context import get_current

from otel_rl.worker import session
from otel_rl.worker.api import experiment
from otel_rl.worker.drops import DropReason
from otel_rl.worker.metrics.buffer import Logged
from otel_rl.worker.metrics.gauge import BUFFER_FULL
from otel_rl.worker.tensors import PLAIN, hold

__all__ = ["MLogger", "Tensor", "mlogger"]


_new = tuple.__new__


class Tensor(Protocol):
    """Array or tensor of one element: numpy, torch, jax, ..."""

    def item(self) -> object:
        """Return the element as a Python number."""
        ...


class MLogger:
    """Logs metrics, config and samples. One per process, ``otel_rl.mlogger``; thread-safe.

    Args:
        scope: Instrumentation scope of an adapter's own logger.
    """

    def __init__(self, scope: str = "") -> None:
        self._scope = scope

    log_config = staticmethod(experiment.log_config)
    log_samples = staticmethod(experiment.log_samples)

    def log(
        self,
        metrics: Mapping[str, SupportsFloat | Tensor],
        step: int | None = None,
        reduce: str | None = None,
        *,
        at_ns: int | None = None,
    ) -> None:
        """Record each metric now, as a gauge of its name would. Never raises, never waits.

        Copies the mapping; the rest happens on the exporter thread. Tensors on a device are copied
        there without waiting for it, so the loop may change them immediately.

        Args:
            metrics: Name to number, or to an array or tensor of one element. NaN is kept.
            step: The training step of the values.
            reduce: Reduction over several workers: mean (the default), sum, min, max, std or last.
                Applies to every metric of the call.
            at_ns: Time of the measurement, in ns since the Unix epoch, if not now.
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
            meter = current.providers.meter
            if step is not None and meter.steps.follows_gauges:
                meter.steps.reached(step, time_ns())
            buffer = meter.buffer
            if len(buffer.entries) < buffer.capacity:
                when = time_ns() if at_ns is None else at_ns
                kept = step if type(step) is int else hold(step)
                # Logged() without a Python-level call.
                entry = (values, kept, reduce, when, get_current(), self._scope)
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
