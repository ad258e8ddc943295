"""``otel_rl.log``: records metrics from a mapping."""

from collections.abc import Iterator, Mapping
from time import time_ns
from typing import Final, Protocol, SupportsFloat, TypeAlias

from opentelemetry.context import get_current

from otel_rl.worker import session
from otel_rl.worker.drops import DropReason
from otel_rl.worker.metrics.gauges import BUFFER_FULL, Logged
from otel_rl.worker.tensors import PLAIN, NotANumber, as_step, hold

_MAX_DEPTH: Final = 32
"""Deeper nesting indicates an object graph, possibly circular, instead of metrics."""


class _Tensor(Protocol):
    def item(self) -> object: ...


Value: TypeAlias = "SupportsFloat | _Tensor | Mapping[str, Value]"
"""Number, array or tensor of one element, or a mapping of them."""


def log(
    metrics: Mapping[str, Value],
    step: int | None = None,
    reduce: str | None = None,
    *,
    at_ns: int | None = None,
    scope: str = "",
) -> None:
    """Record each metric now, as a gauge of its name would. Never raises, never waits.

    Copies the mapping; the rest happens on the exporter thread. Tensors on a device are copied
    there without waiting for the device, so the loop may change them immediately. Thread-safe.

    Args:
        metrics: Name to number, or to an array or tensor of one element. NaN is kept. Names in
            nested mappings are joined by ``/``.
        step: The training step of the values; default that of the ``step`` block around the call.
            Without either, a value belongs to its time.
        reduce: Reduction over several workers: mean (the default), sum, min, max, std or last.
            Applies to every metric of the call.
        at_ns: Time of the measurement, in ns since the Unix epoch; default now.
        scope: Instrumentation scope of an adapter.
    """
    current = session.running()
    if current is None:
        current = session.started_or_dropped("otel_rl.log", _size(metrics))
        if current is None:
            return
    guard = session.GUARD
    try:
        values: dict[str, object] = dict(metrics)
        if not PLAIN.issuperset(map(type, values.values())):
            values = dict(_held(values, 0))
        when = time_ns() if at_ns is None else as_step(at_ns)
        if when is None or when < 0:
            guard.drop(
                DropReason.BAD_TIME,
                "otel_rl.log: at_ns must be an integer, nanoseconds since 1970 as time.time_ns() "
                f"returns (got {str(at_ns)[:80]!r}). The call is dropped.",
                len(values),
            )
            return
        buffer = current.providers.meter.buffer
        if len(buffer.entries) < buffer.capacity:
            kept = step if type(step) is int else hold(step)
            buffer.entries.append(Logged(values, kept, reduce, when, get_current(), scope))
        else:
            guard.drop(DropReason.BUFFER_FULL, BUFFER_FULL, len(values))
    except (TypeError, ValueError):
        guard.drop(
            DropReason.NOT_A_NUMBER,
            f"otel_rl.log: metrics must map names to numbers (got {type(metrics).__name__}). "
            "The call is dropped.",
        )
    except Exception as error:  # noqa: BLE001  # nothing may raise into training code
        guard.caught(error)


class mlogger:  # noqa: N801  # reads as an object: mlogger.log({"loss": 0.1})
    """The process's logger, for programs that expect an object: ``mlogger.log`` is ``log``."""

    log = staticmethod(log)


def _held(metrics: Mapping[str, object], depth: int) -> Iterator[tuple[str, object]]:
    """Yield names, nested ones joined by ``/``, and values, which may change afterwards."""
    for name, value in metrics.items():
        held = hold(value)
        if type(held) is NotANumber and isinstance(value, Mapping) and depth < _MAX_DEPTH:
            for inner, inner_held in _held(value, depth + 1):
                yield f"{name}/{inner}", inner_held
        else:
            yield name, held


def _size(metrics: object) -> int:
    return len(metrics) if isinstance(metrics, Mapping) else 1
