"""Writes ``format_N.sql``: a journal of the format of today, left in the middle of a small run.

And ``format_N.txt``: the fields of the state in it. Run it once for a new format, and keep the
files of the others: ``python -m tests.journals``.
"""

import sqlite3
import tempfile
from pathlib import Path

from otel_rl.bridge.journal.formats.schema import FORMAT
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from tests.journals.fields import fields_of_state
from tests.journals.small_run import (
    ENDED,
    HALF,
    LIVE,
    RANKS,
    STEPS,
    Life,
    S,
    begin,
    end,
    start_ns,
    step,
)


def main() -> None:
    """Write the journal of the format of today beside this file."""
    with tempfile.TemporaryDirectory() as directory:
        _leave(Path(directory))
        connection = sqlite3.connect(Path(directory) / JOURNAL_FILE)
        lines = [*connection.iterdump(), f"PRAGMA user_version={FORMAT};"]
        connection.close()
    path = Path(__file__).with_name(f"format_{FORMAT}.sql")
    path.write_text("\n".join(lines) + "\n")
    path.with_suffix(".txt").write_text(fields_of_state())


def _leave(directory: Path) -> None:
    life = Life(directory)
    for key in (ENDED, LIVE):
        life.take(*(begin(key, rank) for rank in range(RANKS)), now_ns=start_ns(key))
        for number in range(STEPS):
            for rank in range(RANKS):
                if key == ENDED or number < HALF or (number == HALF and rank == 0):
                    now_ns = start_ns(key) + (number + 1) * S
                    life.take(*step(key, rank, number), now_ns=now_ns)
        if key == ENDED:
            end_ns = start_ns(key) + (STEPS + 1) * S
            life.take(*(end(key, rank, end_ns) for rank in range(RANKS)), now_ns=end_ns)
    # Accepted, and in no row yet.
    life.spool.append([begin(LIVE, 0)])
    life.journal.close()


if __name__ == "__main__":
    main()
