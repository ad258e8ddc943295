"""Shares of the samples and requests of a run whose result was thrown away. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import field

from otel_rl.bridge.journal.state import Number, Stored
from otel_rl.bridge.rows.series.streams import Group
from otel_rl.semconv import names
from otel_rl.semconv.names import RlOutcomeValues

__all__ = ["ThrownAway"]

_ABORTED: Final = "aborted"

_COUNTED: Final = frozenset(
    {
        names.RL_GENERATOR_REQUESTS,
        names.RL_REPLAY_BUFFER_EVICTIONS,
        names.RL_REPLAY_BUFFER_WRITES,
        names.RL_SAMPLE_DROPPED,
        names.RL_SAMPLE_SAMPLES,
    }
)

_REASONS: Final = ("finished_reason", "finish_reason")
"""Attributes of inference servers."""


class ThrownAway(Stored):
    """Counts of the run so far.

    Attributes:
        counted: By the name of the counter; aborted requests by ``aborted``.
    """

    counted: dict[str, Number] = field(default_factory=dict)

    def count(self, group: Group, growth: float) -> None:
        """Add the growth of a worker's counter."""
        if group.name not in _COUNTED or not 0 < growth < float("inf"):
            return
        self._add(group.name, growth)
        if group.name == names.RL_GENERATOR_REQUESTS and _is_aborted(dict(group.attributes)):
            self._add(_ABORTED, growth)

    @property
    def samples(self) -> float:
        """Return the share of the samples that were not trained on."""
        dropped = self._most(names.RL_REPLAY_BUFFER_EVICTIONS, names.RL_SAMPLE_DROPPED)
        return _share(dropped, self._most(names.RL_SAMPLE_SAMPLES, names.RL_REPLAY_BUFFER_WRITES))

    @property
    def requests(self) -> float:
        """Return the share of the requests that were aborted or have failed."""
        return _share(self._most(_ABORTED), self._most(names.RL_GENERATOR_REQUESTS))

    def _add(self, name: str, growth: float) -> None:
        self.counted[name] = self.counted.get(name, 0.0) + growth

    def _most(self, *counters: str) -> float:
        return max(self.counted.get(name, 0.0) for name in counters)


def _is_aborted(attributes: Mapping[str, str]) -> bool:
    outcome = attributes.get(names.RL_OUTCOME, RlOutcomeValues.SUCCESS)
    is_cut = any(attributes.get(name) == "abort" for name in _REASONS)
    return is_cut or outcome != RlOutcomeValues.SUCCESS


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0
