"""A run of the archive as a source of rows: made again from its values, as a bridge would.

    Parquet files ─> points by time ─> aligner ─> rows in a temporary journal

The files (docs/archive.md) are read one at a time, and of later ones what overlaps with it. The
same files and settings give the same rows with the same numbers, so a replay that was killed goes
on. Other files or settings give another ``identity``, which trackers refuse for a run of the
first ones. A worker counts as alive from its first value to its last.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.state import encode_keys
from otel_rl.bridge.replay.replay import StoredRun
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings, RowSettings
from otel_rl.errors import JournalClosed, JournalError
from otel_rl.records import (
    Buckets,
    Covered,
    Decoded,
    Departure,
    Description,
    ExperimentKey,
    Export,
    HistogramPoint,
    Measurements,
    Point,
    Row,
    Series,
    SummaryPoint,
    SumPoint,
    Temporality,
    Worker,
)
from otel_rl.semconv.spec import Instrument
from otel_rl.version import __version__

__all__ = ["ArchiveFiles", "archived_run", "archives_below", "identity_of"]

_NS_PER_S: Final = 1_000_000_000
_BEAT_NS: Final = _NS_PER_S  # of the exports of a worker, as by default
_COMMIT_ROWS: Final = 500


_SERIES: Final = (
    *("role", "worker_index", "worker", "metric", "attributes"),
    *("unit", "kind", "temporality", "scope"),
)
_WORKER: Final = ("role", "worker_index", "worker")
_SHARE: Final = "step"
_ROWS: Final = 5_000  # turned into points at a time


class TimedPoint(NamedTuple):
    """A point of one value with its time, in ns."""

    time_ns: int
    point: Point


@dataclass(slots=True)
class ArchivedWorker:
    """Worker of the run, as far as its values identify it.

    Attributes:
        first_ns: Time of its first value.
        last_ns: Time of its last one.
        shared: Its series of steps' shares.
    """

    worker: Worker
    first_ns: int
    last_ns: int
    shared: list[Series] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ArchiveFiles:
    """Files of one run.

    Attributes:
        files: Sorted, at least one.
        values: Number of values in all files.
    """

    key: ExperimentKey
    files: Sequence[Path]
    values: int

    @property
    def directory(self) -> Path:
        return self.files[0].parent

    @property
    def digest(self) -> str:
        """Return a value that changes when a file is added."""
        listed = [(file.name, file.stat().st_size) for file in self.files]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

    def workers(self) -> Sequence[ArchivedWorker]:
        found: dict[Worker, ArchivedWorker] = {}
        for file in self.files:
            table = _read(file, [*_SERIES, "time"])
            times = table.group_by(_WORKER).aggregate([("time", "min"), ("time", "max")])
            for row in times.to_pylist():
                worker, first_ns, last_ns = _worker(row), row["time_min"], row["time_max"]
                known = found.setdefault(worker, ArchivedWorker(worker, first_ns, last_ns))
                known.first_ns = min(known.first_ns, first_ns)
                known.last_ns = max(known.last_ns, last_ns)
            shares = table.filter(pc.equal(table.column("temporality"), _SHARE))
            for row in shares.group_by(_SERIES).aggregate([]).to_pylist():
                series, shared = _series(row), found[_worker(row)].shared
                if series not in shared:
                    shared.append(series)
        return [*found.values()]

    def points(self) -> Iterator[TimedPoint]:
        """Yield every value, in the order of time."""
        known: dict[tuple[Any, ...], Series] = {}
        waiting: pa.Table | None = None
        begins = sorted((_begin_ns(file), file) for file in self.files)
        for place, (_, file) in enumerate(begins):
            table = _read(file)
            if waiting is not None:
                table = pa.concat_tables([waiting, table])
            table, waiting = table.sort_by("time"), None
            if place + 1 < len(begins):
                is_early = pc.less(table.column("time"), begins[place + 1][0])
                table, waiting = table.filter(is_early), table.filter(pc.invert(is_early))
            for batch in table.to_batches(max_chunksize=_ROWS):
                for row in batch.to_pylist():
                    name = tuple(row[column] for column in _SERIES)
                    series = known.get(name)
                    if series is None:
                        series = known[name] = _series(row)
                    yield TimedPoint(row["time"], _point(series, row))


def archives_below(
    directory: Path, on_fault: Callable[[JournalError], None]
) -> Iterator[ArchiveFiles]:
    """Yield every run with files in this directory, or in one below it at any depth.

    Args:
        on_fault: Called for each run that is left out, because a file of it cannot be read.
    """
    for place in sorted({file.parent for file in directory.rglob("*.parquet")}):
        files = sorted(place.glob("[!.]*.parquet"))
        try:
            heads = [_metadata(file) for file in files]
        except JournalError as exc:
            on_fault(exc)
            continue
        names = heads[0].metadata if heads else None
        if names and {b"experiment", b"trial"} <= names.keys():
            key = ExperimentKey(names[b"experiment"].decode(), names[b"trial"].decode())
            yield ArchiveFiles(key, files, sum(head.num_rows for head in heads))


def _metadata(file: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(file)
    except (OSError, pa.ArrowException) as exc:
        raise _unreadable(file, exc) from exc


def _read(file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a file with texts and times of plain types, so that files can be joined."""
    try:
        table = pq.ParquetFile(file).read(columns=columns and [*columns])
    except (OSError, pa.ArrowException) as exc:
        raise _unreadable(file, exc) from exc
    plain = []
    for column in table.schema:
        kind = column.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif pa.types.is_timestamp(kind):
            kind = pa.int64()
        plain.append((column.name, kind))
    return table.cast(pa.schema(plain))


