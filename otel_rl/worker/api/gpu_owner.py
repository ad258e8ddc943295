"""Marks the phase that uses GPUs shared by several processes.

with otel_rl.gpu_owner("generate"):
    samples = engine.generate(prompts)
with otel_rl.gpu_owner("offload"):
    engine.sleep()
"""

from typing import Self

from opentelemetry.trace import Span, get_current_span

from otel_rl.semconv.names import RL_GPU_OWNER
from otel_rl.worker import session
from otel_rl.worker.api.async_block import AsyncBlock
from otel_rl.worker.api.phase_spans import tracer
from otel_rl.worker.otlp.anyvalue import label

__all__ = ["gpu_owner"]

_SPAN = "rl.gpu.owner"

_MAX_PHASE_CHARS = 64


class gpu_owner(AsyncBlock):  # noqa: N801  # reads like step() and phase()
    """Assigns the process's GPUs to ``phase`` while the block runs. Never raises, never waits.

    Records a span ``rl.gpu.owner``, an event of that name on the surrounding span (usually the
    step), and the duration. With GPU sampling, the time, utilization, energy and memory of each
    device are divided between the phases. The innermost of nested blocks counts. Not reentrant.

    Args:
        phase: ``train``, ``generate``, ``offload``, ``onload``, or any word.
    """

    def __init__(self, phase: str) -> None:
        self._phase: object = phase
        self._span: Span | None = None

    def __enter__(self) -> Self:
        """Begin the turn."""
        current = session.running() or session.started_or_dropped("gpu_owner", 0)
        if current is not None:
            with session.GUARD:
                phase = label(self._phase, _MAX_PHASE_CHARS)
                current.providers.gpus.begin_turn(self, phase)
                get_current_span().add_event(_SPAN, {RL_GPU_OWNER: phase})
                made = tracer()
                if made is not None:
                    # Not the current span: concurrent work is not a part of it.
                    self._span = made.start_span(_SPAN, attributes={RL_GPU_OWNER: phase})
        return self

    def __exit__(self, *_: object) -> None:
        """End the turn."""
        current = session.running()
        with session.GUARD:
            if current is not None:
                current.providers.gpus.end_turn(self)
            span, self._span = self._span, None
            if span is not None:
                span.end()
