"""The training step in the OpenTelemetry Context, for telemetry of libraries that do not know it.

Stands for the context-scoped attributes of OTEP 4931, which no SDK has yet (ADR 26).
"""

from typing import Final

from opentelemetry.context import Context, create_key, get_current, get_value, set_value
from opentelemetry.sdk.trace import Span, SpanProcessor

from otel_rl.semconv.names import RL_LOOP_ITERATION

__all__ = ["StepOnSpans", "in_step", "step_in"]

_KEY: Final = create_key("otel_rl.step")


def in_step(context: Context, number: int) -> Context:
    """Return ``context`` with the step."""
    return set_value(_KEY, number, context)


def step_in(context: Context | None) -> int | None:
    """Return the step that ``context`` is in; None outside of steps, or if they are not in it."""
    number = get_value(_KEY, context) if context else None
    return number if isinstance(number, int) else None


class StepOnSpans(SpanProcessor):
    """Gives each span that starts in a step, of any library, the step's number."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See ``SpanProcessor``. An attribute of the span's own stays."""
        number = step_in(get_current() if parent_context is None else parent_context)
        if number is not None and RL_LOOP_ITERATION not in (span.attributes or ()):
            span.set_attribute(RL_LOOP_ITERATION, number)
