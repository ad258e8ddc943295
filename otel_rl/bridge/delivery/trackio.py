"""Writes each run to Trackio: the database on this machine, a server, or a Space.

The ``log_id`` of an entry is the run's id and the row's number. Trackio has a unique index on it
and ignores an entry whose ``log_id`` it has, so rows may be sent again. The position is the first
missing number, and rows are safe when a query shows them: a server whose database is locked reports
success for a write that it may drop.

The run's config holds the identity of the journal, and the run's metadata. Trackio takes a config
with entries only, so it goes with the next row, or with an entry that Trackio has already.

The database, a server and a Space take the same entries and answer the same queries.
"""

import importlib.util
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from otel_rl.bridge.delivery.texts import metadata_of, storable, storable_text
from otel_rl.bridge.delivery.tracker import (
    CheckResult,
    RunInfo,
    Tracker,
    TrackerKind,
    check_server,
    check_settings,
    check_writable,
    parse_options,
)
from otel_rl.bridge.delivery.wandb.account import without_key
from otel_rl.bridge.keys import DIAGNOSIS_CAUSE, alert_text
from otel_rl.errors import ConfigError, MissingExtra, TrackerRejected, TrackerUnavailable
from otel_rl.records import CONSOLE, Description, Row, Table, Value
from otel_rl.redaction import printable, redacted

_PROJECT: Final = "otel_rl"
_TOKEN_HINT: Final = "Set TRACKIO_WRITE_TOKEN to the server's, or for a Space HF_TOKEN."  # noqa: S105  # no token

_JOURNAL: Final = "otel_rl_journal"

_LOOK_S: Final = 0.1  # between two queries while rows wait in the server's memory

_MAX_ENTRIES: Final = 100  # of a request
_TIMEOUT_S: Final = 30.0
_REFUSED: Final = frozenset({400, 401, 403, 404, 405, 422})


@dataclass(frozen=True, slots=True)
class TrackioSettings:
    """Options of the Trackio tracker.

    Attributes:
        project: Name of the project; ``{project}`` in it stands for what the program names, else
            ``otel_rl``.
        server_url: URL of the server, ``http://HOST:7860``. Empty for ``TRACKIO_SERVER_URL``.
        space_id: Name of the Space, ``user/space``. Empty for ``TRACKIO_SPACE_ID``, else the
            database in ``TRACKIO_DIR``.
        stall_timeout_s: Seconds without a new row after which the run is reopened.
    """

    project: str = _PROJECT
    server_url: str = ""
    space_id: str = ""
    stall_timeout_s: float = 30.0

    @classmethod
    def parse(cls, attributes: Mapping[str, str]) -> "TrackioSettings":
        """Read the attributes of a run.

        Raises:
            ConfigError: An option's name is unknown, or its value is wrong.
        """
        settings = parse_options("trackio", cls, attributes, secret_hint=_TOKEN_HINT)
        project = settings.project.replace("{project}", _PROJECT)
        settings = replace(settings, project=project)
        url = settings.server_url or os.environ.get("TRACKIO_SERVER_URL", "")
        if url and urlsplit(url).scheme not in ("http", "https"):
            raise ConfigError(
                f'trackio.server_url: must start with http:// or https:// (got "{redacted(url)}").'
            )
        return settings

    def place(self, environ: Mapping[str, str]) -> str:
        """Return the server's URL or the Space; empty for the database of this machine."""
        if self.server_url or self.space_id:
            return self.server_url or self.space_id
        return environ.get("TRACKIO_SERVER_URL") or environ.get("TRACKIO_SPACE_ID") or ""


_Json = Mapping[str, Any]
"""An entry of the run, its system metrics or an alert: as Trackio's server takes it, without the
run. ``log_id`` or ``alert_id`` is unique in the project: a second one of it is ignored.
"""


