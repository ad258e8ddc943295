"""Finds our rows in a W&B run that others write to as well.

The line count of such a run includes other writers' lines. So every row carries its number under a
key of its own, the mark, and the server is queried for the lines that have one: from the last known
one, in pages small enough to be complete.
"""

import hashlib
import json
from dataclasses import dataclass

from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.bridge.delivery.wandb.server_api import config_entry, query
from otel_rl.errors import TrackerUnavailable

__all__ = ["SHARE_IT", "JoinedRun", "Marks", "look_up", "mark_key"]

_RUN_QUERY = """
query JoinedRun($project: String!, $entity: String, $name: String!) {
  project(name: $project, entityName: $entity) {
    run(name: $name) { config historyKeys }
  }
}
"""

_ROWS_QUERY = """
query JoinedRunRows($project: String!, $entity: String, $name: String!, $spec: JSONString!) {
  project(name: $project, entityName: $entity) {
    run(name: $name) { sampledHistory(specs: [$spec]) }
  }
}
"""

_TIMEOUT_S = 10.0  # for one query; it is repeated

_PAGE_STEPS = 1000  # the SDK's own page; with as many samples as steps, none is left out

_FEATURES = "3"  # in the telemetry that the SDK stores in a run's config
SHARED_MODE = 67
"""Number of the feature ``shared_mode`` in it."""

SHARE_IT = (
    "Set WANDB_MODE=shared for the process that calls wandb.init, or let it pass "
    'settings=wandb.Settings(mode="shared", x_primary=True).'
)
"""Remedy for a run that is not shared."""


def mark_key(run: RunInfo) -> str:
    """Return the key of the row number in every row: specific to the run and the journal."""
    source = hashlib.blake2b(f"{run.run_id}/{run.journal}".encode(), digest_size=4)
    return f"otel_rl/row/{source.hexdigest()}"


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """State of a run at the server.

    Attributes:
        is_shared: Whether its owner lets others write to it.
        last_step: W&B's step of its last line, -1 if it has none.
    """

    is_shared: bool
    last_step: int


def look_up(account: Account) -> JoinedRun | None:
    """Query the run that the account joins; None if it does not exist. Raises as ``query``."""
    run = _run(account, "JoinedRun", _RUN_QUERY, {})
    telemetry = _dig(config_entry(run.get("config"), "_wandb"), "t") if run else None
    if run is None or telemetry is None:
        return None  # a run without telemetry was created by a sweep, and has not begun
    features = _dig(telemetry, _FEATURES)
    last_step = _dig(run.get("historyKeys"), "lastStep")
    return JoinedRun(
        isinstance(features, list) and SHARED_MODE in features,
        int(last_step) if isinstance(last_step, int | float) else -1,
    )


class Marks:
    """Finds the first row of ours that a run lacks.

    Args:
        account: Of the run.
        key: The mark.
        row: All rows below are known to be there.
        step: W&B's step of the last of them; where to begin if there is none.

    Attributes:
        row: All rows below are there.
        step: As the argument.
    """

    def __init__(self, account: Account, key: str, *, row: int, step: int) -> None:
        self.row = row
        self.step = step
        self._account = account
        self._key = key
        self._next_step = step
        self._above: set[int] = set()  # row numbers found beyond the next expected one

    def are_there(self) -> bool:
        """Return whether the last row known to be there still is."""
        return not self.row or self.row - 1 in self._page(self.step, self.step).values()

    def read(self, *, handed: int | None = None) -> int:
        """Look for further rows of ours. Raises as ``query``.

        Args:
            handed: All rows below may be there, and no other; None if that is not known.

        Returns:
            ``row``, but at most ``handed``: an earlier writer may have written more.
        """
        run = look_up(self._account)
        if run is None:
            raise TrackerUnavailable(f"The W&B run {self._account.attached_run} is gone.")
        first = self._next_step
        while first <= run.last_step:
            self._take(self._page(first, first + _PAGE_STEPS - 1))
            first += _PAGE_STEPS
        if self.row == handed:
            # Rows handed over from now on come after the present ones.
            self._next_step = max(self._next_step, run.last_step + 1)
        return self.row if handed is None else min(self.row, handed)

    def _take(self, numbers: dict[int, int]) -> None:
        for step, number in sorted(numbers.items()):
            self._next_step = step + 1
            if number >= self.row:
                self._above.add(number)
            while self.row in self._above:
                self._above.remove(self.row)
                self.row += 1
            if number == self.row - 1:
                self.step = step

    def _page(self, first: int, last: int) -> dict[int, int]:
        """Map W&B's steps to row numbers, for marked lines between two steps, inclusive."""
        spec = {
            "keys": [self._key, "_step"],
            "minStep": first,
            "maxStep": last,
            "samples": _PAGE_STEPS,
        }
        run = _run(self._account, "JoinedRunRows", _ROWS_QUERY, {"spec": json.dumps(spec)})
        pages = run.get("sampledHistory") if run else None
        lines = [line for page in pages or () for line in page] if isinstance(pages, list) else []
        return {
            int(line["_step"]): int(line[self._key])
            for line in lines
            if isinstance(line, dict) and self._key in line and "_step" in line
        }


def _run(
    account: Account, operation: str, text: str, variables: dict[str, str]
) -> dict[str, object] | None:
    of_run = {
        "project": account.project,
        "entity": account.entity or None,
        "name": account.attached_run,
    }
    data = query(account, operation, text, {**of_run, **variables}, timeout_s=_TIMEOUT_S)
    run = _dig(_dig(data, "project"), "run")
    return run if isinstance(run, dict) else None


def _dig(found: object, name: str) -> object:
    return found.get(name) if isinstance(found, dict) else None
