"""Which spans are kept: those of whole steps, over all processes, without asking each other.

Steps are kept in blocks of eight, because their work overlaps: a step uses samples that were made
while others ran. What is kept follows from the run and the block alone, so every process comes to
the same answer. A sample is made before its step is known; it may be used by any of the next eight
after its policy version, and is kept if one of them is.

The number that decides is told in W3C ``tracestate`` as OpenTelemetry has it for sampling that is
consistent (``ot=rv:...;th:...``), so a Collector that keeps less keeps whole blocks, too.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import RL_LOOP_ITERATION, RL_POLICY_VERSION
from otel_rl.worker import serving
from otel_rl.worker.values import as_step

__all__ = ["BLOCK_STEPS", "StepSampler"]

BLOCK_STEPS: Final = 8
"""Steps that are kept together. Staler samples than this are seldom used."""

_BITS: Final = 56  # of the numbers in tracestate


class StepSampler(Sampler):
    """Keeps the spans of a share of all steps; the same steps in all processes of a run.

    A span within another is kept if that one is. One that begins a trace says its step, or the
    policy version that it makes samples with, in its attributes; else it is of the weights that the
    process serves. Where nothing is known it is kept.
    """

    def __init__(self) -> None:
        self.run_id = ""
        """Of the run whose steps these are. May be changed at any time."""
        self._threshold = 0

    def keep(self, share: float) -> None:
        """From now on, keep a share of all steps, from 0 to 1."""
        self._threshold = round((1 - share) * (1 << _BITS))

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,  # noqa: ARG002  # as Sampler has it
        name: str,  # noqa: ARG002  # as Sampler has it
        kind: SpanKind | None = None,  # noqa: ARG002  # as Sampler has it
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,  # noqa: ARG002  # as Sampler has it
        trace_state: TraceState | None = None,  # noqa: ARG002  # as Sampler has it
    ) -> SamplingResult:
        """See ``Sampler``."""
        parent = get_current_span(parent_context).get_span_context()
        is_kept, state = self.decide(parent, attributes)
        decision = Decision.RECORD_AND_SAMPLE if is_kept else Decision.DROP
        return SamplingResult(decision, attributes if is_kept else None, state)

    def decide(self, parent: SpanContext, attributes: Attributes) -> tuple[bool, TraceState | None]:
        """Whether a span within ``parent`` is kept, and the trace state that it has.

        Args:
            parent: Not valid if it begins a trace.
            attributes: That it begins with.
        """
        if parent.is_valid:
            return parent.trace_flags.sampled, parent.trace_state
        blocks = _blocks(attributes)
        if blocks is None:
            return True, None
        number = max(_number(self.run_id, block) for block in blocks)
        is_kept = number >= self._threshold
        return is_kept, self._state(number) if is_kept else None

    def get_description(self) -> str:
        """See ``Sampler``."""
        return f"StepSampler{{{1 - self._threshold / (1 << _BITS):g}}}"

    def _state(self, number: int) -> TraceState:
        threshold = f"{self._threshold:014x}".rstrip("0") or "0"
        return TraceState([("ot", f"rv:{number:014x};th:{threshold}")])


def _blocks(attributes: Attributes) -> tuple[int, ...] | None:
    """The blocks that a trace may be of; None if nothing says."""
    said = attributes or {}
    step = as_step(said.get(RL_LOOP_ITERATION))
    if step is not None:
        return (step // BLOCK_STEPS,)
    version = as_step(said.get(RL_POLICY_VERSION))
    if version is None:
        served = serving.served()
        version = None if served is None else served.version
    if version is None:
        return None
    return (version + 1) // BLOCK_STEPS, (version + BLOCK_STEPS) // BLOCK_STEPS


@lru_cache(maxsize=1024)
def _number(run_id: str, block: int) -> int:
    """From 0 to 2**56, as if at random."""
    return int.from_bytes(hashlib.sha256(f"{run_id}/{block}".encode()).digest()[: _BITS // 8])
