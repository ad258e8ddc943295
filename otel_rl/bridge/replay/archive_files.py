"""Reads the Parquet files of a run as points, in the order of their times (docs/archive.md).

A file at a time, and of later ones what overlaps with it.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from otel_rl.errors import JournalError
from otel_rl.records import (
    ExperimentKey,
    HistogramPoint,
    Measurements,
    Point,
    Series,
    SummaryPoint,
    SumPoint,
    Temporality,
    Worker,
)
from otel_rl.semconv.spec import Instrument

__all__ = ["ArchiveFiles", "ArchivedWorker", "TimedPoint", "archives_below"]

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
        worker: The process.
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
        key: The run.
        files: Sorted, at least one.
        values: In all of them.
    """

    key: ExperimentKey
    files: Sequence[Path]
    values: int

    @property
    def directory(self) -> Path:
        """Return where the files are."""
        return self.files[0].parent

    @property
    def digest(self) -> str:
        """Return a value that changes when a file is added."""
        listed = [(file.name, file.stat().st_size) for file in self.files]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

    def workers(self) -> Sequence[ArchivedWorker]:
        """Return the workers of the run.

        Raises:
            JournalError: A file cannot be read.
        """
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
        """Yield every value, in the order of time.

        Raises:
            JournalError: A file cannot be read.
        """
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
        directory: To look in.
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
        tuple((one["lower"], one["upper"], one["count"]) for one in row["buckets"]),
        step=step,
        is_share=is_share,
    )
