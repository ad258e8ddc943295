"""Writes each run to MLflow: a tracking server, or a database file.

MLflow's primary key of a value is (run, metric, timestamp, step, value, is NaN), and MLflow leaves
a value that it has already as it is. All parts of the key come from the row, so a row that is sent
again changes nothing. The last value of each row is its number, as metric ``otel_rl/row`` with the
row's number as step: the largest one is the position, because batches are written in order and
whole.

The tag ``otel_rl.run_id`` finds a run again: MLflow makes the ids of runs itself.

MLflow refuses a whole batch for one name that it does not accept: the name of a metric, a parameter
or a tag may have letters and digits of any script, ``_ - . : /`` and spaces, at most 250
characters, and may not read as another path (``a//b``, ``../a``).
"""

import importlib.util
import json
import logging
import math
import os
import posixpath
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from otel_rl.bridge.delivery.texts import metadata_of, storable_text
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
from otel_rl.errors import ConfigError, MissingExtra, TrackerRejected, TrackerUnavailable
from otel_rl.records import CONSOLE, Description, Row, Table, Value
from otel_rl.redaction import redacted

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

RUN_TAG: Final = "otel_rl.run_id"
"""Tag with our id of a run, by which it is found."""

_JOURNAL_TAG: Final = "otel_rl.journal"
"""Tag with the identity of the journal of the rows."""

MARK: Final = "otel_rl/row"
"""Metric whose value and step are the number of the row; the last one written of each row."""

_NOTES: Final = "mlflow.note.content"  # MLflow shows this tag as the run's description
_COMMIT: Final = "mlflow.source.git.commit"  # as its version
_SOURCE: Final = "mlflow.source.name"  # as its source

_MAX_TAG: Final = 5_000  # the limit of servers before MLflow 3

_MAX_NAME: Final = 250
_FORBIDDEN: Final = re.compile(r"[^\w\-.: /]")
_AT: Final = "-at-"
_DIGEST: Final = 9  # an underscore and eight digits

_REFUSED = frozenset({400, 401, 403, 404, 405, 409, 410, 422, 501})

_HINTS = {
    401: "Check MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.",
    403: "Check the rights of the user of MLFLOW_TRACKING_USERNAME or MLFLOW_TRACKING_TOKEN.",
}
_OTHER_HINT = "Check MLFLOW_TRACKING_URI and the experiment's name; the rows are kept."

_SECRET_HINT: Final = "Set MLFLOW_TRACKING_USERNAME and _PASSWORD, or MLFLOW_TRACKING_TOKEN."  # noqa: S105  # no secret

_SERVERS: Final = frozenset({"http", "https", "databricks"})
_DATABASES: Final = frozenset({"sqlite", "postgresql", "mysql", "mssql"})

_log = logging.getLogger(__name__)

_MAX_METRICS: Final = 1_000  # of a batch; MLflow's limit
_MAX_PARAMS: Final = 100  # of a batch, likewise of tags

_STATUS: Final = {0: "FINISHED", 255: "KILLED"}

_FLOAT_MAX: Final = 1.7976931348623157e308


@dataclass(frozen=True, slots=True)
class MlflowSettings:
    """Options of the MLflow tracker.

    Attributes:
        tracking_uri: URL of the server (``http://mlflow:5000``) or the database
            (``sqlite:///mlflow.db``). Empty for ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` in the
            tracker's directory.
        experiment: Name of MLflow's experiment. Empty for ``MLFLOW_EXPERIMENT_NAME``, else the
            run's experiment.
    """

    tracking_uri: str = ""
    experiment: str = ""

    @classmethod
    def parse(cls, attributes: Mapping[str, str]) -> "MlflowSettings":
        """Read the attributes of a run.

        Raises:
            ConfigError: An option's name is unknown, or the store cannot recognise repeated values.
        """
        settings = parse_options("mlflow", cls, attributes, secret_hint=_SECRET_HINT)
        uri = settings.uri(os.environ)
        scheme = urlsplit(uri).scheme.partition("+")[0]
        if uri and scheme not in _SERVERS | _DATABASES and uri != "databricks":
            raise ConfigError(
                f'mlflow.tracking_uri: must be a server or a database (got "{redacted(uri)}").',
                hint="MLflow's file store cannot recognise repeated values and is deprecated: "
                "`mlflow migrate-filestore` moves its runs to a database. Use "
                "sqlite:///mlflow.db, or http://HOST:5000.",
            )
        return settings

    def is_server(self, environ: Mapping[str, str]) -> bool:
        uri = self.uri(environ)
        return urlsplit(uri).scheme in _SERVERS or uri == "databricks"

    def uri(self, environ: Mapping[str, str]) -> str:
        """Return the URI of the store; empty for the file in the tracker's directory."""
        return self.tracking_uri or environ.get("MLFLOW_TRACKING_URI", "")


