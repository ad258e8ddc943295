"""Line counts of a W&B run as the server answers them, and their safe use around ``wandb.init``."""

import logging
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.bridge.delivery.wandb.server_api import RemoteRun, ask, ask_for_summary
from otel_rl.errors import TrackerError, TrackerRejected, TrackerUnavailable

__all__ = ["LineCounts", "RunOnServer"]

_log = logging.getLogger(__name__)

_QUERY_TIMEOUT_S: Final = 10.0  # for one query of the server; it is repeated
_SETTLE_S: Final = 1.0  # an answer from a replica of the server's database may be this old


class LineCounts(NamedTuple):
    """Numbers of lines of a run.

    Attributes:
        rows: Rows of its history.
        console: Lines of its console.
    """

    rows: int = 0
    console: int = 0


class RunOnServer:
    """The server's answers about one run, which only this journal may continue.

    Args:
        account: Server, project and entity.
        run_id: Id of the run.
        journal: Identity of the journal.
    """

    def __init__(self, account: Account, run_id: str, journal: str) -> None:
        self._account = account
        self._run_id = run_id
        self._journal = journal

    def rows(self) -> int:
        """Return the number of rows."""
        return self._ask().lines

    def settled_counts(self) -> LineCounts:
        """Return the line counts of a run before `init`, so old that no later answer can be lower.

        The SDK numbers rows from one answer of the server and places them by another. If an upload
        of a killed writer lands in between, a row would take the line of an earlier one. So the
        counts are queried long enough before `init`, and again long enough after it: if both are
        equal, so were the answers to `init`. Likewise for the lines of the console.

        Raises:
            TrackerRejected: The run has rows of another journal, which must not be continued.
            TrackerUnavailable: It still takes late uploads.
        """
        counts = self._counts()
        if any(counts) and not self.is_settled_at(counts):
            raise TrackerUnavailable(f"The W&B run {self._run_id} still takes late uploads.")
        return counts

    def is_settled_at(self, counts: LineCounts) -> bool:
        """Return whether the line counts are the same a while later, see ``settled_counts``."""
        time.sleep(_SETTLE_S)
        return self._counts() == counts

    def summary(self) -> Mapping[str, object]:
        """Return the run's summary; empty, with a warning, if the server does not answer."""
        try:
            return ask_for_summary(self._account, self._run_id, timeout_s=_QUERY_TIMEOUT_S)
        except TrackerError as exc:  # the rows are worth more than the summary
            _log.warning("The summary of the W&B run %s begins anew: %s", self._run_id, exc)
            return {}

    def _counts(self) -> LineCounts:
        remote = self._ask()
        if remote.lines and self._journal and remote.journal != self._journal:
            raise TrackerRejected(
                f"The W&B run {self._run_id} has {remote.lines} rows of another journal.",
                hint="Give the trial another name, or start the bridge with the data directory "
                "that the run was written from.",
            )
        return LineCounts(remote.lines, remote.console_lines)

    def _ask(self) -> RemoteRun:
        return ask(self._account, self._run_id, timeout_s=_QUERY_TIMEOUT_S)
