"""Rewards and verdicts of the runs far down the list, each read once."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from otel_rl.bridge.journal.run_reader import read_keys, read_standing
from otel_rl.view.journals import Found, Journals
from otel_rl.view.parts.overview import headline
from otel_rl.view.text import label

__all__ = ["RunResults"]

_BUDGET_S: Final = 0.3  # of one answer
_MOST_KEPT: Final = 2_000
_RECORDS: Final = 4  # the newest of a history


class RunResults:
    """Last reward and verdict of runs, without a trend. One thread.

    Args:
        journals: Of the runs.
        clock_s: Monotonic, in seconds.
    """

    def __init__(
        self, journals: Journals, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._journals = journals
        self._clock_s = clock_s
        self._known: dict[str, tuple[int, dict[str, Any]]] = {}  # by id, with the run's change

    def of(self, runs: Sequence[Found]) -> dict[str, Any]:
        """Return what is known after reading on for a moment, and how many are still unread."""
        until_s = self._clock_s() + _BUDGET_S
        found, unread = {}, 0
        for run in runs:
            known = self._known.get(run.id)
            if known is None or known[0] != run.run.changed_ns:
                if self._clock_s() >= until_s:
                    unread += 1
                    continue
                if len(self._known) >= _MOST_KEPT:
                    self._known.clear()
                known = self._known[run.id] = run.run.changed_ns, self._read(run)
            found[run.id] = known[1]
        return {"runs": found, "unread": unread}

    def _read(self, run: Found) -> dict[str, Any]:
        with run.open() as connection:
            keys = read_keys(connection, run.id)
            standing = read_standing(connection, run.id)
        shown = headline(self._journals.newest(run, records=_RECORDS), keys)
        return {
            "verdict": standing.verdict,
            "cause": label(standing.cause),
            "shown": shown and {**shown, "xs": [], "ys": []},
        }
