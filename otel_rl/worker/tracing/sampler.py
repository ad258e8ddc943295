"""Samples the spans of whole steps, identically in all processes without communication.

Steps are kept in blocks of eight, because their work overlaps: a step uses samples generated during
others. The decision depends only on the run and the block, so every process decides alike. A sample
is generated before its step is known; any of the eight steps after its policy version may use the
sample, and it is kept if one of them is kept.

The deciding number is sent in W3C ``tracestate``, in OpenTelemetry's format for consistent sampling
(``ot=rv:...;th:...``), so that a Collector that samples further also keeps whole blocks.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from otel_rl.semconv.names import RL_LOOP_ITERATION, RL_POLICY_VERSION
from otel_rl.semconv.spec import BLOCK_STEPS
from otel_rl.worker import served_policy
from otel_rl.worker.tensors import as_step

_BITS: Final = 56  # of the numbers in tracestate


class StepSampler(Sampler):
    """Keeps the spans of a share of all steps; the same steps in all processes of a run.

    A child span follows its parent. A root span has in its attributes its step, or the policy
    version with which it generates samples; else it belongs to the weights that the process serves.
    A root span without any of these is kept.
    """

    def __init__(self, run_id: str = "") -> None:
        self.run_id = run_id
        """Run of the steps. May be changed at any time."""
        self._threshold = 0

    def keep(self, share: float) -> None:
        """Set the share of steps to keep, from 0 to 1."""
        self._threshold = round((1 - share) * (1 << _BITS))

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,  # noqa: ARG002  # Sampler.should_sample
        name: str,  # noqa: ARG002  # Sampler.should_sample
        kind: SpanKind | None = None,  # noqa: ARG002  # Sampler.should_sample
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,  # noqa: ARG002  # Sampler.should_sample
        trace_state: TraceState | None = None,  # noqa: ARG002  # Sampler.should_sample
    ) -> SamplingResult:
        parent = get_current_span(parent_context).get_span_context()
        is_kept, state = self.decide(parent, attributes)
        decision = Decision.RECORD_AND_SAMPLE if is_kept else Decision.DROP
        return SamplingResult(decision, attributes if is_kept else None, state)

    def decide(self, parent: SpanContext, attributes: Attributes) -> tuple[bool, TraceState | None]:
        """Return (kept, trace state) of a span within ``parent``, which is invalid for a root."""
        if parent.is_valid:
            return parent.trace_flags.sampled, parent.trace_state
        blocks = _blocks(attributes)
        if blocks is None:
            return True, None
        number = max(_number(self.run_id, block) for block in blocks)
        is_kept = number >= self._threshold
        return is_kept, self._state(number) if is_kept else None

    def get_description(self) -> str:
        return f"StepSampler{{{1 - self._threshold / (1 << _BITS):g}}}"

    def _state(self, number: int) -> TraceState:
        threshold = f"{self._threshold:014x}".rstrip("0") or "0"
        return TraceState([("ot", f"rv:{number:014x};th:{threshold}")])


def _blocks(attributes: Attributes) -> tuple[int, ...] | None:
    """Return the blocks that a trace may belong to; None if unknown."""
    known = attributes or {}
    step = as_step(known.get(RL_LOOP_ITERATION))
    if step is not None:
        return (step // BLOCK_STEPS,)
    version = as_step(known.get(RL_POLICY_VERSION))
    if version is None:
        served = served_policy.served()
        version = None if served is None else served.version
    if version is None:
        return None
    return (version + 1) // BLOCK_STEPS, (version + BLOCK_STEPS) // BLOCK_STEPS


@lru_cache(maxsize=1024)
def _number(run_id: str, block: int) -> int:
    """Return a pseudo-random number from 0 to 2**56."""
    return int.from_bytes(sha256(f"{run_id}/{block}".encode()).digest()[: _BITS // 8])
