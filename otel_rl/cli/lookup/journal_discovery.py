"""Locates journals for inspection."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.reader import journals_below

__all__ = ["journals", "shared_journal"]


@contextlib.contextmanager
def shared_journal(settings: BridgeSettings) -> Iterator[Journal]:
    """Open the database of ``journal.url`` for the length of the context.

    Raises:
        OtelRLError: It cannot be used.
    """
    with contextlib.closing(settings.journal_place.open()) as journal:
        yield journal


def journals(settings: BridgeSettings) -> Iterator[Path]:
    """Return the paths of journals; `otel-rl run` has one for each run, below that of a bridge."""
    return journals_below(settings.data)
