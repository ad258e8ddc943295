"""Throughput of a journal: one SQLite file beside one PostgreSQL server on the same disk.

    .venv/bin/python -m bench.journal

Threads append batches of one run, each waiting for its batch to be durable, as requests do; then
they are read and removed as the row thread does. The server syncs its log, as by default.
"""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.places import open_journal
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.records import Batch, ExperimentKey, Signal
from tests.support.postgres import PostgresServer

KEY = ExperimentKey("bench")
SIZES = (4 << 10, 64 << 10)
THREADS = (1, 8, 32)
SECONDS = 3.0


@contextlib.contextmanager
def _journals() -> Iterator[dict[str, Journal]]:
    with tempfile.TemporaryDirectory() as directory, PostgresServer(fsync=True) as server:
        journals = {
            "SQLite": open_journal(Path(directory), None, max_bytes=1 << 40),
            "PostgreSQL": open_journal(Path(directory), server.new_url(), max_bytes=1 << 40),
        }
        yield journals
        for journal in journals.values():
            journal.close()


def _appended(journal: Journal, size: int, threads: int) -> tuple[float, float]:
    """Return batches a second, and milliseconds for each of them as its sender sees it."""
    payload, counts, spool = os.urandom(size), [0] * threads, Spool(journal)
    end = time.monotonic() + SECONDS

    def append(place: int) -> None:
        while time.monotonic() < end:
            spool.append([Batch(KEY, Signal.METRICS, payload, 0)])
            counts[place] += 1

    _in_threads(append, threads)
    rate = sum(counts) / SECONDS
    return rate, threads / rate * 1e3


def _in_threads(work: Callable[[int], None], threads: int) -> None:
    workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _taken(journal: Journal) -> float:
    """Return batches a second that the row thread reads and removes, in rounds of 8 MiB."""
    spool, run_store = Spool(journal), RunStore(journal)
    begin, n = time.monotonic(), 0
    while found := spool.read(KEY, max_bytes=8 << 20):
        run_store.commit([Commit(KEY, (), 0, b"x" * 100_000, [one.offset for one in found])])
        n += len(found)
    return n / (time.monotonic() - begin)


def main() -> None:
    with _journals() as journals:
        print(f"{'':12}{'bytes':>8}{'threads':>9}{'batches/s':>11}{'ms each':>9}{'taken/s':>9}")
        for size in SIZES:
            for threads in THREADS:
                for name, journal in journals.items():
                    rate, wait_ms = _appended(journal, size, threads)
                    taken = _taken(journal)
                    line = (
                        f"{name:12}{size:>8}{threads:>9}{rate:>11.0f}{wait_ms:>9.1f}{taken:>9.0f}"
                    )
                    print(line)


if __name__ == "__main__":
    main()
