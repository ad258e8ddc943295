"""Locates journals for inspection."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.opening import open_journal
from otel_rl.bridge.journal.reader import journals_below

__all__ = ["journals", "shared_journal"]


@contextlib.contextmanager
def shared_journal(settings: BridgeSettings) -> Iterator[Journal]:
    """Open the database of ``journal.url`` for the length of the context.

    Raises:
        OtelRLError: It cannot be used.
    """
    url = settings.journal.url
    journal = open_journal(
        settings.data,
        None if url is None else url.get_secret_value(),
        max_bytes=settings.journal.max_bytes,
        connections=1,
    )
    with contextlib.closing(journal):
        yield journal


def journals(settings: BridgeSettings) -> Iterator[Path]:
    """Return the paths of journals; `otel-rl run` has one for each run, below that of a bridge."""
    return journals_below(settings.data)