def _unreadable(file: Path, exc: Exception) -> JournalError:
    line = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
    return JournalError(f"The archive's file {str(file)!r} cannot be read: {line}")


def _begin_ns(file: Path) -> int:
    first = pc.min(_read(file, ["time"]).column("time")).as_py()
    return 0 if first is None else int(first)


def _worker(row: dict[str, Any]) -> Worker:
    return Worker(row["role"], row["worker"], row["worker_index"])


def _series(row: dict[str, Any]) -> Series:
    kind, temporality = row["kind"], row["temporality"]
    data = {"delta": "delta", _SHARE: "share"}.get(temporality, "")
    return Series(
        _worker(row),
        row["metric"],
        row["unit"],
        tuple(json.loads(row["attributes"]).items()),
        None,
        Instrument.GAUGE if kind == "summary" else Instrument(kind),
        row["scope"],
        (),
        "summary" if kind == "summary" else data,
    )


def _point(series: Series, row: dict[str, Any]) -> Point:
    time_ns, step, temporality = row["time"], row["step"], row["temporality"]
    if series.data == "summary":
        quantiles = tuple((one["quantile"], one["value"]) for one in row["quantiles"])
        return SummaryPoint(
            series, time_ns, row["count"], row["value"], quantiles, None, step, row["start"] or 0
        )
    if temporality is None:
        return Measurements(series, [time_ns], [row["value"]], [step])
    is_share = temporality == _SHARE
    since = Temporality.CUMULATIVE if temporality == "cumulative" else Temporality.DELTA
    start_ns = row["start"] or 0
    if series.instrument is not Instrument.HISTOGRAM:
        return SumPoint(
            series, start_ns, time_ns, row["value"], since, step=step, is_share=is_share
        )
    return HistogramPoint(
        series,
        start_ns,
        time_ns,
        since,
        row["count"],
        row["value"],
        row["minimum"],
        row["maximum"],
        Buckets.of((one["lower"], one["upper"], one["count"]) for one in row["buckets"]),
        step=step,
        is_share=is_share,
    )


def identity_of(files: ArchiveFiles, settings: RowSettings) -> str:
    """Return a digest that distinguishes rows of these files, settings and version from others."""
    made_of = f"{files.digest} {settings.model_dump_json()} {__version__}"
    return f"archive-{hashlib.sha256(made_of.encode()).hexdigest()[:24]}"


