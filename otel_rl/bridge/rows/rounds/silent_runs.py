"""Looks at runs without news less often, the more there are.

Time alone closes rows and ends workers, so runs without news are looked at, too. A look takes
0.2 ms: of a few runs in each round, of hundreds that would be more than the rows of the others.
"""

from collections.abc import Container
from typing import Final

from otel_rl.bridge.rows.rounds.elapsed import has_passed
from otel_rl.bridge.rows.rounds.loaded_runs import LoadedRuns
from otel_rl.records import ExperimentKey

__all__ = ["SilentRuns"]

_FEW: Final = 64
_NS_PER_RUN: Final = 2_000_000  # looks take a tenth of the time
_MOST_NS: Final = 1_000_000_000  # a row that time closes is that much later


class SilentRuns:
    """Tells which runs a round leaves out.

    Args:
        runs: In memory.
    """

    def __init__(self, runs: LoadedRuns) -> None:
        self._runs = runs
        self._waiting: Container[ExperimentKey] = ()
        self._looks = True
        self._looked_ns = 0

    def begin(self, waiting: Container[ExperimentKey], now_ns: int) -> None:
        """Begin a round.

        Args:
            waiting: Runs with batches.
            now_ns: The bridge's clock.
        """
        n = len(self._runs.loaded)
        pause_ns = min(n * _NS_PER_RUN, _MOST_NS)
        self._waiting = waiting
        self._looks = n <= _FEW or has_passed(pause_ns, self._looked_ns, now_ns)
        if self._looks:
            self._looked_ns = now_ns

    def leaves_out(self, key: ExperimentKey) -> bool:
        """Return whether this run has no news, and is not looked at in this round."""
        run = None if self._looks else self._runs.loaded.get(key)
        if run is None or key in self._waiting or key in self._runs.unloaded:
            return False
        return not (run.unread or run.aligner.has_more)
