"""Rebuilds the stored history of a run from its spans alone, such as those in Jaeger.

The spans are replayed to an aligner in the order of their ends, as they once arrived.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Decoded, Export, Measurements, Series, SpanRecord, Worker
from otel_rl.semconv import names
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["retrace"]

_NS_PER_S: Final = 1_000_000_000

# At each interval the spans of the last minute are sorted.
_CLOSE_EVERY_NS: Final = 30 * _NS_PER_S

# Traces have no end-of-worker events, so no worker is ever lost.
_SETTINGS: Final = AlignSettings(worker_timeout_s=86_400.0)


def retrace(parts: Iterable[Decoded]) -> Sequence[bytes]:
    """Return the records of a run, as a bridge stores them in its journal.

    Args:
        parts: Spans in any order, each part with its workers. All are held in memory.
    """
    workers: dict[str, Worker] = {}
    spans: dict[bytes, SpanRecord] = {}
    for part in parts:
        workers.update((export.worker.instance, export.worker) for export in part.exports)
        spans.update((span.span_id, span) for span in part.spans)
    return list(_played(sorted(spans.values(), key=lambda span: span.end_ns), workers))


def _played(spans: Sequence[SpanRecord], workers: dict[str, Worker]) -> Iterator[bytes]:
    aligner, now_ns, closed_ns = Run(_SETTINGS), 0, 0
    for second, some in groupby(spans, lambda span: span.end_ns // _NS_PER_S):
        now_ns, ended = (second + 1) * _NS_PER_S, list(some)
        exports = [Export(workers[name], 0) for name in {span.worker for span in ended}]
        steps = [_measured(span, span.step, workers) for span in ended if span.step is not None]
        aligner.add(Decoded(list(filter(None, steps)), exports, spans=ended), received_ns=now_ns)
        if now_ns - closed_ns >= _CLOSE_EVERY_NS:
            aligner.close(now_ns)
            aligner.intake.steps.take_log()
            closed_ns = now_ns
        if (kept := aligner.take_history(now_ns)) is not None:
            yield kept.body
    aligner.close(now_ns, everything=True)
    if (kept := aligner.take_history(now_ns, everything=True)) is not None:
        yield kept.body


def _measured(span: SpanRecord, step: int, workers: dict[str, Worker]) -> Measurements | None:
    """Return the step as the worker measures it beside its span; None if the span is no step."""
    if span.name != STEP_SPAN:
        return None
    series = Series(workers[span.worker], names.RL_ITERATION_DURATION, "s")
    took_s = (span.end_ns - span.start_ns) / _NS_PER_S
    return Measurements(series, [span.start_ns], [took_s], [step])
