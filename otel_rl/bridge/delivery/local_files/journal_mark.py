"""File beside the rows of a run that names the journal that they came from."""

import os
from pathlib import Path

from otel_rl.errors import TrackerRejected

__all__ = ["check_journal"]


def check_journal(mark: Path, journal: str, *, rows: int, place: Path, kind: str) -> None:
    """Refuse to append to the rows of another journal; mark a place without rows.

    Args:
        mark: File that names the journal.
        journal: The present journal; empty to accept any.
        rows: Number of rows that are there.
        place: File or directory of the rows, for the message.
        kind: "file" or "directory".

    Raises:
        TrackerRejected: There are rows of another journal.
        OSError: The mark cannot be read or written.
    """
    written_from = mark.read_text().strip() if mark.exists() else ""
    if not journal or written_from == journal:
        return
    if rows:
        raise TrackerRejected(
            f"{place}: has {rows} rows of another journal.",
            hint=f"Give the trial another name, move the {kind} away, or start the bridge with "
            "the data directory that it was written from.",
        )
    with mark.open("w") as file:
        file.write(f"{journal}\n")
        file.flush()
        os.fsync(file.fileno())