class MlflowTracker:
    """Tracker of one MLflow run; see the module's docstring."""

    def __init__(self) -> None:
        self._client: MlflowClient | None = None
        self._uri = ""
        self._experiment_id = ""
        self._run_id = ""
        self._next_row = 0
        self._params: dict[str, str] = {}
        self._tags: dict[str, str] = {}

    def open(self, run: RunInfo, /) -> int:
        """Create the run, or resume the run with our tag."""
        from mlflow.tracking import MlflowClient

        settings = MlflowSettings.parse(dict(run.attributes))
        self._uri = settings.uri(os.environ)
        is_our_file = not self._uri
        if is_our_file:
            self._uri = f"sqlite:///{run.directory.absolute() / 'mlflow.db'}"
        # For the stores of artifacts, which ask the variable.
        os.environ["MLFLOW_TRACKING_URI"] = self._uri
        name = settings.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "")
        with _translated():
            client = self._client = MlflowClient(self._uri)
            self._experiment_id = _experiment(
                client,
                name or run.key.experiment,
                run.directory.absolute() / "mlartifacts" if is_our_file else None,
            )
            found = self._find(run.run_id) or self._create(run)
            self._run_id = found.info.run_id
            self._next_row = _rows_of(found)
            self._check_journal(found, run.journal)
            self._params, self._tags = dict(found.data.params), dict(found.data.tags)
            client.update_run(self._run_id, status="RUNNING")
            self.describe(run.description)
        return self._next_row

    def write(self, rows: Sequence[Row], /) -> None:
        """Log the values of the rows, in order; MLflow has each batch when its call returns."""
        client = self._opened()
        with _translated():
            batch: list[Metric] = []
            for row in rows:
                for key, table in row.tables.items():
                    if key != CONSOLE:
                        self._log_table(row, key, table)
                for metric in _metrics(row):
                    batch.append(metric)
                    if len(batch) == _MAX_METRICS:
                        client.log_batch(self._run_id, metrics=batch)
                        batch = []
            if batch:
                client.log_batch(self._run_id, metrics=batch)
        if rows:
            self._next_row = rows[-1].number + 1

    def describe(self, description: Description, /) -> None:
        """Log parameters and tags. A parameter cannot change: its later value is a tag."""
        from mlflow.entities import Param, RunTag

        client = self._opened()
        params, tags = {}, dict(_tags_of(description))
        if _NOTES in self._tags:  # an edit in MLflow stays
            tags.pop(_NOTES, None)
        for name, text in _params_of(description).items():
            if name not in self._params:
                params[name] = self._params[name] = text
            elif self._params[name] != text:
                tags[mlflow_name(f"config/{name}")] = text
        new = {name: text for name, text in tags.items() if self._tags.get(name) != text}
        if "crash" in self._tags and "crash" not in tags:  # it goes on
            new["crash"] = ""
        with _translated():
            for part in _parts(params):
                client.log_batch(self._run_id, params=[Param(*one) for one in part])
            for part in _parts(new):
                client.log_batch(self._run_id, tags=[RunTag(*one) for one in part])
        self._tags |= new

    def flush(self, *, timeout_s: float) -> int:  # noqa: ARG002  # MLflow has no queue
        with _translated():
            rows = _rows_of(self._opened().get_run(self._run_id))
        if rows < self._next_row:
            raise TrackerUnavailable(
                f"The MLflow run {self._run_id} has {rows} rows of {self._next_row}.",
                hint="Was its database restored?",
            )
        return self._next_row

    def location(self) -> str:
        if not self._uri.startswith("http"):
            return redacted(self._uri)
        base = redacted(self._uri.rstrip("/"))
        return f"{base}/#/experiments/{self._experiment_id}/runs/{self._run_id}"

    def close(self, *, exit_code: int) -> int:
        """Ask MLflow for the run's newest row, and end the run."""
        if self._client is not None:
            self.flush(timeout_s=0)
            with _translated():
                self._client.set_terminated(self._run_id, _STATUS.get(exit_code, "FAILED"))
            self._client = None
        return self._next_row

    def _find(self, run_id: str) -> "Run | None":
        """Return the run with our tag; of several the oldest, which has the rows."""
        found = self._opened().search_runs(
            [self._experiment_id],
            f"tags.`{RUN_TAG}` = '{run_id}'",
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
            max_results=1,
        )
        return found[0] if found else None

    def _create(self, run: RunInfo) -> "Run":
        self._opened().create_run(
            self._experiment_id,
            start_time=int(time.time() * 1e3),
            tags={RUN_TAG: run.run_id, _JOURNAL_TAG: run.journal},
            run_name=run.description.name or run.key.trial,
        )
        found = self._find(run.run_id)  # an answer that was lost may have made one before
        if found is None:
            raise TrackerUnavailable(f"MLflow does not show the run {run.run_id} that it made.")
        return found

    def _check_journal(self, found: "Run", journal: str) -> None:
        written_from = found.data.tags.get(_JOURNAL_TAG, "")
        if not journal or written_from == journal:
            return
        if self._next_row:
            raise TrackerRejected(
                f"The MLflow run {self._run_id} has {self._next_row} rows of another journal.",
                hint="Give the trial another name, or start the bridge with the data directory "
                "that the run was written from.",
            )
        self._opened().set_tag(self._run_id, _JOURNAL_TAG, journal)

    def _log_table(self, row: Row, key: str, table: Table) -> None:
        """Store a table as a file named after its row, so that a repeated table replaces itself."""
        text = json.dumps({"columns": [*table.columns], "data": [[*line] for line in table.rows]})
        name = f"tables/{mlflow_name(key)}/{row.number}.json"
        self._opened().log_text(self._run_id, text, name)

    def _opened(self) -> "MlflowClient":
        if self._client is None:
            raise TrackerUnavailable("The MLflow run is not open.")
        return self._client


