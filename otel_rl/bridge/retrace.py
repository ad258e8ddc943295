"""What a diagnosis goes by, from nothing but the spans of a run, such as a Jaeger has kept.

The spans are played to an aligner in the order in which they ended, as they once came to a bridge.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from otel_rl.bridge.align import Aligner
from otel_rl.bridge.align.settings import AlignSettings
from otel_rl.records import Decoded, Export, Measurements, Series, SpanRecord, Worker
from otel_rl.semconv import names
from otel_rl.semconv.spec import STEP_SPAN

__all__ = ["retrace"]

_NS_PER_S: Final = 1_000_000_000

# Each time, the spans of the last minute are put in order.
_CLOSE_EVERY_NS: Final = 30 * _NS_PER_S

# Nobody says goodbye in traces, so nobody is lost.
_SETTINGS: Final = AlignSettings(lease_s=86_400.0)


def retrace(parts: Iterable[Decoded]) -> Sequence[bytes]:
    """The facts of a run, as a bridge keeps them in its journal.

    Args:
        parts: Its spans, in any order, each with the workers that they are of. All are held in
            memory.
    """
    workers: dict[str, Worker] = {}
    spans: dict[bytes, SpanRecord] = {}
    for part in parts:
        workers.update((export.worker.instance, export.worker) for export in part.exports)
        spans.update((span.span_id, span) for span in part.spans)
    return list(_played(sorted(spans.values(), key=lambda span: span.end_ns), workers))


def _played(spans: Sequence[SpanRecord], workers: dict[str, Worker]) -> Iterator[bytes]:
    aligner, now_ns, closed_ns = Aligner(_SETTINGS), 0, 0
    for second, some in groupby(spans, lambda span: span.end_ns // _NS_PER_S):
        now_ns, ended = (second + 1) * _NS_PER_S, list(some)
        exports = [Export(workers[name], 0) for name in {span.worker for span in ended}]
        steps = [_measured(span, span.step, workers) for span in ended if span.step is not None]
        aligner.add(Decoded(list(filter(None, steps)), exports, spans=ended), received_ns=now_ns)
        if now_ns - closed_ns >= _CLOSE_EVERY_NS:
            aligner.close(now_ns)
            closed_ns = now_ns
        if (kept := aligner.take_history(now_ns)) is not None:
            yield kept.body
    aligner.close(now_ns, everything=True)
    if (kept := aligner.take_history(now_ns, everything=True)) is not None:
        yield kept.body


def _measured(span: SpanRecord, step: int, workers: dict[str, Worker]) -> Measurements | None:
    """A step as the worker measures it beside its span; None of what is no step."""
    if span.name != STEP_SPAN:
        return None
    series = Series(workers[span.worker], names.RL_ITERATION_DURATION, "s")
    took_s = (span.end_ns - span.start_ns) / _NS_PER_S
    return Measurements(series, [span.start_ns], [took_s], [step])
