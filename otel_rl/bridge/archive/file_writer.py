"""Writes files of the archive, in a child process of the bridge (``archiver.py``).

The files get a process of their own, because Arrow takes a hundred megabytes, and the bridge's
interpreter is busy with requests. The bridge hands over the head of a file and its parts, one by
one, and then asks for the file. Nothing is written of a file that the bridge does not ask for.
"""

import contextlib
import json
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from otel_rl.bridge.archive.archiver import HEAD, PART
from otel_rl.bridge.child_process import answer_questions
from otel_rl.bridge.journal.state import decode
from otel_rl.bridge.private_files import sync
from otel_rl.bridge.rows.archived_points import (
    ArchivedDetail,
    ArchivedMetric,
    ArchivedPart,
    ArchivedWorker,
)

_IDLE_S: Final = 300.0  # a bridge ends the process after each use

_NONE: Final = -(1 << 63)
_TEMPORALITIES: Final = (None, "cumulative", "delta", "step")

_WORD: Final = pa.dictionary(pa.int32(), pa.string())
_BUCKET: Final = pa.struct(
    [("lower", pa.float64()), ("upper", pa.float64()), ("count", pa.uint64())]
)
_QUANTILE: Final = pa.struct([("quantile", pa.float64()), ("value", pa.float64())])

SCHEMA: Final = pa.schema(
    [
        ("experiment", _WORD),
        ("trial", _WORD),
        ("role", _WORD),
        ("worker_index", pa.int64()),
        ("worker", _WORD),
        ("metric", _WORD),
        ("attributes", _WORD),
        ("unit", _WORD),
        ("kind", _WORD),
        ("temporality", _WORD),
        ("scope", _WORD),
        ("step", pa.int64()),
        ("attempt", pa.int32()),
        ("time", pa.timestamp("ns", tz="UTC")),
        ("start", pa.timestamp("ns", tz="UTC")),
        ("value", pa.float64()),
        ("count", pa.uint64()),
        ("minimum", pa.float64()),
        ("maximum", pa.float64()),
        ("buckets", pa.list_(_BUCKET)),
        ("quantiles", pa.list_(_QUANTILE)),
    ]
)
"""Columns of every file."""

_REPEATED: Final = [
    *(field.name for field in SCHEMA if pa.types.is_dictionary(field.type)),
    *("worker_index", "attempt"),
]
"""Columns of which a dictionary is tried: in the others most values differ."""

_ENCODINGS: Final = dict.fromkeys(("step", "time", "start"), "DELTA_BINARY_PACKED")
"""Numbers that grow evenly: as differences a file is a third smaller."""


class FileHead(NamedTuple):
    """Description of a file, without its values.

    Attributes:
        attempts: Number of each attempt of the run after the first, and the time in ns after which
            values belong to it.
    """

    path: str
    experiment: str
    trial: str
    attempts: Sequence[tuple[int, int]] = ()


class _Series(NamedTuple):
    worker: ArchivedWorker
    metric: ArchivedMetric


class _Columns:
    """Values of several parts, which name series by their place in ``series``."""

    def __init__(self) -> None:
        self.series: list[_Series] = []
        # Places of workers and metrics, and of series by both.
        self._workers: dict[ArchivedWorker, int] = {}
        self._metrics: dict[ArchivedMetric, int] = {}
        self._places: dict[tuple[int, int], int] = {}
        self.of_series, self.kinds = array("i"), array("i")
        self.starts_ns, self.times_ns, self.steps = array("q"), array("q"), array("q")
        self.values = array("d")
        self.details: dict[int, ArchivedDetail] = {}

    def add(self, part: ArchivedPart) -> None:
        base = len(self.values)
        workers, metrics, places = self._workers, self._metrics, self._places
        of_workers = {n: workers.setdefault(one, len(workers)) for n, one in part.workers.items()}
        of_metrics = {n: metrics.setdefault(one, len(metrics)) for n, one in part.metrics.items()}
        for worker, metric in zip(part.of_workers, part.of_metrics, strict=True):
            place = places.setdefault((of_workers[worker], of_metrics[metric]), len(places))
            if place == len(self.series):
                self.series.append(_Series(part.workers[worker], part.metrics[metric]))
            self.of_series.append(place)
        self.starts_ns.extend(part.starts_ns)
        self.kinds.extend(part.kinds)
        self.times_ns.extend(part.times_ns)
        self.steps.extend(part.steps)
        self.values.extend(part.values)
        self.details.update((base + one.place, one) for one in part.details)

    def constant(self, text: str) -> pa.Array:
        return pa.DictionaryArray.from_arrays(
            _array(array("i", bytes(4 * len(self.values)))), pa.array([text], pa.string())
        )

    def words(self, text: Callable[[_Series], str | None]) -> pa.Array:
        words = pa.array([text(one) for one in self.series], pa.string()).dictionary_encode()
        return pa.DictionaryArray.from_arrays(self.spread(words.indices), words.dictionary)

    def spread(self, of_each: pa.Array) -> pa.Array:
        """Return ``of_each``, which has an entry for each series, for each value."""
        return of_each.take(_array(self.of_series))

    def values_or_totals(self) -> pa.Array:
        """Return the values; for a distribution its total, null if the total is not known."""
        values, without_total = self.values[:], array("i", bytes(4 * len(self.values)))
        for place, detail in self.details.items():
            values[place] = detail.total or 0.0
            without_total[place] = detail.total is None
        return pc.if_else(_array(without_total).cast(pa.bool_()), None, _array(values))

    def of_details(self, kind: pa.DataType, what: Callable[[ArchivedDetail], object]) -> pa.Array:
        """Return a field of each distribution, and null for other values."""
        details, size = self.details, len(self.values)
        if not details:
            return pa.nulls(size, kind)
        return pa.array(
            [what(details[place]) if place in details else None for place in range(size)], kind
        )