def _experiment(client: "MlflowClient", name: str, artifacts: Path | None) -> str:
    """Return the id of MLflow's experiment with this name, creating a missing one.

    Raises:
        TrackerRejected: The experiment was deleted in MLflow.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            location = artifacts.as_uri() if artifacts is not None else None
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException as exc:
            found = client.get_experiment_by_name(name)  # by another writer, meanwhile
            if found is None:
                raise exc from None
    if found.lifecycle_stage != "active":
        raise TrackerRejected(
            f'The MLflow experiment "{name}" was deleted.',
            hint=f"Restore it (mlflow experiments restore --experiment-id {found.experiment_id}), "
            "or choose another with the option experiment.",
        )
    return str(found.experiment_id)


def _rows_of(run: "Run") -> int:
    newest = run.data.metrics.get(MARK)
    return 0 if newest is None else int(newest) + 1


def _metrics(row: Row) -> Iterator["Metric"]:
    """Yield the values of a row, and its number as the last one."""
    from mlflow.entities import Metric

    time_ms = row.time_ns // 1_000_000
    for key, value in row.values.items():
        yield Metric(mlflow_name(key), _finite(value), time_ms, row.step)
    for key, value in row.devices.items():
        yield Metric(mlflow_name(f"system/{key}"), _finite(value), time_ms, row.number)
    yield Metric("attempt", float(row.attempt), time_ms, row.step)
    if row.policy_version is not None:
        yield Metric("policy_version", float(row.policy_version), time_ms, row.step)
    yield Metric(MARK, float(row.number), time_ms, row.number)


def _finite(value: float) -> float:
    """Return a float with infinities replaced by the largest number, as MLflow's databases do."""
    value = float(value)
    return math.copysign(_FLOAT_MAX, value) if math.isinf(value) else value


