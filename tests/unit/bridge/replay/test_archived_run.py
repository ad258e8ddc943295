"""Rows made again from Parquet files are those that the bridge made of the same values."""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from otel_rl.bridge.archive.file_writer import FileHead, tables_of, write_file
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.replay.archived_run import (
    ArchiveFiles,
    archived_run,
    archives_below,
    identity_of,
)
from otel_rl.bridge.rows.archived_points import ArchivedPoints
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.errors import JournalError
from otel_rl.records import (
    Buckets,
    Decoded,
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

BEGIN_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
SECONDS = 60
KEY = ExperimentKey("grpo", "one")
OF_THE_BRIDGE = ("service/", "goodput/", "otel_rl/")
WORKERS = [Worker("trainer", "a", 0), Worker("trainer", "b", 1), Worker("generator", "c")]


def points_of(worker: Worker, second: int) -> Iterator[Point]:
    """One second of a worker: something of every kind."""
    time_ns = BEGIN_NS + second * SECOND_NS
    start_ns = BEGIN_NS - 1

    def series(name: str, kind: Instrument, data: str = "", unit: str = "") -> Series:
        return Series(worker, name, unit, (("gpu", "0"),), None, kind, "tests", (), data)

    loss = math.nan if second == 7 else 1 / (second + 1)
    gauge = series("loss", Instrument.GAUGE)
    if worker.role == "trainer":
        yield Measurements(gauge, [time_ns], [loss], [second])
    level = series("queue.depth", Instrument.UP_DOWN_COUNTER)
    yield Measurements(level, [time_ns], [float(second)], [None])
    yield SumPoint(
        series("tokens", Instrument.COUNTER, unit="{token}"),
        start_ns,
        time_ns,
        10.0 * (second + 1),
        Temporality.CUMULATIVE,
    )
    yield SumPoint(
        series("requests", Instrument.COUNTER, "delta"),
        time_ns - SECOND_NS,
        time_ns,
        2.0,
        Temporality.DELTA,
    )
    yield HistogramPoint(
        series("latency", Instrument.HISTOGRAM, "delta", "s"),
        time_ns - SECOND_NS,
        time_ns,
        Temporality.DELTA,
        3,
        0.6,
        0.1,
        0.3,
        Buckets.of([(0.0, 0.25, 2), (0.25, math.inf, 1)]),
    )
    yield SummaryPoint(series("wait", Instrument.GAUGE, "summary"), time_ns, 4, 1.0, ((0.5, 0.2),))


def original(settings: AlignSettings) -> tuple[Sequence[Row], Sequence[Sequence[bytes]]]:
    """The rows of a bridge, and the parts of three files, of which the last is late."""
    aligner = Run(settings)
    aligner.intake.archived = ArchivedPoints()
    rows: list[Row] = []
    files: list[list[bytes]] = [[], [], []]
    for second in range(SECONDS):
        now_ns = BEGIN_NS + (second + 1) * SECOND_NS
        aligner.clock_is(now_ns)
        for worker in WORKERS:
            decoded = Decoded([*points_of(worker, second)], [Export(worker, now_ns)])
            aligner.add(decoded, received_ns=now_ns)
        rows += aligner.close(now_ns)
        place = 2 if second % 20 == 9 else second * 2 // SECONDS
        files[place] += [body for _, body in aligner.intake.archived.take()]
    return [*rows, *aligner.close(now_ns, everything=True)], files


def unexpected(fault: JournalError) -> None:
    pytest.fail(str(fault))


def written(directory: Path, files: Sequence[Sequence[bytes]]) -> ArchiveFiles:
    for number, parts in enumerate(files):
        path = directory / "run" / f"{number}.parquet"
        write_file(path, tables_of(FileHead(str(path), KEY.experiment, KEY.trial), parts))
    (found,) = archives_below(directory, unexpected)
    return found


def made_again(files: ArchiveFiles, scratch: Path, settings: AlignSettings) -> Sequence[Row]:
    with closing(SqliteJournal(scratch)) as journal:
        source = archived_run(files, journal, settings)
        rows = source.rows(KEY, start=0, limit=100_000)
        known = {spec.key for spec in source.keys(KEY)}
        assert source.end == len(rows)
        assert known >= {key for row in rows for key in row.values}
    return rows


def measured(rows: Sequence[Row]) -> Sequence[tuple[int, int, int, str, str]]:
    return sorted(
        (row.attempt, row.step, row.time_ns, key, f"{value:.12g}")  # sums in another order
        for row in rows
        for key, value in row.values.items()
        if not key.startswith(OF_THE_BRIDGE)
    )


@pytest.mark.parametrize("per_worker", [False, True])
def test_every_kind_of_value_is_in_the_same_row_as_before(
    tmp_path: Path, *, per_worker: bool
) -> None:
    settings = AlignSettings(per_worker=per_worker)
    rows, files = original(settings)
    again = made_again(written(tmp_path / "archive", files), tmp_path / "scratch", settings)
    assert {key.split("/")[1] for *_, key, _ in measured(rows)} >= {
        *("loss", "tokens", "requests", "latency", "wait", "queue")
    }
    assert measured(again) == measured(rows)


def test_rows_are_the_same_at_every_call(tmp_path: Path) -> None:
    settings = AlignSettings()
    _, files = original(settings)
    archive = written(tmp_path / "archive", files)
    first = made_again(archive, tmp_path / "first", settings)
    assert [row.number for row in first] == [*range(len(first))]
    assert repr(made_again(archive, tmp_path / "second", settings)) == repr(first)


def test_other_files_or_rules_are_another_source(tmp_path: Path) -> None:
    settings = AlignSettings()
    _, files = original(settings)
    archive = written(tmp_path / "archive", files[:2])
    more = written(tmp_path / "archive", files)
    marks = [
        identity_of(archive, settings),
        identity_of(more, settings),
        identity_of(archive, AlignSettings(window_s=1)),
    ]
    assert len({*marks}) == 3
    assert identity_of(archive, settings) == marks[0]


def test_a_replay_that_is_interrupted_ends_before_its_rows_are_made(tmp_path: Path) -> None:
    settings = AlignSettings()
    _, files = original(settings)
    archive = written(tmp_path / "archive", files)
    with closing(SqliteJournal(tmp_path / "scratch")) as journal:
        with pytest.raises(JournalError, match="interrupted"):
            archived_run(archive, journal, settings, goes_on=lambda _: False)
        assert RunStore(journal).next_row(KEY) == 0


def test_the_share_of_values_that_is_read_grows_to_the_whole(tmp_path: Path) -> None:
    settings = AlignSettings()
    _, files = original(settings)
    archive = written(tmp_path / "archive", files)
    shares: list[float] = []

    def goes_on(share: float) -> bool:
        shares.append(share)
        return True

    with closing(SqliteJournal(tmp_path / "scratch")) as journal:
        archived_run(archive, journal, settings, goes_on)
    assert shares == sorted(shares)
    assert 0 < shares[0] < 1
    assert shares[-1] == 1


def test_a_run_with_a_damaged_file_is_named_and_others_are_found(tmp_path: Path) -> None:
    _, files = original(AlignSettings())
    archive = written(tmp_path, files)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "a.parquet").write_bytes(b"PAR1 and no more")
    faults: list[JournalError] = []
    assert [*archives_below(tmp_path, faults.append)] == [archive]
    (fault,) = faults
    assert "a.parquet' cannot be read" in str(fault)


def test_files_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"value": [1.0]}), tmp_path / "other.parquet")
    assert [*archives_below(tmp_path, unexpected)] == []