def table_of(head: FileHead, parts: Iterable[bytes]) -> pa.Table:
    """Return the values of a file, sorted by series and time.

    Raises:
        StateRefused: A part is not a part of an archive.
    """
    columns = _Columns()
    for body in parts:
        columns.add(decode(body, ArchivedPart))
    return _table(head, columns).take(_by_series_and_time(columns))


def _table(head: FileHead, columns: _Columns) -> pa.Table:
    word, detail = columns.words, columns.of_details
    indices = pa.array([_index(one) for one in columns.series], pa.int64())
    temporalities = pa.array(_TEMPORALITIES, pa.string()).dictionary_encode()
    return pa.Table.from_arrays(
        [
            columns.constant(head.experiment),
            columns.constant(head.trial),
            word(lambda one: one.worker.role),
            columns.spread(indices),
            word(lambda one: one.worker.instance),
            word(lambda one: one.metric.name),
            word(lambda one: json.dumps(dict(one.metric.attributes), ensure_ascii=False)),
            word(lambda one: one.metric.unit),
            word(_kind),
            temporalities.take(_array(columns.kinds)),
            word(lambda one: one.metric.scope),
            _known(columns.steps),
            _attempts(head, _array(columns.times_ns)),
            _known(columns.times_ns).cast(pa.timestamp("ns", tz="UTC")),
            _known(columns.starts_ns).cast(pa.timestamp("ns", tz="UTC")),
            columns.values_or_totals(),
            detail(pa.uint64(), lambda one: one.count),
            detail(pa.float64(), lambda one: one.minimum),
            detail(pa.float64(), lambda one: one.maximum),
            detail(pa.list_(_BUCKET), _buckets),
            detail(pa.list_(_QUANTILE), _quantiles),
        ],
        schema=SCHEMA.with_metadata({"experiment": head.experiment, "trial": head.trial}),
    )


def _by_series_and_time(columns: _Columns) -> pa.Array:
    series = columns.series
    ranks = array("i", bytes(4 * len(series)))
    for rank, place in enumerate(sorted(range(len(series)), key=lambda one: _order(series[one]))):
        ranks[place] = rank
    keys = pa.table({"rank": columns.spread(_array(ranks)), "time": _known(columns.times_ns)})
    return pc.sort_indices(keys, sort_keys=[("rank", "ascending"), ("time", "ascending")])


def write_file(path: Path, table: pa.Table) -> None:
    """Write a file so that it exists wholly or not at all, also after a power cut.

    Raises:
        OSError: There is no room, or the directory cannot be used.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("wb") as file:
            pq.write_table(
                table,
                file,
                compression="zstd",
                use_dictionary=_REPEATED,
                column_encoding=_ENCODINGS,
            )
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    for directory in (path.parent, path.parent.parent):
        sync(directory)


class FileWriter:
    """Answers the questions of a bridge, see ``archiver``."""

    def __init__(self) -> None:
        self._head = FileHead("", "", "")
        self._parts: deque[bytes] = deque()

    def answer(self, question: bytes) -> bytes:
        kind, body = question[:1], question[1:]
        if kind == HEAD:
            self._head = FileHead(**json.loads(body))
            self._parts.clear()
        elif kind == PART:
            self._parts.append(body)
        else:
            return json.dumps(self._write()).encode()
        return b""

    def _write(self) -> dict[str, object]:
        head, parts = self._head, self._parts
        drained = (parts.popleft() for _ in range(len(parts)))
        try:
            table = table_of(head, drained)
            write_file(Path(head.path), table)
        except Exception as exc:  # noqa: BLE001  # the bridge reports it; other files are written
            reason = exc.strerror if isinstance(exc, OSError) else None
            return {"error": f"{head.path}: {reason or repr(exc)}"}
        return {"values": table.num_rows}


def main(channel: int) -> None:
    """Answer the questions on a socket, until the bridge closes its end."""
    answer_questions(channel, FileWriter().answer, idle_s=_IDLE_S)


def _array(column: "array[int] | array[float]") -> pa.Array:
    kind = {"i": pa.int32(), "q": pa.int64(), "d": pa.float64()}[column.typecode]
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def _known(column: "array[int]") -> pa.Array:
    values = _array(column)
    return pc.if_else(pc.equal(values, _NONE), None, values)


def _attempts(head: FileHead, times_ns: pa.Array) -> pa.Array:
    first = head.attempts[0][0] - 1 if head.attempts else 1
    attempts = pa.repeat(pa.scalar(first, pa.int32()), len(times_ns))
    for number, since_ns in head.attempts:
        is_of_it = pc.greater(times_ns, since_ns)
        attempts = pc.if_else(is_of_it, pa.scalar(number, pa.int32()), attempts)
    return attempts


def _index(one: _Series) -> int | None:
    index = one.worker.index
    return index if index is not None and -(1 << 63) <= index < 1 << 63 else None


def _kind(one: _Series) -> str:
    return "summary" if one.metric.data == "summary" else one.metric.instrument.value


def _order(one: _Series) -> tuple[object, ...]:
    worker, metric = one
    return metric.name, metric.attributes, worker.role, _index(one) or 0, worker.instance


def _buckets(one: ArchivedDetail) -> Sequence[dict[str, Any]]:
    return [{"lower": lower, "upper": upper, "count": count} for lower, upper, count in one.buckets]


def _quantiles(one: ArchivedDetail) -> Sequence[dict[str, float]]:
    return [{"quantile": quantile, "value": value} for quantile, value in one.quantiles]