def _parts(values: Mapping[str, str]) -> Iterator[Sequence[tuple[str, str]]]:
    items = [*values.items()]
    for start in range(0, len(items), _MAX_PARAMS):
        yield items[start : start + _MAX_PARAMS]


@contextmanager
def _translated() -> Iterator[None]:
    """Translate MLflow's exceptions into the two errors of the delivery loop."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as exc:
        words = redacted(str(exc.message).strip().partition("\n")[0])
        status = exc.get_http_status_code()  # type: ignore[no-untyped-call]  # no hints
        if status in _REFUSED:
            hint = _HINTS.get(status, _OTHER_HINT)
            raise TrackerRejected(f"MLflow refuses the run: {words}", hint=hint) from exc
        raise TrackerUnavailable(f"MLflow cannot be reached: {words}") from exc


def _params_of(description: Description) -> Mapping[str, str]:
    """Return the config as parameters: its leaves, named by their paths."""
    return dict(_flat(description.config))


def _tags_of(description: Description) -> Mapping[str, str]:
    """Return the metadata beside the config as tags, without entries that have no value."""
    tags: dict[str, Value] = {mlflow_name(tag): "true" for tag in description.tags if tag}
    for name, value in metadata_of(description).items():
        if name != "tags":
            tags[_NOTES if name == "notes" else name] = value
    if description.provenance is not None:
        tags[_COMMIT] = description.provenance.commit
        tags[_SOURCE] = " ".join(description.provenance.command)
    return {name: _text(text, _MAX_TAG) for name, text in tags.items() if text}


@lru_cache(maxsize=16_384)
def mlflow_name(name: str) -> str:
    """Return a name that MLflow accepts.

    ``pass@1`` becomes ``pass-at-1``. Any other changed name, and a name that reads like one, ends
    with a digest of the original, so that two names never become one.
    """
    is_like_at = _AT in name
    name_at = name if is_like_at else name.replace("@", _AT)
    changed = _FORBIDDEN.sub("_", name_at)
    if changed != posixpath.normpath(changed) or changed.startswith(("/", "..")) or changed == ".":
        changed = "/".join(part for part in changed.split("/") if part.strip(".")).lstrip(".")
    if changed == name_at and len(changed) <= _MAX_NAME and not is_like_at:
        return changed
    digest = zlib.crc32(name.encode("utf-8", "surrogatepass"))
    return f"{changed[: _MAX_NAME - _DIGEST]}_{digest:08x}"


def _flat(config: Mapping[str, Value], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}/")
        else:
            yield mlflow_name(name), _text(value)


def _text(value: Value, limit: int = 6_000) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return storable_text(text)[:limit]


def _validate(attributes: Mapping[str, str]) -> None:
    settings = MlflowSettings.parse(attributes)
    if importlib.util.find_spec("mlflow") is None:
        raise MissingExtra("tracker: mlflow", "the package mlflow", "mlflow")
    if not settings.is_server(os.environ) and importlib.util.find_spec("sqlalchemy") is None:
        raise MissingExtra("tracker: mlflow in a database", "sqlalchemy", "mlflow")


def _check(attributes: Mapping[str, str], directory: Path) -> Sequence[CheckResult]:
    wrong = check_settings("mlflow settings", _validate, attributes)
    if wrong is not None:
        return [wrong]
    results = [check_writable("tracker directory", directory)]
    uri = MlflowSettings.parse(attributes).uri(os.environ)
    if urlsplit(uri).scheme in ("http", "https"):
        results.append(check_server("mlflow server", uri))
    return results


def _environment(environ: Mapping[str, str], _: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a writer: no run of the user's own, no telemetry, no retries.

    The delivery loop retries. MLflow would also repeat the creation of a run, and hang for minutes.
    """
    own = {"MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_CONTEXT"}
    return {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
        **{name: value for name, value in without_key(environ).items() if name not in own},
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "GIT_PYTHON_REFRESH": "quiet",
    }


def _create(_: RunInfo) -> Tracker:
    return MlflowTracker()


MLFLOW: Final = TrackerKind(
    "mlflow",
    _create,
    _validate,
    _check,
    _environment,
    home=lambda _: Path(),
    lacks="texts about steps, consoles, infinities (they are the largest numbers)",
)
"""The kind, for the table of trackers."""
