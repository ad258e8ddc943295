"""Keeps one growing table of all text samples of a name in the summary of a W&B run.

``reward/rollouts/all`` has the newest samples of all steps. The table is in the summary, not in a
row, so it changes neither the rows nor their numbers or axis. W&B keeps every uploaded table as an
artifact for good. So the table is shown again after twice the time, and a row only now and then has
the table of its own step, ``reward/rollouts``: the first row of the steps from 1 on, from 2, from
4, from 8 and so on.

W&B's own incremental tables are no alternative: W&B shows only the last 100 increments, every line
of the history names all increments before it, and a resumed run takes their list from the summary,
which W&B updates apart from the rows, so that repeated rows would be in the table twice.

Offline, a run is written anew from its first row, and its table, too. Online, the samples are also
in a file beside the journal, each with the number of its row: after a kill the samples of repeated
rows are left out. Without the file the table begins anew with the next sample.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rl.bridge.delivery.wandb.metadata import as_table
from otel_rl.records import CONSOLE, Row, Table, Value

if TYPE_CHECKING:
    import wandb

_log = logging.getLogger(__name__)

ALL_STEPS: Final = "/all"
"""Ends the key of a table of all steps."""

MAX_SAMPLES: Final = 2_000
MAX_BYTES: Final = 1 << 20
"""Of the newest samples that a table keeps; W&B's pages show so much well."""

MAX_TABLES: Final = 16

MIN_INTERVAL_S: Final = 15.0
BYTES_PER_S: Final = 10_000
"""A table is uploaded as a whole, so a large one less often."""

MAX_INTERVAL_S: Final = 3_600.0
"""The longest time without the newest samples."""

_STEP, _WORKER = "step", "worker"
_VERSION: Final = "policy_version"


_Octave = tuple[int, int]
"""Attempt, and number of the binary digits of a step."""


@dataclass(slots=True)
class _Growing:
    """One table: its newest samples, and the time when it was last shown.

    ``octaves`` has the number of each octave's first row, which has the table of its step, too.
    """

    samples: deque[tuple[int, Mapping[str, Value], int]] = field(default_factory=deque)
    size: int = 0
    columns: dict[str, None] = field(default_factory=dict)
    is_new: bool = False
    first_shown_s: float | None = None
    shown_s: float = float("-inf")
    octaves: dict[_Octave, int] = field(default_factory=dict)

    def add(self, row: int, columns: Sequence[str], sample: Sequence[Value]) -> None:
        fields = dict(zip(columns, sample, strict=True))
        size = sum(len(value) if isinstance(value, str) else 16 for value in sample)
        self.columns.update(dict.fromkeys(columns))
        self.samples.append((row, fields, size))
        self.size += size
        while len(self.samples) > MAX_SAMPLES or (self.size > MAX_BYTES and len(self.samples) > 1):
            self.size -= self.samples.popleft()[2]
        self.is_new = True

    @property
    def wait_s(self) -> float:
        if self.first_shown_s is None:
            return 0.0
        twice_s = min(self.shown_s - self.first_shown_s, MAX_INTERVAL_S)
        return max(MIN_INTERVAL_S, self.size / BYTES_PER_S, twice_s)

    def table(self) -> Table:
        own = [name for name in self.columns if name not in {_STEP, _VERSION, _WORKER}]
        columns = [_STEP, _VERSION, *own, _WORKER]
        rows = [[fields.get(name) for name in columns] for _, fields, _ in self.samples]
        return Table(columns, rows)


