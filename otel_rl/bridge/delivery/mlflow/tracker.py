"""Writes each run to MLflow: a tracking server, or a database file.

MLflow's primary key of a value is (run, metric, timestamp, step, value, is NaN), and a value that
is there already is left as it is. All of these are the row's own, so a row that is sent again
changes nothing. The last value of each row is its number, as metric ``otel_rl/row`` at the row's
number as step: the largest one is the position, because batches are written in order and whole.

A run is found again by its tag ``otel_rl.run_id``: MLflow makes the ids of runs itself.
"""

import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rl.bridge.delivery.mlflow.errors import translated
from otel_rl.bridge.delivery.mlflow.names import MARK, mlflow_name
from otel_rl.bridge.delivery.mlflow.run_tags import NOTES, params_of, tags_of
from otel_rl.bridge.delivery.mlflow.settings import MlflowSettings
from otel_rl.bridge.delivery.tracker_interface import RunInfo
from otel_rl.errors import ConfigError, TrackerRejected, TrackerUnavailable
from otel_rl.records import CONSOLE, Description, Row, Table
from otel_rl.redaction import redacted

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

__all__ = ["JOURNAL_TAG", "RUN_TAG", "MlflowTracker"]

RUN_TAG: Final = "otel_rl.run_id"
"""Tag with our id of a run, by which it is found."""

JOURNAL_TAG: Final = "otel_rl.journal"
"""Tag with the identity of the journal of the rows."""

_log = logging.getLogger(__name__)

_MAX_METRICS: Final = 1_000  # of a batch; MLflow's limit
_MAX_PARAMS: Final = 100  # of a batch, likewise of tags

_STATUS: Final = {0: "FINISHED", 255: "KILLED"}

_FLOAT_MAX: Final = 1.7976931348623157e308


class MlflowTracker:
    """Tracker of one MLflow run. See the module."""

    def __init__(self) -> None:
        self._client: MlflowClient | None = None
        self._uri = ""
        self._experiment_id = ""
        self._run_id = ""
        self._next_row = 0
        self._params: dict[str, str] = {}
        self._tags: dict[str, str] = {}

    def open(self, run: RunInfo, /) -> int:
        """Create the run, or resume the one with our tag."""
        from mlflow.tracking import MlflowClient

        try:
            settings = MlflowSettings.parse(dict(run.attributes))
        except ConfigError as exc:
            raise TrackerRejected(exc.args[0], hint=exc.hint) from exc
        self._uri = settings.uri(os.environ)
        is_our_file = not self._uri
        if is_our_file:
            self._uri = f"sqlite:///{run.directory.absolute() / 'mlflow.db'}"
        # For the stores of artifacts, which ask the variable.
        os.environ["MLFLOW_TRACKING_URI"] = self._uri
        name = settings.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "")
        with translated():
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
        with translated():
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
        params, tags = {}, dict(tags_of(description))
        if NOTES in self._tags:  # an edit in MLflow stays
            tags.pop(NOTES, None)
        for name, text in params_of(description).items():
            if name not in self._params:
                params[name] = self._params[name] = text
            elif self._params[name] != text:
                tags[mlflow_name(f"config/{name}")] = text
        new = {name: text for name, text in tags.items() if self._tags.get(name) != text}
        if "crash" in self._tags and "crash" not in tags:  # it goes on
            new["crash"] = ""
        with translated():
            for part in _parts(params):
                client.log_batch(self._run_id, params=[Param(*one) for one in part])
            for part in _parts(new):
                client.log_batch(self._run_id, tags=[RunTag(*one) for one in part])
        self._tags |= new

    def flush(self, *, timeout_s: float) -> int:  # noqa: ARG002  # MLflow has no queue
        """Ask for the newest row.

        Raises:
            TrackerUnavailable: MLflow lacks rows that it had taken.
        """
        with translated():
            rows = _rows_of(self._opened().get_run(self._run_id))
        if rows < self._next_row:
            raise TrackerUnavailable(
                f"The MLflow run {self._run_id} has {rows} rows of {self._next_row}.",
                hint="Was its database restored?",
            )
        return self._next_row

    def location(self) -> str:
        """Return the page of the run, or the URI of the database."""
        if not self._uri.startswith("http"):
            return redacted(self._uri)
        base = redacted(self._uri.rstrip("/"))
        return f"{base}/#/experiments/{self._experiment_id}/runs/{self._run_id}"

    def close(self, *, exit_code: int) -> int:
        """Ask for the newest row, and end the run."""
        if self._client is not None:
            self.flush(timeout_s=0)
            with translated():
                self._client.set_terminated(self._run_id, _STATUS.get(exit_code, "FAILED"))
            self._client = None
        return self._next_row

    def _find(self, run_id: str) -> "Run | None":
        """Return the run with our tag: of several the oldest, which has the rows."""
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
            tags={RUN_TAG: run.run_id, JOURNAL_TAG: run.journal},
            run_name=run.description.name or run.key.trial,
        )
        found = self._find(run.run_id)  # an answer that was lost may have made one before
        if found is None:
            raise TrackerUnavailable(f"MLflow does not show the run {run.run_id} that it made.")
        return found

    def _check_journal(self, found: "Run", journal: str) -> None:
        written_from = found.data.tags.get(JOURNAL_TAG, "")
        if not journal or written_from == journal:
            return
        if self._next_row:
            raise TrackerRejected(
                f"The MLflow run {self._run_id} has {self._next_row} rows of another journal.",
                hint="Give the trial another name, or start the bridge with the data directory "
                "that the run was written from.",
            )
        self._opened().set_tag(self._run_id, JOURNAL_TAG, journal)

    def _log_table(self, row: Row, key: str, table: Table) -> None:
        """Store a table as a file named by its row, so that one sent again replaces itself."""
        text = json.dumps({"columns": [*table.columns], "data": [[*line] for line in table.rows]})
        name = f"tables/{mlflow_name(key)}/{row.number}.json"
        self._opened().log_text(self._run_id, text, name)

    def _opened(self) -> "MlflowClient":
        if self._client is None:
            raise TrackerUnavailable("The MLflow run is not open.")
        return self._client


def _experiment(client: "MlflowClient", name: str, artifacts: Path | None) -> str:
    """Return the id of MLflow's experiment of this name; made if it is not there.

    Raises:
        TrackerRejected: It was deleted in MLflow.
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
    """Return the number of rows of a run."""
    newest = run.data.metrics.get(MARK)
    return 0 if newest is None else int(newest) + 1


def _metrics(row: Row) -> Iterator["Metric"]:
    """Yield the values of a row; the last one is its number."""
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
    """Return an infinity as the largest number, as MLflow's databases have it."""
    value = float(value)
    return math.copysign(_FLOAT_MAX, value) if math.isinf(value) else value


def _parts(values: Mapping[str, str]) -> Iterator[Sequence[tuple[str, str]]]:
    items = [*values.items()]
    for start in range(0, len(items), _MAX_PARAMS):
        yield items[start : start + _MAX_PARAMS]
