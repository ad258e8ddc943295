"""Place of a Trackio project: its database on this machine, a server or a Space.

All three take the same entries and answer the same queries. A server answers a write with success
even where its database is locked and the entries wait in its memory: only a query tells what it
has.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from otel_rl.bridge.delivery.trackio.settings import TOKEN_HINT
from otel_rl.errors import TrackerRejected, TrackerUnavailable
from otel_rl.redaction import redacted

__all__ = ["Alert", "Entry", "LocalStore", "RemoteStore", "Store"]

_MAX_ENTRIES: Final = 100  # of a request
_TIMEOUT_S: Final = 30.0
_REFUSED: Final = frozenset({400, 401, 403, 404, 405, 422})


@dataclass(frozen=True, slots=True)
class Entry:
    """Values of one call of ``trackio.log``, or of its system metrics.

    Attributes:
        log_id: Unique in the project: a second entry of it is ignored.
        step: The training step.
        time_ns: Event time.
        values: As JSON takes them, or numbers.
    """

    log_id: str
    step: int
    time_ns: int
    values: Mapping[str, Any] = field(default_factory=dict)  # JSON


@dataclass(frozen=True, slots=True)
class Alert:
    """Alert of a run; ``alert_id`` is unique in the project."""

    alert_id: str
    title: str
    text: str
    step: int
    time_ns: int


class Store(Protocol):
    """One run in a project. Every call may raise TrackerUnavailable or TrackerRejected."""

    def log(self, entries: Sequence[Entry], config: Mapping[str, Any] | None = None, /) -> None:
        """Add entries, and replace the run's config by one that is given."""
        ...

    def log_system(self, entries: Sequence[Entry], /) -> None:
        """Add system metrics."""
        ...

    def alert(self, alert: Alert, /) -> None:
        """Add an alert."""
        ...

    def query(self, sql: str, /) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a SELECT; none if there is no such project."""
        ...


class LocalStore:
    """The database of this machine, in ``TRACKIO_DIR``."""

    def __init__(self, project: str, run: str, run_id: str) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        self._sqlite = SQLiteStorage
        self._project = project
        self._run: dict[str, Any] = {"project": project, "run": run, "run_id": run_id}
        try:
            SQLiteStorage.validate_project_name(project)
        except ValueError as exc:
            raise _refused(str(exc)) from exc

    def log(self, entries: Sequence[Entry], config: Mapping[str, Any] | None = None, /) -> None:
        """See ``Store``."""
        with _local():
            self._sqlite.bulk_log(
                **self._run,
                metrics_list=[dict(entry.values) for entry in entries],
                steps=[entry.step for entry in entries],
                timestamps=[_iso(entry.time_ns) for entry in entries],
                log_ids=[entry.log_id for entry in entries],
                config=None if config is None else dict(config),
            )

    def log_system(self, entries: Sequence[Entry], /) -> None:
        """See ``Store``."""
        with _local():
            self._sqlite.bulk_log_system(
                **self._run,
                metrics_list=[dict(entry.values) for entry in entries],
                timestamps=[_iso(entry.time_ns) for entry in entries],
                log_ids=[entry.log_id for entry in entries],
            )

    def alert(self, alert: Alert, /) -> None:
        """See ``Store``."""
        with _local():
            self._sqlite.bulk_alert(
                **self._run,
                titles=[alert.title],
                texts=[alert.text],
                levels=["warn"],
                steps=[alert.step],
                timestamps=[_iso(alert.time_ns)],
                alert_ids=[alert.alert_id],
            )

    def query(self, sql: str, /) -> Sequence[Mapping[str, Any]]:
        """See ``Store``."""
        with _local():
            if not self._sqlite.get_project_db_path(self._project).exists():
                return ()
            rows: list[dict[str, Any]] = self._sqlite.query_project(self._project, sql)["rows"]
            return rows


class RemoteStore:
    """A server, or a Space.

    Args:
        place: URL or ``user/space``.
        project: Of Trackio.
        run: Its name.
        run_id: Ours.
        write_token: The server's; empty for that in the URL.
        hf_token: Of Hugging Face, for a Space; None for that of its login.

    Raises:
        TrackerUnavailable: It does not answer.
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

    def log(self, entries: Sequence[Entry], config: Mapping[str, Any] | None = None, /) -> None:
        """See ``Store``. The server takes no event times."""
        for start in range(0, len(entries), _MAX_ENTRIES):
            logs = [
                {
                    **self._run,
                    "metrics": _json(entry.values),
                    "step": entry.step,
                    "config": None if config is None else _json(config),
                    "log_id": entry.log_id,
                }
                for entry in entries[start : start + _MAX_ENTRIES]
            ]
            self._call("/bulk_log", logs=logs, hf_token=self._hf_token)

    def log_system(self, entries: Sequence[Entry], /) -> None:
        """See ``Store``."""
        for start in range(0, len(entries), _MAX_ENTRIES):
            logs = [
                {
                    **self._run,
                    "metrics": _json(entry.values),
                    "timestamp": _iso(entry.time_ns),
                    "log_id": entry.log_id,
                }
                for entry in entries[start : start + _MAX_ENTRIES]
            ]
            self._call("/bulk_log_system", logs=logs, hf_token=self._hf_token)

    def alert(self, alert: Alert, /) -> None:
        """See ``Store``."""
        one = {
            **self._run,
            "title": alert.title,
            "text": alert.text,
            "level": "warn",
            "step": alert.step,
            "timestamp": _iso(alert.time_ns),
            "alert_id": alert.alert_id,
        }
        self._call("/bulk_alert", alerts=[one], hf_token=self._hf_token)

    def query(self, sql: str, /) -> Sequence[Mapping[str, Any]]:
        """See ``Store``."""
        try:
            found = self._call("/query_project", project=self._project, query=sql)
        except TrackerUnavailable as exc:
            if f"'{self._project}' not found" in exc.args[0]:
                return ()
            raise
        rows: list[dict[str, Any]] = found["rows"]
        return rows

    def _call(self, api_name: str, **arguments: object) -> Any:  # JSON
        with self._translated():
            return self._client.predict(api_name=api_name, **arguments)

    def _check_reachable(self, url: str) -> None:
        """Raise before the client, which tries another protocol for long."""
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
    hint = TOKEN_HINT if is_token else "Choose another project with the option project."
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
    """Return values as Trackio's own client sends them: NaN and infinities are texts."""
    from trackio.utils import serialize_values

    return serialize_values(dict(values))  # type: ignore[no-untyped-call]  # no hints