class _Store(Protocol):
    """One run in a project. Every call may raise TrackerUnavailable or TrackerRejected."""

    def log(self, entries: Sequence[_Json], config: _Json | None = None, /) -> None:
        """Add entries, and replace the run's config if one is given."""
        ...

    def log_system(self, entries: Sequence[_Json], /) -> None: ...

    def alert(self, alert: _Json, /) -> None: ...

    def query(self, sql: str, /) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a SELECT; none if the project does not exist."""
        ...


class _LocalStore:
    def __init__(self, project: str, run: str, run_id: str) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        self._sqlite = SQLiteStorage
        self._project = project
        self._run: dict[str, Any] = {"project": project, "run": run, "run_id": run_id}
        try:
            SQLiteStorage.validate_project_name(project)
        except ValueError as exc:
            raise _refused(str(exc)) from exc

    def log(self, entries: Sequence[_Json], config: _Json | None = None, /) -> None:
        with _local():
            self._sqlite.bulk_log(
                **self._run,
                metrics_list=_each(entries, "metrics"),
                steps=_each(entries, "step"),
                timestamps=_each(entries, "timestamp"),
                log_ids=_each(entries, "log_id"),
                config=None if config is None else dict(config),
            )

    def log_system(self, entries: Sequence[_Json], /) -> None:
        with _local():
            self._sqlite.bulk_log_system(
                **self._run,
                metrics_list=_each(entries, "metrics"),
                timestamps=_each(entries, "timestamp"),
                log_ids=_each(entries, "log_id"),
            )

    def alert(self, alert: _Json, /) -> None:
        lists: dict[str, Any] = {f"{name}s": [value] for name, value in alert.items()}
        with _local():
            self._sqlite.bulk_alert(**self._run, **lists)

    def query(self, sql: str, /) -> Sequence[Mapping[str, Any]]:
        with _local():
            if not self._sqlite.get_project_db_path(self._project).exists():
                return ()
            rows: list[dict[str, Any]] = self._sqlite.query_project(self._project, sql)["rows"]
            return rows


class _RemoteStore:
    """A server, or a Space.

    Args:
        place: URL or ``user/space``.
        project: Name of the Trackio project.
        run_id: The bridge's id of the run.
        write_token: Token of the server; empty for the token in the URL.
        hf_token: Token of Hugging Face, for a Space; None for the token of its login.

    Raises:
        TrackerUnavailable: The server does not answer.
    """

    def __init__(
        self,
        place: str,
        project: str,
        run: str,
        run_id: str,
        *,
        write_token: str = "",
        hf_token: str | None = None,
    ) -> None:
        self._project = project
        self._run: dict[str, Any] = {"project": project, "run": run, "run_id": run_id}
        self._hf_token = hf_token
        self._place = redacted(place)
        with self._translated():
            if place.startswith("http"):
                self._check_reachable(place)
            from trackio.remote_client import RemoteClient

            self._client = RemoteClient(
                place,
                hf_token=hf_token,
                write_token=write_token or None,
                httpx_kwargs={"timeout": _TIMEOUT_S},
            )

    def log(self, entries: Sequence[_Json], config: _Json | None = None, /) -> None:
        """See ``_Store``. The server takes no event times."""
        known = {"config": None if config is None else _json(config)}
        self._send("/bulk_log", [{**entry, **known} for entry in entries])

    def log_system(self, entries: Sequence[_Json], /) -> None:
        self._send("/bulk_log_system", entries)

    def alert(self, alert: _Json, /) -> None:
        self._call("/bulk_alert", alerts=[{**self._run, **alert}], hf_token=self._hf_token)

    def query(self, sql: str, /) -> Sequence[Mapping[str, Any]]:
        try:
            found = self._call("/query_project", project=self._project, query=sql)
        except TrackerUnavailable as exc:
            if f"'{self._project}' not found" in exc.args[0]:
                return ()
            raise
        rows: list[dict[str, Any]] = found["rows"]
        return rows

    def _send(self, api_name: str, entries: Sequence[_Json]) -> None:
        for start in range(0, len(entries), _MAX_ENTRIES):
            logs = [
                {**self._run, **entry, "metrics": _json(entry["metrics"])}
                for entry in entries[start : start + _MAX_ENTRIES]
            ]
            self._call(api_name, logs=logs, hf_token=self._hf_token)

    def _call(self, api_name: str, **arguments: object) -> Any:  # JSON
        with self._translated():
            return self._client.predict(api_name=api_name, **arguments)

    def _check_reachable(self, url: str) -> None:
        """Raise if the server is unreachable; the client would try another protocol for long."""
        import httpx
        from trackio.utils import parse_trackio_server_url

        base, _ = parse_trackio_server_url(url)
        httpx.get(f"{base.rstrip('/')}/version", timeout=_TIMEOUT_S).raise_for_status()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.HTTPStatusError as exc:
            words, status = _words(exc.response), exc.response.status_code
            if status in _REFUSED:
                raise _refused(words) from exc
            raise TrackerUnavailable(f"Trackio at {self._place} answers {status}: {words}") from exc
        except (httpx.HTTPError, OSError) as exc:  # ConnectionError is an OSError
            raise TrackerUnavailable(
                f"Trackio at {self._place} cannot be reached ({_line(exc)})."
            ) from exc
        except (RuntimeError, ValueError) as exc:
            raise _refused(_line(exc)) from exc


class TrackioTracker:
    """Tracker of one Trackio run; see the module's docstring."""

    def __init__(self) -> None:
        self._store: _Store | None = None
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
        self._settings = TrackioSettings.parse(dict(run.attributes))
        self._run_id, self._journal = run.run_id, run.journal
        project, place = self._settings.project, self._settings.place(os.environ)
        name = run.key.title
        if place:
            self._store = _RemoteStore(
                place,
                project,
                name,
                run.run_id,
                write_token=os.environ.get("TRACKIO_WRITE_TOKEN", ""),
                hf_token=os.environ.get("HF_TOKEN"),
            )
        else:
            self._store = _LocalStore(project, name, run.run_id)
        self._place = f"{place or _directory()} (project {project}, run {name})"
        self._next_row = self._safe_row = self._first_missing(0, None)
        if self._next_row:
            self._check_journal()
        self.describe(run.description)
        return self._next_row

    def write(self, rows: Sequence[Row], /) -> None:
        """Send the rows; their system metrics and alerts are sent first."""
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
        self._config = {
            _JOURNAL: self._journal,
            **{key: _stored(value) for key, value in description.config.items()},
            **{f"otel_rl/{key}": _stored(value) for key, value in metadata_of(description).items()},
        }
        if self._next_row and self._next_row == self._safe_row:
            self._send_config()

    def flush(self, *, timeout_s: float) -> int:
        """Ask until Trackio has every row, or the timeout has passed."""
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
            self._send_config()
        return self._safe_row

    def location(self) -> str:
        return redacted(self._place)

    def close(self, *, exit_code: int) -> int:  # noqa: ARG002  # Trackio's runs have no end
        if self._store is not None:
            safe = self.flush(timeout_s=self._settings.stall_timeout_s)
            if safe < self._next_row:
                raise TrackerUnavailable(
                    f"Trackio has {safe} rows of {self._next_row} of {self._run_id}."
                )
            self._store = None
        return self._safe_row

    def _send_config(self) -> None:
        """Send the config with an entry that Trackio has, so that only the config counts."""
        there = Row(self._next_row - 1, 0, 0)
        self._opened().log([self._of(there, {})], self._config)
        self._config = None

    def _of(self, row: Row, metrics: Mapping[str, Any]) -> _Json:
        return {
            "log_id": f"{self._run_id}:{row.number}",
            "step": row.step,
            "timestamp": _iso(row.time_ns),
            "metrics": metrics,
        }

    def _entry(self, row: Row) -> _Json:
        values: dict[str, Any] = {_key(key): float(value) for key, value in row.values.items()}
        values["attempt"] = row.attempt
        if row.policy_version is not None:
            values["policy_version"] = row.policy_version
        values["otel_rl/time"] = row.time_ns / 1e9
        values.update((_key(key), printable(text)) for key, text in row.labels.items())
        values.update(
            (_key(key), _table(table)) for key, table in row.tables.items() if key != CONSOLE
        )
        return self._of(row, values)

    def _system(self, row: Row) -> _Json:
        return self._of(row, {_key(key): float(value) for key, value in row.devices.items()})

    def _alert(self, row: Row, words: str) -> _Json:
        return {
            "alert_id": f"{self._run_id}:{row.number}",
            "title": f"{row.labels.get(DIAGNOSIS_CAUSE, 'diagnosis')} at step {row.step}",
            "text": printable(words),
            "level": "warn",
            "step": row.step,
            "timestamp": _iso(row.time_ns),
        }

    def _first_missing(self, first: int, end: int | None) -> int:
        """Return the number of the first row from ``first`` on that Trackio lacks, or ``end``.

        Without an ``end``, return the number after Trackio's last row at most.
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

    def _opened(self) -> _Store:
        if self._store is None:
            raise TrackerUnavailable("The Trackio run is not open.")
        return self._store


def _directory() -> str:
    from trackio.utils import TRACKIO_DIR

    return str(TRACKIO_DIR)


def _stored(value: Value) -> Value:
    return storable(value, keeps_nan=True)


def _key(name: str) -> str:
    """Return a name without lone surrogates, which SQLite and JSON refuse."""
    return storable_text(name) or "metric"


def _table(table: Table) -> dict[str, Any]:
    """Return a table in the form in which ``trackio.Table`` stores itself."""
    columns = [_key(column) for column in table.columns]
    rows = [dict(zip(columns, map(_stored, line), strict=False)) for line in table.rows]
    return {"_type": "trackio.table", "_value": rows}


def _each(entries: Sequence[_Json], name: str) -> list[Any]:
    return [entry[name] for entry in entries]


@contextmanager
def _local() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise TrackerUnavailable(f"Trackio's database: {exc}.") from exc
    except (OSError, TimeoutError) as exc:
        raise TrackerUnavailable(
            f"Trackio's database cannot be written ({_line(exc)}).",
            hint="Check TRACKIO_DIR, and the room on its disk.",
        ) from exc


def _refused(words: str) -> TrackerRejected:
    is_token = "token" in words.lower()
    hint = _TOKEN_HINT if is_token else "Choose another project with the option project."
    return TrackerRejected(f"Trackio refuses the run: {words.rstrip('.')}.", hint=hint)


def _words(response: Any) -> str:  # of httpx
    try:
        answer = response.json()
        words = str(answer["error"])
    except (ValueError, KeyError, TypeError):
        words = str(response.text)
    return redacted(words.partition("\n")[0])[:500]


def _line(exc: Exception) -> str:
    return redacted(str(exc).partition("\n")[0] or type(exc).__name__)


def _iso(time_ns: int) -> str:
    seconds, rest_ns = divmod(time_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest_ns // 1_000).isoformat()


def _json(values: Mapping[str, Any]) -> Any:  # JSON
    """Return values as Trackio's own client sends them: NaN and infinities become texts."""
    from trackio.utils import serialize_values

    return serialize_values(dict(values))  # type: ignore[no-untyped-call]  # no hints


def _validate(attributes: Mapping[str, str]) -> None:
    TrackioSettings.parse(attributes)
    if importlib.util.find_spec("trackio") is None:
        raise MissingExtra("tracker: trackio", "the package trackio", "trackio")


def _check(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    wrong = check_settings("trackio settings", _validate, attributes)
    if wrong is not None:
        return [wrong]
    results = [check_writable("tracker directory", directory)]
    place = TrackioSettings.parse(attributes).place(os.environ)
    if place.startswith("http"):
        results.append(check_server("trackio server", place, "Is `trackio show` running there?"))
    return results


def _environment(environ: Mapping[str, str], _: Mapping[str, str]) -> dict[str, str]:
    return without_key(environ)


def _create(_: RunInfo) -> Tracker:
    return TrackioTracker()


TRACKIO: Final = TrackerKind(
    "trackio",
    _create,
    _validate,
    _check,
    _environment,
    lacks="consoles, and on a server event times (they are the values of otel_rl/time)",
    of_the_program=("project",),
)
"""The kind, for the table of trackers."""
