"""A run of the archive as a source of rows: made again from its values, as a bridge would.

    Parquet files ─> points by time ─> aligner ─> rows in a temporary journal

The same files and settings give the same rows with the same numbers, so a replay that was killed
goes on. Other files or settings give another ``identity``, which trackers refuse for a run of the
first ones. A worker counts as alive from its first value to its last.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

from otel_rl.bridge.journal.commit import Commit
from otel_rl.bridge.journal.formats.key_log import encode_keys
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.bridge.replay.archive_files import ArchivedWorker, ArchiveFiles, TimedPoint
from otel_rl.bridge.replay.stored_run import StoredRun
from otel_rl.bridge.rows.aligner import Aligner
from otel_rl.bridge.rows.settings import AlignSettings, RowSettings
from otel_rl.errors import JournalClosed
from otel_rl.records import (
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
    SumPoint,
    Temporality,
)
from otel_rl.semconv.spec import Instrument
from otel_rl.version import __version__

__all__ = ["archived_run", "identity_of"]

_NS_PER_S: Final = 1_000_000_000
_BEAT_NS: Final = _NS_PER_S  # of the exports of a worker, as by default
_COMMIT_ROWS: Final = 500


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

    Args:
        files: Of the run.
        journal: An empty one, for the rows.
        settings: Rules of the rows.
        goes_on: Called with the share of the values that is read; False ends the work.

    Raises:
        JournalError: A file cannot be read, there is no room for the rows, or ``goes_on`` is False.
    """
    store = RunStore(journal)
    rules = AlignSettings.of(settings)
    aligner = Aligner(rules)
    rows: list[Row] = []
    points = _Counted(files.points())
    for made in _rows(files, points, aligner, rules):
        if not goes_on(points.count / max(1, files.values)):
            raise JournalClosed("The replay was interrupted.")
        rows += made
        if len(rows) >= _COMMIT_ROWS:
            _keep(store, files.key, aligner, rows)
            rows = []
    _keep(store, files.key, aligner, rows, Description(devices=aligner.standing.devices))
    return StoredRun(store, files.key, identity_of(files, settings))


class _Counted:
    """Iterates over points and counts them."""

    def __init__(self, points: Iterator[TimedPoint]) -> None:
        self._points = points
        self.count = 0

    def __iter__(self) -> Iterator[TimedPoint]:
        for point in self._points:
            self.count += 1
            yield point


def _rows(
    files: ArchiveFiles, timed_points: _Counted, aligner: Aligner, settings: AlignSettings
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
        aligner.logs.take_dedup(), aligner.logs.take_steps(), aligner.logs.take_history(now_ns)
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
    """Return a share without a step: it announces others."""
    delta = Temporality.DELTA
    if series.instrument is Instrument.HISTOGRAM:
        return HistogramPoint(series, 0, 0, delta, 0, None, None, None, (), is_share=True)
    return SumPoint(series, 0, 0, 0.0, delta, is_share=True)


def _keep(
    store: RunStore,
    key: ExperimentKey,
    aligner: Aligner,
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
                keys=encode_keys(keys) if keys else None,
            )
        ]
    )
