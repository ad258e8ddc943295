"""What a recorder runs: opens journals and does as it is told, one command a line.

    python -m tests.disk.child LOG SYNCHRONOUS

Each answer says how long the log was when the command returned: what the journal promises about the
command must hold in everything that is made of the log from there on.
"""

import json
import sqlite3
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.rows.scheduler import Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Batch, Signal
from tests.disk.model import batch, key, row

# A write-ahead log of a few pages goes into the database all the time, not once in 4 MB.
_CHECKPOINT_PAGES = 12

Answer = dict[str, object]


def drain_of(journal: SqliteJournal) -> Scheduler:
    """A drain that writes every single measurement of every worker into the rows."""
    return Scheduler(
        Spool(journal),
        RunStore(journal),
        AlignSettings(per_worker=True, window_s=1, wait_s=3),
        Counters(),
    )


class Child:
    """One journal at a time."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._directory = Path()
        self._journal: SqliteJournal | None = None
        self._drain: Scheduler | None = None

    def open(self, *, directory: str) -> Answer:
        """Leave what is open, begin the log anew, and open another."""
        self.close()
        with self._log.open("r+") as log:
            log.truncate(0)
        self._directory = Path(directory)
        self._journal = SqliteJournal(self._directory)
        return {}

    def reopen(self) -> Answer:
        self.close()
        self._journal = SqliteJournal(self._directory)
        return {}

    def close(self) -> Answer:
        self._drain = None
        if self._journal is not None:
            self._journal.close()
        return {}

    def append(self, *, requests: Sequence[Sequence[tuple[str, str]]]) -> Answer:
        """Append the batches of several requests, (run, name), at once: they share commits."""
        spool = Spool(self._opened())
        ends = [0] * len(requests)

        def append(place: int) -> None:
            spool.append([batch(run, name) for run, name in requests[place]])
            ends[place] = self.position()

        threads = [threading.Thread(target=append, args=(n,)) for n in range(len(requests))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"ends": ends}

    def commit(self, *, runs: Mapping[str, Sequence[int]], state: str) -> Answer:
        """Commit rows: of each run the first number, how many, and of how many batches."""
        spool, commits, taken = Spool(self._opened()), [], {}
        for run, (first, n, n_batches) in runs.items():
            spooled = spool.read(key(run), max_bytes=1 << 40)[:n_batches]
            taken[run] = [one.batch.payload.decode().rstrip(".") for one in spooled]
            rows = [row(number) for number in range(first, first + n)]
            offsets = [one.offset for one in spooled]
            seen = (first + 1, state.encode())  # of 0 nothing is kept
            commits.append(
                Commit(key(run), rows, first + n, state.encode(), offsets, added={Log.DEDUP: seen})
            )
        RunStore(self._opened()).commit(commits)
        return {"taken": taken}

    def set_aside(self, *, run: str) -> Answer:
        """Set aside the first batch of a run."""
        spooled = Spool(self._opened()).read(key(run), max_bytes=1)
        for one in spooled:
            Spool(self._opened()).set_aside(key(run), one.offset)
        return {"names": [one.batch.payload.decode().rstrip(".") for one in spooled]}

    def prune(self, *, run: str, below: int) -> Answer:
        """Have a tracker confirm rows, and remove them."""
        deliveries = DeliveryStore(self._opened(), "tracker")
        deliveries.confirmed(key(run), below)
        deliveries.prune(key(run), below)
        return {}

    def accept(self, *, run: str, request: str, received_ns: int) -> Answer:
        """Append a request, in hexadecimal digits."""
        payload = bytes.fromhex(request)
        Spool(self._opened()).append([Batch(key(run), Signal.METRICS, payload, received_ns)])
        return {}

    def round(self, *, now_ns: int) -> Answer:
        """One round of a drain."""
        if self._drain is None:
            self._drain = drain_of(self._opened())
        self._drain.round(now_ns)
        return {}

    def position(self) -> int:
        return self._log.stat().st_size

    def _opened(self) -> SqliteJournal:
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