def archived_run(
    files: ArchiveFiles,
    journal: Journal,
    settings: RowSettings,
    goes_on: Callable[[float], bool] = lambda _: True,
) -> StoredRun:
    """Make the rows of a run.

    Raises:
        JournalError: A file cannot be read, there is no room for the rows, or ``goes_on`` is False.
    """
    store = RunStore(journal)
    rules = AlignSettings.of(settings)
    aligner = Run(rules)
    rows: list[Row] = []
    points = _Counted(files.points())
    for made in _rows(files, points, aligner, rules):
        if not goes_on(points.count / max(1, files.values)):
            raise JournalClosed("The replay was interrupted.")
        rows += made
        if len(rows) >= _COMMIT_ROWS:
            _keep(store, files.key, aligner, rows)
            rows = []
    _keep(store, files.key, aligner, rows, Description(devices=aligner.devices))
    return StoredRun(store, files.key, identity_of(files, settings))


class _Counted:
    def __init__(self, points: Iterator[TimedPoint]) -> None:
        self._points = points
        self.count = 0

    def __iter__(self) -> Iterator[TimedPoint]:
        for point in self._points:
            self.count += 1
            yield point


def _rows(
    files: ArchiveFiles, timed_points: _Counted, aligner: Run, settings: AlignSettings
) -> Iterator[Sequence[Row]]:
    """Yield the rows of each beat, and at the end of all that is open."""
    # A first step waits as long for the other workers of its role.
    lead_ns = int(settings.wait_s * _NS_PER_S)
    coming = sorted(files.workers(), key=lambda one: one.first_ns, reverse=True)
    alive: list[ArchivedWorker] = []
    now_ns = 0
    for beat, timed in groupby(timed_points, key=lambda one: one.time_ns // _BEAT_NS):
        now_ns = (beat + 1) * _BEAT_NS
        points: list[Point] = []
        while coming and coming[-1].first_ns - lead_ns < now_ns:
            alive.append(coming.pop())
            points += map(_announced_share, alive[-1].shared)
        points += _joined(timed, Covered(now_ns - _BEAT_NS - 1, now_ns - 1))
        ended = [one for one in alive if one.last_ns < now_ns]
        aligner.clock_is(now_ns)
        decoded = Decoded(
            points,
            [Export(one.worker, now_ns) for one in alive],
            departures=[Departure(one.worker, now_ns, failed=False) for one in ended],
        )
        aligner.add(decoded, received_ns=now_ns)
        alive = [one for one in alive if one.last_ns >= now_ns]
        yield aligner.close(now_ns)
        # Of use to a bridge that goes on.
        aligner.take_dedup(), aligner.intake.steps.take_log(), aligner.take_history(now_ns)
    yield aligner.close(now_ns, everything=True)


def _joined(timed: Iterator[TimedPoint], beat: Covered) -> Iterator[Point]:
    """Join the measurements of each series between heartbeats: several may have one time."""
    measured: dict[Series, tuple[list[int], list[float], list[int | None]]] = {}
    others: list[Point] = []
    for time_ns, point in timed:
        if not isinstance(point, Measurements):
            others.append(point)
            continue
        times_ns, values, steps = measured.setdefault(point.series, ([], [], []))
        times_ns.append(time_ns)
        values += point.values
        steps += point.steps
    yield from (Measurements(series, *columns, beat) for series, columns in measured.items())
    yield from others


def _announced_share(series: Series) -> Point:
    """Return a step share without a step, which announces that further shares will come."""
    delta = Temporality.DELTA
    if series.instrument is Instrument.HISTOGRAM:
        buckets = Buckets.of(())
        return HistogramPoint(series, 0, 0, delta, 0, None, None, None, buckets, is_share=True)
    return SumPoint(series, 0, 0, 0.0, delta, is_share=True)


def _keep(
    store: RunStore,
    key: ExperimentKey,
    aligner: Run,
    rows: Sequence[Row],
    description: Description | None = None,
) -> None:
    keys = aligner.row_maker.keys.take()
    store.commit(
        [
            Commit(
                key,
                rows,
                aligner.row_maker.next_number,
                b"",
                description=description,
                added={Log.KEYS: (0, encode_keys(keys))} if keys else {},
            )
        ]
    )
