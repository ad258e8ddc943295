"""Progress of an upload to W&B, and detection of stalls."""

import time
from collections.abc import Callable

from otel_rl.errors import TrackerUnavailable

__all__ = ["Upload"]

_POLL_S = 0.5  # between two queries of a waiting call


class Upload:
    """Rows of one opening of a run, between the SDK and the server.

    The SDK reports no upload, and one answered with 401 or 404 stops for good, silently. So the
    server is queried.

    Args:
        run_id: For messages.
        start: All rows below are at the server.
        stall_timeout_s: Longest time without progress at the server while rows are pending.

    Attributes:
        next_row: All rows below were given to the SDK.
        safe_row: All rows below are at the server.
    """

    def __init__(self, run_id: str, start: int, *, stall_timeout_s: float) -> None:
        self.next_row = self.safe_row = start
        self._run_id = run_id
        self._stall_timeout_s = stall_timeout_s
        # Time since which a row is missing at the server.
        self._waiting_since = 0.0

    def begin(self) -> None:
        """Note that rows are about to be given to the SDK."""
        if self.safe_row == self.next_row:
            self._waiting_since = time.monotonic()

    def confirm(self, ask: Callable[[], int]) -> int:
        """Return the first row that the server does not have.

        Args:
            ask: Queries the server for it.

        Raises:
            TrackerUnavailable: The server has taken none for too long.
            TrackerRejected: It refuses the credentials.
        """
        now = time.monotonic()
        try:
            row = ask()
        except TrackerUnavailable as exc:
            # wandb-core keeps the rows and retries by itself; query again.
            row, reason = self.safe_row, str(exc)
        else:
            reason = "Its answers show no error."
        if row > self.next_row:
            raise TrackerUnavailable(
                f"The W&B run {self._run_id} has {row} lines after {self.next_row} rows.",
                hint="Something else writes to it. Give the trial another name.",
            )
        if row > self.safe_row or row == self.next_row:
            self.safe_row, self._waiting_since = row, now
        elif now - self._waiting_since > self._stall_timeout_s:
            raise TrackerUnavailable(
                f"W&B has taken no row of run {self._run_id} for "
                f"{now - self._waiting_since:.0f} s ({self.next_row - row} are waiting). {reason}"
            )
        return self.safe_row

    def wait(self, ask: Callable[[], int], *, timeout_s: float = float("inf")) -> int:
        """Call ``confirm`` until the server has all rows or the timeout."""
        deadline = time.monotonic() + timeout_s
        while self.confirm(ask) < self.next_row and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self.safe_row
