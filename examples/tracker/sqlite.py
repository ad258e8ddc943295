"""Writes each run to ``runs.db``: a table of rows, one of values, one of runs."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from otel_rl.bridge.delivery.tracker import RunInfo, TrackerKind
from otel_rl.errors import ConfigError, TrackerRejected, TrackerUnavailable
from otel_rl.records import Description, Row

TABLES = """
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, journal TEXT, status TEXT, config TEXT);
CREATE TABLE IF NOT EXISTS rows (run TEXT, number INTEGER, step INTEGER, attempt INTEGER,
  time_ns INTEGER, policy_version INTEGER, PRIMARY KEY (run, number));
CREATE TABLE IF NOT EXISTS "values" (run TEXT, number INTEGER, key TEXT, value TEXT,
  PRIMARY KEY (run, number, key));
"""


@contextmanager
def translated() -> Iterator[None]:
    """Raise TrackerUnavailable for whatever may be over later: the bridge tries again."""
    try:
        yield
    except sqlite3.Error as exc:
        raise TrackerUnavailable(f"runs.db: {exc}.", hint="Check its disk.") from exc


class SqliteTracker:
    """Writes one run."""

    def open(self, run: RunInfo) -> int:
        """Connect, and return the number of the first row that is missing."""
        self.run, self.path = run.run_id, run.directory / "runs.db"
        with translated():
            self.db = sqlite3.connect(self.path, timeout=30)
            self.db.executescript(TABLES)
            # The position is what is there: the rows from it on are written again after a crash.
            (newest,) = self.db.execute(
                "SELECT COALESCE(MAX(number), -1) FROM rows WHERE run = ?", [self.run]
            ).fetchone()
            self.next_row = int(newest) + 1
            found = self.db.execute("SELECT journal FROM runs WHERE run = ?", [self.run]).fetchone()
        if found and self.next_row and run.journal not in ("", found[0]):
            raise TrackerRejected(
                f"runs.db: the run {self.run} has rows of another journal.",
                hint="Give the trial another name.",
            )
        with translated(), self.db:
            self.db.execute("DELETE FROM runs WHERE run = ?", [self.run])
            self.db.execute(
                "INSERT INTO runs (run, journal) VALUES (?, ?)", [self.run, run.journal]
            )
        self.describe(run.description)
        return self.next_row

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows; those that are there already stay as they are."""
        # REPLACE and the primary keys make a row that comes again replace itself.
        with translated(), self.db:
            for row in rows:
                axes = [row.step, row.attempt, row.time_ns, row.policy_version]
                self.db.execute(
                    "REPLACE INTO rows VALUES (?, ?, ?, ?, ?, ?)", [self.run, row.number, *axes]
                )
                self.db.executemany(
                    'REPLACE INTO "values" VALUES (?, ?, ?, ?)',
                    # As texts: SQLite has no NaN.
                    [(self.run, row.number, key, repr(v)) for key, v in row.values.items()],
                )
        self.next_row = rows[-1].number + 1 if rows else self.next_row

    def describe(self, description: Description) -> None:
        """Store status and config."""
        with translated(), self.db:
            self.db.execute(
                "UPDATE runs SET status = ?, config = ? WHERE run = ?",
                [str(description.status), json.dumps(description.config), self.run],
            )

    def flush(self, *, timeout_s: float) -> int:
        """Return the number of the first row that is not yet safe."""
        return self.next_row  # SQLite has synced what it has committed

    def location(self) -> str:
        """Return where the run is."""
        return str(self.path)

    def close(self, *, exit_code: int) -> int:
        """Close the file and return the position."""
        self.db.close()
        return self.next_row


def validate(attributes: Mapping[str, str]) -> None:
    """Raise ConfigError for an unknown option."""
    for name in attributes:
        raise ConfigError(f"sqlite.{name}: unknown setting.", hint="There are none.")


KIND = TrackerKind("sqlite", lambda run: SqliteTracker(), validate, lacks="tables and texts")
