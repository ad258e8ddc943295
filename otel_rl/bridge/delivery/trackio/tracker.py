"""Writes each run to Trackio: its database on this machine, a server or a Space.

The ``log_id`` of a row is the run's id and the row's number. Trackio has a unique index on it and
ignores an entry whose ``log_id`` it has, so rows may be sent again. The position is the first
number that is missing, and rows are safe when a query shows them: a server whose database is locked
answers a write with success, and may drop it.

The run's config has the identity of the journal, and what is known of the run. Trackio takes it
with entries only, so it comes with the next row, or with one that is there already.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from otel_rl.bridge.delivery.storable import storable, storable_text
from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.bridge.delivery.trackio.settings import TrackioSettings
from otel_rl.bridge.delivery.trackio.store import Alert, Entry, LocalStore, RemoteStore, Store
from otel_rl.bridge.tracker_keys import DIAGNOSIS_CAUSE, alert_text
from otel_rl.errors import ConfigError, TrackerRejected, TrackerUnavailable
from otel_rl.records import CONSOLE, Description, Row, Table, Value
from otel_rl.redaction import printable, redacted

__all__ = ["TrackioTracker"]

_JOURNAL: Final = "otel_rl_journal"

_LOOK_S: Final = 0.1  # between two queries while rows wait in the server's memory


class TrackioTracker:
    """Tracker of one Trackio run. See the module."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._settings = TrackioSettings()
        self._place = ""
        self._run_id = ""
        self._journal = ""
        self._next_row = 0
        self._safe_row = 0
        self._progress_s = 0.0  # when ``_safe_row`` grew last, or rows were handed over
        self._systems: list[int] = []  # rows with system metrics that are not known to be safe
        self._config: Mapping[str, Any] | None = None  # not sent yet

    def open(self, run: RunInfo, /) -> int:
        """Ask for the first row that is missing."""
        try:
            self._settings = TrackioSettings.parse(dict(run.attributes))
        except ConfigError as exc:
            raise TrackerRejected(exc.args[0], hint=exc.hint) from exc
        self._run_id, self._journal = run.run_id, run.journal
        project, place = self._settings.project, self._settings.place(os.environ)
        name = run.key.title
        if place:
            self._store = RemoteStore(
                place,
                project,
                name,
                run.run_id,
                write_token=os.environ.get("TRACKIO_WRITE_TOKEN", ""),
                hf_token=os.environ.get("HF_TOKEN"),
            )
        else:
            self._store = LocalStore(project, name, run.run_id)
        self._place = f"{place or _directory()} (project {project}, run {name})"
        self._next_row = self._safe_row = self._first_missing(0, None)
        if self._next_row:
            self._check_journal()
        self.describe(run.description)
        return self._next_row

    def write(self, rows: Sequence[Row], /) -> None:
        """Send the rows, their system metrics and alerts first."""
        if not rows:
            return
        store = self._opened()
        if self._next_row == self._safe_row:
            self._progress_s = time.monotonic()
        systems = [self._system(row) for row in rows if row.devices]
        if systems:
            store.log_system(systems)
            self._systems += [row.number for row in rows if row.devices]
        for row in rows:
            if (words := alert_text(row.labels)) is not None:
                store.alert(self._alert(row, words))
        store.log([self._entry(row) for row in rows], self._config)
        self._config = None
        self._next_row = rows[-1].number + 1

    def describe(self, description: Description, /) -> None:
        """Replace the run's config."""
        self._config = {
            _JOURNAL: self._journal,
            **{key: _stored(value) for key, value in description.config.items()},
            **{key: _stored(value) for key, value in _known(description).items()},
        }
        if self._next_row:
            # One that is there: only the config is taken.
            there = Entry(self._log_id(self._next_row - 1), 0, 0)
            if self._next_row == self._safe_row:
                self._opened().log([there], self._config)
                self._config = None

    def flush(self, *, timeout_s: float) -> int:
        """Ask until every row is there.

        Raises:
            TrackerUnavailable: Trackio has got no row for ``stall_timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            safe = self._first_missing(self._safe_row, self._next_row)
            now_s = time.monotonic()
            if safe > self._safe_row:
                self._safe_row, self._progress_s = safe, now_s
            if safe >= self._next_row:
                break
            if now_s - self._progress_s >= self._settings.stall_timeout_s:
                raise TrackerUnavailable(
                    f"Trackio has taken no row of {self._run_id} after {safe} for "
                    f"{self._settings.stall_timeout_s:g} s, although it answers.",
                    hint="Is its database locked, or its disk full?",
                )
            if now_s >= deadline_s:
                return safe
            time.sleep(min(_LOOK_S, max(0.0, deadline_s - now_s)))
        self._systems.clear()
        if self._config is not None and self._next_row:
            self._opened().log([Entry(self._log_id(self._next_row - 1), 0, 0)], self._config)
            self._config = None
        return self._safe_row

    def location(self) -> str:
        """Return the place, the project and the run."""
        return redacted(self._place)

    def close(self, *, exit_code: int) -> int:  # noqa: ARG002  # Trackio's runs have no end
        """Wait until Trackio has every row."""
        if self._store is not None:
            safe = self.flush(timeout_s=self._settings.stall_timeout_s)
            if safe < self._next_row:
                raise TrackerUnavailable(
                    f"Trackio has {safe} rows of {self._next_row} of {self._run_id}."
                )
            self._store = None
        return self._safe_row

    def _log_id(self, number: int) -> str:
        return f"{self._run_id}:{number}"

    def _entry(self, row: Row) -> Entry:
        values: dict[str, Any] = {_key(key): float(value) for key, value in row.values.items()}
        values["attempt"] = row.attempt
        if row.policy_version is not None:
            values["policy_version"] = row.policy_version
        values["otel_rl/time"] = row.time_ns / 1e9
        values.update((_key(key), printable(text)) for key, text in row.labels.items())
        values.update(
            (_key(key), _table(table)) for key, table in row.tables.items() if key != CONSOLE
        )
        return Entry(self._log_id(row.number), row.step, row.time_ns, values)

    def _system(self, row: Row) -> Entry:
        values = {_key(key): float(value) for key, value in row.devices.items()}
        return Entry(self._log_id(row.number), row.step, row.time_ns, values)

    def _alert(self, row: Row, words: str) -> Alert:
        title = f"{row.labels.get(DIAGNOSIS_CAUSE, 'diagnosis')} at step {row.step}"
        return Alert(self._log_id(row.number), title, printable(words), row.step, row.time_ns)

    def _first_missing(self, first: int, end: int | None) -> int:
        """Return the number of the first row from ``first`` on that Trackio lacks, or ``end``.

        Without an ``end``, the one after its last row.
        """
        if end is None:
            (newest,) = self._numbers("MAX(n) AS newest", "metrics") or ({"newest": None},)
            end = 0 if newest["newest"] is None else int(newest["newest"]) + 1
        low, high = first, end
        if self._has(low, high):
            return high
        while low < high:  # all below ``low`` are there, and one below ``high`` is missing
            middle = (low + high) // 2
            if self._has(low, middle + 1):
                low = middle + 1
            else:
                high = middle
        return low

    def _has(self, first: int, end: int) -> bool:
        """Return whether Trackio has all of these rows, with their system metrics."""
        where = f"WHERE n >= {first} AND n < {end}"
        (found,) = self._numbers("COUNT(*) AS rows", "metrics", where) or ({"rows": 0},)
        systems = sum(first <= number < end for number in self._systems)
        if systems:
            found_systems = self._numbers("COUNT(*) AS rows", "system_metrics", where)
            if not found_systems or int(found_systems[0]["rows"]) < systems:
                return False
        return int(found["rows"]) == end - first

    def _numbers(self, what: str, table: str, where: str = "") -> Sequence[Mapping[str, Any]]:
        """Select from the numbers of the rows of the run."""
        prefix = len(self._run_id) + 2  # of SQL, from 1; after the colon
        return self._opened().query(
            f"SELECT {what} FROM (SELECT CAST(SUBSTR(log_id, {prefix}) AS INTEGER) AS n"  # noqa: S608  # ours
            f" FROM {table} WHERE run_id = '{self._run_id}'"
            f" AND log_id LIKE '{self._run_id}:%') {where}"
        )

    def _check_journal(self) -> None:
        found = self._opened().query(
            f"SELECT json_extract(config, '$.{_JOURNAL}') AS journal"  # noqa: S608  # ours
            f" FROM configs WHERE run_id = '{self._run_id}'"
        )
        written_from = str((found[0]["journal"] if found else None) or "")
        if self._journal and written_from != self._journal:
            raise TrackerRejected(
                f"The Trackio run {self._run_id} has {self._next_row} rows of another journal.",
                hint="Give the trial another name, or start the bridge with the data directory "
                "that the run was written from.",
            )

    def _opened(self) -> Store:
        if self._store is None:
            raise TrackerUnavailable("The Trackio run is not open.")
        return self._store


def _directory() -> str:
    from trackio.utils import TRACKIO_DIR

    return str(TRACKIO_DIR)


def _known(description: Description) -> dict[str, Value]:
    """Return the metadata of the run, apart from its config."""
    crash = description.crash
    known: dict[str, Value] = {
        "notes": description.notes,
        "tags": [*description.tags],
        "group": description.group,
        "job_type": description.job_type,
        "status": str(description.status),
        "hosts": dict(description.hosts),
        "crash": "" if crash is None else f"{crash.as_crash}: {crash.message}".rstrip(": "),
    }
    return {f"otel_rl/{name}": value for name, value in known.items() if value}


def _stored(value: Value) -> Value:
    return storable(value, keeps_nan=True)


def _key(name: str) -> str:
    """Return a name that SQLite and JSON accept: without lone surrogates."""
    return storable_text(name) or "metric"


def _table(table: Table) -> dict[str, Any]:
    """Return a table as ``trackio.Table`` stores itself."""
    columns = [_key(column) for column in table.columns]
    rows = [dict(zip(columns, map(_stored, line), strict=False)) for line in table.rows]
    return {"_type": "trackio.table", "_value": rows}