class GrowingTables:
    """Tables of all samples of one opened run. One thread uses it.

    Args:
        upload: Sends a table under its key to the opened run.
        path: File of the samples; None if samples are sent again with the next opening.
        start: Number of the first row that will be sent.
    """

    def __init__(
        self,
        upload: Callable[[str, "wandb.Table"], object],
        path: Path | None,
        start: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upload = upload
        self._path = path
        self._monotonic = monotonic
        self._tables: dict[str, _Growing] = {}
        self._is_full = False
        self._file_bytes = 0
        if path is not None:
            self._restore(path, start)

    def add(self, row: Row) -> Row:
        """Add the samples of a row, show the tables that are due, and return the row to log.

        The returned row lacks tables of samples unless its step is one of the few that have a table
        of their own.
        """
        left_out: set[str] = set()
        for key, table in row.tables.items():
            if key != CONSOLE and [*table.columns[:1], *table.columns[-1:]] == [_STEP, _WORKER]:
                columns = [*table.columns, _VERSION]
                samples = [[*sample, row.policy_version] for sample in table.rows]
                octave = row.attempt, row.step.bit_length()
                if not self._add(row.number, key, columns, samples, octave):
                    left_out.add(key)
                self._keep([row.number, key, columns, samples, octave])
        self.show()
        if not left_out:
            return row
        tables = {key: table for key, table in row.tables.items() if key not in left_out}
        return replace(row, tables=tables)

    def show(self, *, everything: bool = False) -> None:
        """Upload the tables that have new samples and were last uploaded long enough ago."""
        now_s = self._monotonic()
        for key, table in self._tables.items():
            if table.is_new and (everything or now_s - table.shown_s >= table.wait_s):
                self._upload(f"{key}{ALL_STEPS}", as_table(table.table()))
                table.shown_s, table.is_new = now_s, False
                if table.first_shown_s is None:
                    table.first_shown_s = now_s

    def _add(
        self,
        row: int,
        key: str,
        columns: Sequence[str],
        samples: Sequence[Sequence[Value]],
        octave: _Octave | None,
    ) -> bool:
        """Add samples. Returns whether this row shows the first table of its octave."""
        if key not in self._tables and len(self._tables) == MAX_TABLES:
            if not self._is_full:
                self._is_full = True
                _log.warning(
                    "The run has more than %d tables of samples: %s and further ones are only at "
                    "their steps, without a table of all steps.",
                    MAX_TABLES,
                    key,
                )
            return True
        table = self._tables.setdefault(key, _Growing())
        for sample in samples:
            table.add(row, columns, sample)
        return octave is not None and table.octaves.setdefault(octave, row) == row

    def _keep(self, record: Sequence[object]) -> None:
        if self._path is None:
            return
        line = json.dumps(record, separators=(",", ":")) + "\n"
        try:
            with self._path.open("a") as file:
                self._file_bytes += file.write(line)
            if self._file_bytes > 4 * MAX_BYTES * len(self._tables):
                self._rewrite(self._path)
        except OSError as exc:
            self._give_up(exc)

    def _rewrite(self, path: Path) -> None:
        new = path.with_suffix(".samples.new")
        with new.open("w") as file:
            self._file_bytes = 0
            for key, table in self._tables.items():
                octaves = [[row, key, [], [], octave] for octave, row in table.octaves.items()]
                samples = [
                    [row, key, [*fields], [[*fields.values()]], None]
                    for row, fields, _ in table.samples
                ]
                for record in (*octaves, *samples):
                    self._file_bytes += file.write(json.dumps(record, separators=(",", ":")) + "\n")
        new.replace(path)

    def _restore(self, path: Path, start: int) -> None:
        if not start:
            path.unlink(missing_ok=True)  # of an earlier run of this name
            return
        try:
            lines = path.read_text().splitlines() if path.exists() else []
            for line in lines:
                record = _record(line)
                if record is not None and record[0] < start:
                    self._add(*record)
            self._rewrite(path)
        except OSError as exc:
            self._give_up(exc)

    def _give_up(self, exc: OSError) -> None:
        _log.warning(
            "%s: %s. After a restart the tables of all samples of the W&B run begin anew.",
            self._path,
            exc.strerror,
        )
        self._path = None


def _record(
    line: str,
) -> tuple[int, str, Sequence[str], Sequence[Sequence[Value]], _Octave | None] | None:
    """Return the content of a line; None if a crash has cut it."""
    try:
        row, key, columns, samples, octave = json.loads(line)
    except ValueError:
        return None
    is_whole = isinstance(row, int) and isinstance(key, str) and isinstance(columns, list)
    if not is_whole or not all(len(sample) == len(columns) for sample in samples):
        return None
    return row, key, columns, samples, None if octave is None else (octave[0], octave[1])
