"""Failures of one run's delivery: the pause after each, its log line and stored error."""

import logging
import math
from collections.abc import Callable

from otel_rl.bridge.delivery.delivery_interfaces import DeliveryRecord, DeliverySettings, RunState
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey

__all__ = ["Retries"]

_log = logging.getLogger(__name__)

_REPORT_INTERVAL_S = 60.0  # an unavailable tracker is worth one line a minute


class Retries:
    """Pauses, log lines and stored errors of one run. Used by the run's own thread.

    Args:
        key: The run.
        settings: Settings of the delivery.
        record: Stores the error for later status queries; the rows do not depend on it.
        monotonic: Seconds, for intervals.
        jitter: Returns a number in [0, 1) that spreads retries.
    """

    def __init__(
        self,
        key: ExperimentKey,
        settings: DeliverySettings,
        record: DeliveryRecord,
        *,
        monotonic: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._key = key
        self._settings = settings
        self._record = record
        self._monotonic = monotonic
        self._jitter = jitter
        self._failures = 0
        self._logged_at = -math.inf
        self._stored_at = -math.inf
        self._may_be_stored = True  # possibly by the bridge before this one

    def reset(self) -> None:
        """Begin again with the shortest pause."""
        self._failures = 0

    def pause_s(self, state: RunState) -> float:
        """Return the seconds until the next try after one more failure in ``state``."""
        if state is RunState.REJECTED:
            longest = self._settings.rejected_retry_s
        else:
            longest = min(
                self._settings.first_retry_s * (1 << self._failures), self._settings.max_retry_s
            )
            self._failures = min(self._failures + 1, 30)
        return longest * (0.5 + self._jitter() / 2)

    def log(self, exc: Exception, pause_s: float, *, with_trace: bool) -> None:
        """Log a failure, unless one was logged in the last minute."""
        now = self._monotonic()
        if now - self._logged_at < _REPORT_INTERVAL_S:
            return
        self._logged_at = now
        _log.warning(
            "The tracker does not accept the rows of %s: %s They are kept; retrying in %.1f s.",
            self._key,
            exc,
            pause_s,
            exc_info=exc if with_trace else None,
        )

    def store(self, state: RunState, error: str) -> None:
        """Store an error at most once a minute; "" is stored at once, if there may be another."""
        now = self._monotonic()
        if (now - self._stored_at < _REPORT_INTERVAL_S) if error else not self._may_be_stored:
            return
        self._stored_at = now if error else -math.inf
        self._may_be_stored = bool(error)
        try:
            self._record.reported(self._key, state, error)
        except JournalError as exc:
            _log.debug("Cannot store the delivery error of %s: %s", self._key, exc)
