"""How a sample ends: the words of ``rl.sample.outcome``, and what they mean for learning."""

from typing import Final

from otel_rl.semconv.names import RlSampleOutcomeValues as Outcome

__all__ = ["EFFECTIVE", "FAILED", "Outcome"]

FAILED: Final = frozenset({Outcome.TIMEOUT, Outcome.GRADER_FAILED, Outcome.ENVIRONMENT_FAILED})
"""Outcomes by which infrastructure failed, not the policy: a reward of 0 says nothing of it."""

EFFECTIVE: Final = frozenset({Outcome.TRAINED, Outcome.TRUNCATED})
"""Outcomes of samples that carry a learning signal: they have part in the update."""
