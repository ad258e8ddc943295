"""Keys of all runs that a bridge writes into one project of its tracker."""

import logging
import threading
from collections.abc import Collection
from typing import Final

__all__ = ["MAX_KEYS", "ProjectKeys"]

MAX_KEYS: Final = 100_000
"""Keys of a project, by W&B's guidance."""

_log = logging.getLogger(__name__)


class ProjectKeys:
    """Decides which keys find room. Any thread.

    It knows the keys of the runs that were opened since the bridge's start.

    Args:
        most: Keys in the project.
    """

    def __init__(self, most: int = MAX_KEYS) -> None:
        self._most = most
        # _lock guards the two below.
        self._lock = threading.Lock()
        self._known: set[int] = set()  # hashes, which are smaller
        self._is_logged = False

    def take(self, names: Collection[str], *, is_needed: bool) -> bool:
        """Return whether there is room for a value's names, which are then the project's.

        Args:
            names: Under which the value is sent.
            is_needed: True finds room in any case.
        """
        with self._lock:
            new = {hash(name) for name in names} - self._known
            if len(self._known) + len(new) <= self._most:
                self._known |= new
                return True
            is_logged, self._is_logged = self._is_logged, True
        if not is_logged:
            _log.warning(
                "The runs of this bridge have %d keys, the most that W&B advises for a project. "
                "New keys of the basic detail are still sent, others are left out and counted. "
                "Use one project for each kind of run.",
                self._most,
            )
        return is_needed
