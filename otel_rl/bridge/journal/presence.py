"""Presence of the journal: nothing is acknowledged while it is not where it was."""

import logging

from otel_rl.errors import JournalGone

__all__ = ["JournalPresence"]

_log = logging.getLogger(__name__)


class JournalPresence:
    """Last known presence of a journal's files or tables. Any thread may call any method."""

    def __init__(self) -> None:
        self._gone: JournalGone | None = None

    @property
    def problem(self) -> str:
        """Return why the bridge accepts nothing until an operator acts; empty if it does."""
        gone = self._gone
        return "" if gone is None else str(gone)

    def gone(self, exc: JournalGone) -> None:
        """Note that the journal was removed or replaced. The first time is logged."""
        is_news, self._gone = self._gone is None, exc
        if is_news:
            _log.error("%s", exc)

    def there(self) -> None:
        """Note that the journal was used, and may have been put back."""
        if self._gone is not None:
            self._gone = None
            _log.warning("The journal is back. Requests are accepted again.")
