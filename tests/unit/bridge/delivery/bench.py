"""A delivery under test, with a row source in memory and a reader of what it has written."""

import contextlib
import json
import threading
import time
from collections import Counter as SampleCounts
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

from otel_rl.bridge.counters import Counter
from otel_rl.bridge.delivery.manager import DeliveryManager, DeliverySettings, RunStatus
from otel_rl.bridge.delivery.writer import Writer, WriterProcess
from otel_rl.records import Description, ExperimentKey, KeySpec, Row
from otel_rl.run_id import run_id

DEADLINE_S = 90.0


class Rows:
    """A row source and delivery record in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[ExperimentKey, list[Row]] = {}
        self._kept_from: dict[ExperimentKey, int] = {}
        self.identity = "journal"
        self.room = True
        self.confirmations: dict[ExperimentKey, int] = {}
        self.errors: list[tuple[str, str]] = []
        self.locations: dict[ExperimentKey, str] = {}
        self.descriptions: dict[ExperimentKey, Description] = {}
        self.catalogue: dict[ExperimentKey, list[KeySpec]] = {}

    def add(self, key: ExperimentKey, n: int) -> None:
        with self._lock:
            rows = self._rows.setdefault(key, [])
            first = len(rows)
            rows.extend(
                Row(number=i, step=i, time_ns=10**18 + i * 10**9, values={"x": float(i)})
                for i in range(first, first + n)
            )

    def prune(self, key: ExperimentKey, below: int, /) -> None:
        with self._lock:
            assert below <= self.confirmations.get(key, 0), "unconfirmed rows are removed"
            self._kept_from[key] = below

    def has_room(self, key: ExperimentKey, /) -> bool:
        return self.room

    def lose(self, key: ExperimentKey, below: int) -> None:
        with self._lock:
            self._kept_from[key] = below

    def kept_from(self, key: ExperimentKey) -> int:
        with self._lock:
            return self._kept_from.get(key, 0)

    def reported(self, key: ExperimentKey, state: str, error: str, /) -> None:
        with self._lock:
            self.errors.append((state, error))

    def opened(self, key: ExperimentKey, location: str, /) -> None:
        with self._lock:
            self.locations[key] = location

    def rows(self, key: ExperimentKey, /, *, start: int, limit: int) -> Sequence[Row]:
        with self._lock:
            first = max(start, self._kept_from.get(key, 0))
            return self._rows.get(key, [])[first : first + limit]

    def keys(self, key: ExperimentKey, /) -> Sequence[KeySpec]:
        with self._lock:
            return self.catalogue.get(key, [])

    def is_ours(self, key: ExperimentKey, /) -> bool:
        return True

    def next_row(self, key: ExperimentKey, /) -> int:
        with self._lock:
            return len(self._rows.get(key, []))

    def description(self, key: ExperimentKey, /) -> Description:
        with self._lock:
            return self.descriptions.setdefault(key, Description())

    def confirmed(self, key: ExperimentKey, next_row: int, /) -> None:
        with self._lock:
            self.confirmations[key] = next_row


class Bench:
    """A delivery under test.

    Args:
        directory: Of the trackers' files.
        writer: Makes what drives the tracker of this name. Default: a real process, also for a
            tracker that runs in the bridge; None: what a bridge takes.
    """

    def __init__(
        self, directory: Path, writer: Callable[[str], Writer] | None = WriterProcess
    ) -> None:
        self._writer = writer
        self.source = Rows()
        self.counts: SampleCounts[str] = SampleCounts()
        self.reasons: SampleCounts[str] = SampleCounts()
        self.settings = DeliverySettings(
            tracker="jsonl",
            directory=directory,
            attributes={},
            confirm_interval_s=0.2,
            first_retry_s=0.05,
            max_retry_s=0.5,
        )
        self.ahead_s = 0.0
        """Of the delivery's clock."""
        self.opened: list[tuple[ExperimentKey, str]] = []
        self._delivery: DeliveryManager | None = None

    @property
    def delivery(self) -> DeliveryManager:
        if self._delivery is None:
            self._delivery = DeliveryManager(
                self.source,
                [(self.settings, self.source)],
                self.count,
                writer=self._writer,
                monotonic=lambda: time.monotonic() + self.ahead_s,
                opened=lambda key, location: self.opened.append((key, location)),
            )
        return self._delivery

    def count(
        self,
        counter: Counter,
        n: int = 1,
        *,
        reason: StrEnum | None = None,
        run: ExperimentKey | None = None,
    ) -> None:
        self.counts[counter] += n
        if reason is not None:
            self.reasons[reason] += n

    def feed(self, key: ExperimentKey, n: int) -> None:
        self.source.add(key, n)
        self.delivery.notify(key)

    def describe(self, key: ExperimentKey, description: Description) -> None:
        self.source.descriptions[key] = description
        self.delivery.notify(key)

    def status(self, key: ExperimentKey) -> RunStatus:
        return next(status for status in self.delivery.status() if status.key == key)

    def wait_for(self, key: ExperimentKey, what: Callable[[RunStatus], bool]) -> RunStatus:
        deadline = time.monotonic() + DEADLINE_S
        while not what(status := self.status(key)):
            assert time.monotonic() < deadline, f"waited in vain; it stands at {status}"
            time.sleep(0.02)
        return status

    def wait_until_written(self, key: ExperimentKey) -> RunStatus:
        return self.wait_for(key, lambda status: status.pending == 0)

    def stop(self, *, timeout_s: float = DEADLINE_S, exit_code: int = 0) -> dict[str, RunStatus]:
        if self._delivery is None:
            return {}
        statuses = self._delivery.stop(timeout_s=timeout_s, exit_code=exit_code)
        return {status.key.experiment: status for status in statuses}

    def lines(self, key: ExperimentKey) -> list[int]:
        path = self.settings.directory / f"{run_id(key.experiment, key.trial)}.jsonl"
        if not path.exists():
            return []
        return [json.loads(line)["number"] for line in path.read_text().splitlines()]

    def writer_pid(self, key: ExperimentKey) -> int | None:
        """The process that holds the lock of the run."""
        # The whole path: a test that runs beside this one may write a run of the same name.
        name = f"{run_id(key.experiment, key.trial)}.{self.settings.tracker}.lock"
        lock = (self.settings.directory / "writers" / name).resolve()
        for process in Path("/proc").glob("[0-9]*"):
            if _has_open(process / "fd", lock):
                return int(process.name)
        return None


def _has_open(descriptors: Path, path: Path) -> bool:
    """Whether one of them is of ``path``. Processes and descriptors go at any moment."""
    with contextlib.suppress(OSError):
        for descriptor in descriptors.iterdir():
            with contextlib.suppress(OSError):
                if descriptor.readlink() == path:
                    return True
    return False
