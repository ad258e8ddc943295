"""What a recorder runs: opens journals and does as it is told, one command a line.

    python -m tests.disk.child LOG SYNCHRONOUS

Each answer says how long the log was when the command returned: what the journal promises about the
command must hold in everything that is made of the log from there on.
"""

import json
import sqlite3
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from otel_rl.bridge.journal import Journal
from otel_rl.bridge.ledger import Commit, Ledger
from otel_rl.bridge.spool import Spool
from otel_rl.records import Offset
from tests.disk.model import batch, key, row

# A write-ahead log of a few pages goes into the database all the time, not once in 4 MB.
_CHECKPOINT_PAGES = 12


class Child:
    """One journal at a time."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._directory = Path()
        self._journal: Journal | None = None

    def open(self, *, directory: str) -> dict[str, object]:
        """Leave what is open, begin the log anew, and open another."""
        self.close()
        with self._log.open("r+") as log:
            log.truncate(0)
        self._directory = Path(directory)
        self._journal = Journal(self._directory)
        return {}

    def reopen(self) -> dict[str, object]:
        self.close()
        self._journal = Journal(self._directory)
        return {}

    def close(self) -> dict[str, object]:
        if self._journal is not None:
            self._journal.close()
        return {}

    def append(self, *, names: Sequence[str]) -> dict[str, object]:
        """Append all at once, so that they share commits."""
        spool = Spool(self._opened())
        ends = [0] * len(names)
        offsets = [0] * len(names)

        def append(place: int) -> None:
            offsets[place] = spool.append(batch(names[place]))
            ends[place] = self.position()

        threads = [threading.Thread(target=append, args=(place,)) for place in range(len(names))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"offsets": offsets, "ends": ends}

    def commit(
        self, *, runs: Sequence[tuple[str, int, int]], state: str, through: int
    ) -> dict[str, object]:
        """Commit rows, by run its name, first number and how many, and remove batches."""
        commits = [
            Commit(key(name), [row(number) for number in range(first, first + n)], first + n, state)
            for name, first, n in runs
        ]
        Ledger(self._opened()).commit(commits, read_through=Offset(through))
        return {}

    def position(self) -> int:
        return self._log.stat().st_size

    def _opened(self) -> Journal:
        assert self._journal is not None
        return self._journal


def _patch(synchronous: str) -> None:
    """Checkpoint often, and trust the disk as the test says."""

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            if sql == "PRAGMA synchronous=FULL":
                super().execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
                sql = f"PRAGMA synchronous={synchronous}"
            return super().execute(sql, *parameters)  # type: ignore[arg-type]  # as given

    connect = sqlite3.connect

    def patched(*args: object, **kwargs: object) -> sqlite3.Connection:
        return connect(*args, factory=Connection, **kwargs)  # type: ignore[call-overload,no-any-return]  # as given

    sqlite3.connect = patched  # type: ignore[assignment]  # it is called as the original


def main(commands: TextIO, log: Path, synchronous: str) -> None:
    _patch(synchronous)
    child = Child(log)
    for line in commands:
        arguments = json.loads(line)
        try:
            answer = getattr(child, arguments.pop("command"))(**arguments)
            answer.setdefault("end", child.position())
        except Exception as exc:  # noqa: BLE001  # the parent is told
            answer = {"error": repr(exc)}
        print(json.dumps(answer), flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    main(sys.stdin, Path(sys.argv[1]), sys.argv[2])
