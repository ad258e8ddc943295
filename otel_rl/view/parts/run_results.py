"""Rewards and verdicts of the runs far down the list, each read once."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from otel_rl.bridge.journal.reader import read_named_keys
from otel_rl.bridge.rows.stored_run import read_standing
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
        # By id, with the time of the run's last change then; the longest read ago first.
        self._known: dict[str, tuple[int, dict[str, Any]]] = {}

    def of(self, runs: Sequence[Found]) -> dict[str, Any]:
        """Return what is known after reading on for a moment, and how many were never read.

        Those come first, then those that have changed since, the longest read ago first: of runs
        that go on all the time none is forgotten.
        """
        until_s = self._clock_s() + _BUDGET_S
        order = {run_id: place for place, run_id in enumerate(self._known)}
        for run in sorted(runs, key=lambda run: order.get(run.id, -1)):
            known = self._known.get(run.id)
            if known is not None and known[0] == run.run.changed_ns:
                continue
            if self._clock_s() >= until_s:
                break
            self._known.pop(run.id, None)
            self._known[run.id] = run.run.changed_ns, self._read(run)
            if len(self._known) > _MOST_KEPT:
                del self._known[next(iter(self._known))]
        found = {run.id: self._known[run.id][1] for run in runs if run.id in self._known}
        return {"runs": found, "unread": len(runs) - len(found)}

    def _read(self, run: Found) -> dict[str, Any]:
        with run.open() as connection:
            keys = read_named_keys(connection, run.id).specs
            standing = read_standing(connection, run.id)
        shown = headline(self._journals.newest(run, records=_RECORDS), keys)
        return {
            "verdict": standing.verdict,
            "cause": label(standing.cause),
            "shown": shown and {**shown, "xs": [], "ys": []},
        }
