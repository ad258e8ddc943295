"""Makes the requests: a new prompt each time, sampled with varying temperature and top-p."""

import itertools

import numpy as np
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind

from otel_rl.demo import task
from otel_rl.demo.control.messages import Carrier, Request
from otel_rl.demo.settings import DemoSettings

__all__ = ["Prompts"]

TEMPERATURES = (0.8, 1.2)
TOP_PS = (0.95, 1.0)


class Prompts:
    """Endless source of requests."""

    def __init__(self, settings: DemoSettings) -> None:
        self._settings = settings
        self._rng = np.random.default_rng([settings.seed, 2])
        self._numbers = itertools.count()
        self._tracer = trace.get_tracer("otel_rl.demo.processes.orchestrator")

    def next(self, *, policy_version: int) -> Request:
        """Return the next request, with the context of its dispatch span.

        Args:
            policy_version: The newest; determines the steps that may use the samples.
        """
        settings, rng = self._settings, self._rng
        context: Carrier = {}
        version = {"rl.policy.version": policy_version}
        with self._tracer.start_as_current_span(
            "rl.dispatch", kind=SpanKind.PRODUCER, attributes=version
        ):
            propagate.inject(context)
        return Request(
            number=next(self._numbers),
            prompt=task.prompt(rng, min_digits=settings.min_digits, max_digits=settings.max_digits),
            samples=settings.group_size,
            max_tokens=settings.max_completion,
            temperature=float(rng.uniform(*TEMPERATURES)),
            top_p=float(rng.uniform(*TOP_PS)),
            context=context,
        )
