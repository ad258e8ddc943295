"""Every accepted value is in the files once, whatever fails; another program reads them."""

import json
import math
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Metric,
)

from otel_rl.bridge.archive import archiver
from otel_rl.bridge.archive.archiver import HEAD, MODULE, WRITE, Archiver, ArchiveUnwritable
from otel_rl.bridge.archive.file_writer import FileHead
from otel_rl.bridge.counters import ArchiveDrop, Counter, Counters
from otel_rl.bridge.journal.archive_store import ArchiveStore
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.bridge.rows.scheduler import Around, Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.errors import JournalFull
from otel_rl.records import Batch, ExperimentKey, Signal
from otel_rl.run_id import run_id
from tests.faults.disk import small_disk
from tests.support.otlp_requests import Attributes, gauge, key_values, metrics_request, point
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

S = 1_000_000_000
T0 = 1_700_000_000 * S
KEY = ExperimentKey("grpo", "first")
BOUND = 1 << 30


class Life:
    """What makes rows of batches, and the archiver beside it. The same journal goes on."""

    def __init__(self, directory: Path) -> None:
        self.journal = SqliteJournal(directory / "journal")
        self.directory = directory / "archive"
        self.clock_ns = T0
        self.spool = Spool(self.journal)
        self.runs = RunStore(self.journal, clock_ns=lambda: self.clock_ns)
        self.counters = Counters()
        self.store = ArchiveStore(self.journal)
        self.archiver = self.new_archiver()
        self.processor = Scheduler(
            self.spool,
            self.runs,
            AlignSettings(),
            self.counters,
            around=Around(archive_room=lambda: self.archiver.has_room()),
        )

    def new_archiver(self, *, every_s: float = 300.0, max_waiting_bytes: int = BOUND) -> Archiver:
        return Archiver(
            self.store,
            self.directory,
            every_s=every_s,
            max_waiting_bytes=max_waiting_bytes,
            counters=self.counters,
        )

    def take(self, *metrics: Metric, now_ns: int = T0, key: ExperimentKey = KEY) -> None:
        resource: Attributes = {
            "rl.experiment.name": key.experiment,
            "rl.trial.name": key.trial,
            "rl.worker.role": "trainer",
            "rl.worker.index": 3,
            "service.instance.id": "one",
        }
        payload = metrics_request(*metrics, resource=resource).SerializeToString()
        self.spool.append([Batch(key, Signal.METRICS, payload, now_ns)])
        while self.processor.round(now_ns):
            pass

    def files(self, key: ExperimentKey = KEY) -> Sequence[Path]:
        return sorted((self.directory / run_id(key.experiment, key.trial)).iterdir())

    def read(self, key: ExperimentKey = KEY) -> pd.DataFrame:
        return pd.read_parquet(self.directory / run_id(key.experiment, key.trial))

    def values(self, key: ExperimentKey = KEY) -> list[float]:
        return sorted(self.read(key)["value"])


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path)
    yield made
    made.journal.close()


def losses(*values: float) -> Metric:
    """A loss a step; its value is the step and its time."""
    points = [point(value, T0 + int(value)) for value in values]
    for one, value in zip(points, values, strict=True):
        one.attributes.extend(key_values({"rl.loop.iteration": int(value)}))
    return gauge(*points)


def test_a_value_is_there_with_everything_that_its_sender_said(life: Life) -> None:
    now_ns = T0 + 5
    loss = point(math.nan, now_ns)
    loss.attributes.extend(key_values({"rl.loop.iteration": 7, "layer": "head", "depth": 2}))
    tokens = Metric(name="tokens", unit="{token}")
    tokens.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    tokens.sum.is_monotonic = True
    tokens.sum.data_points.add(as_int=10, start_time_unix_nano=T0, time_unix_nano=now_ns)
    moved = Metric(name="moved")
    moved.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    moved.sum.is_monotonic = True
    moved.sum.data_points.add(as_double=0.5, start_time_unix_nano=T0, time_unix_nano=now_ns)
    latency = Metric(name="latency", unit="s")
    latency.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    latency.histogram.data_points.add(
        count=3,
        sum=6,
        min=1,
        max=3,
        bucket_counts=[1, 2],
        explicit_bounds=[1.5],
        start_time_unix_nano=T0,
        time_unix_nano=now_ns,
    )
    bare = Metric(name="bare")
    bare.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    bare.histogram.data_points.add(count=3, time_unix_nano=now_ns)
    scraped = Metric(name="scraped")
    quantiles = scraped.summary.data_points.add(count=4, sum=2, time_unix_nano=now_ns)
    quantiles.quantile_values.add(quantile=0.5, value=0.25)
    life.take(gauge(loss), tokens, moved, latency, bare, scraped)
    assert life.archiver.write_all() == 6
    table = life.read().set_index("metric")
    assert set(table["experiment"]) == {"grpo"}
    assert set(table["trial"]) == {"first"}
    assert set(table["role"]) == {"trainer"}
    assert set(table["worker_index"]) == {3}
    assert {time.value for time in table["time"]} == {now_ns}
    found = table.loc["loss"]
    assert math.isnan(found["value"])
    assert (found["step"], found["kind"]) == (7, "gauge")
    assert json.loads(found["attributes"]) == {"layer": "head", "depth": "2"}
    found = table.loc["tokens"]
    assert (found["value"], found["unit"], found["kind"]) == (10.0, "{token}", "counter")
    assert (found["temporality"], found["start"].value) == ("cumulative", T0)
    assert pd.isna(found["step"])
    assert tuple(table.loc["moved"][["value", "temporality"]]) == (0.5, "delta")
    found = table.loc["latency"]
    assert tuple(found[["value", "count", "minimum", "maximum"]]) == (6.0, 3, 1.0, 3.0)
    assert [tuple(one.values()) for one in found["buckets"]] == [
        (-math.inf, 1.5, 1),
        (1.5, math.inf, 2),
    ]
    assert table.loc["bare"]["count"] == 3
    found = table.loc["scraped"]
    assert (found["kind"], found["count"], found["value"]) == ("summary", 4, 2.0)
    assert [dict(one) for one in found["quantiles"]] == [{"quantile": 0.5, "value": 0.25}]


def test_a_histogram_without_a_sum_has_no_value(life: Life) -> None:
    bare = Metric(name="bare")
    bare.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
    bare.histogram.data_points.add(count=3, time_unix_nano=T0)
    life.take(bare, gauge(point(math.nan, T0)))
    life.archiver.write_all()
    (file,) = life.files()
    table = pq.read_table(file, columns=["metric", "value"]).to_pylist()
    assert next(row["value"] for row in table if row["metric"] == "bare") is None
    assert math.isnan(next(row["value"] for row in table if row["metric"] == "loss"))


def test_a_repeat_of_a_request_adds_nothing(life: Life) -> None:
    total = Metric(name="total")
    total.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    total.sum.is_monotonic = True
    total.sum.data_points.add(as_int=9, start_time_unix_nano=T0, time_unix_nano=T0 + S)
    for _ in range(3):
        life.take(losses(1, 2, 3), total)
        life.archiver.write_all()
    assert life.values() == [1.0, 2.0, 3.0, 9.0]
    assert life.counters.value(Counter.ARCHIVE_WRITTEN) == 4


def test_values_of_a_commit_that_failed_are_archived_once(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: RunStore, _commits: Sequence[Commit]) -> None:
        raise JournalFull("no room")

    with monkeypatch.context() as failing:
        failing.setattr(RunStore, "commit", full)
        with pytest.raises(JournalFull):
            life.take(losses(1, 2, 3))
    life.take(losses(4))
    life.archiver.write_all()
    assert life.values() == [1.0, 2.0, 3.0, 4.0]


def test_a_crash_after_a_file_is_there_doubles_nothing(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(Exception):
        pass

    def crash(*_: object) -> None:
        raise Crash

    life.take(losses(1, 2, 3))
    with monkeypatch.context() as crashing:
        crashing.setattr(ArchiveStore, "end_file", crash)
        with pytest.raises(Crash):
            life.archiver.write_all()
    assert life.values() == [1.0, 2.0, 3.0]
    life.take(losses(4, 5))  # not for the file that was begun
    assert life.new_archiver().write_all() == 5
    assert life.values() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(life.files()) == 2
    assert life.store.size() == 0


def test_runs_have_files_of_their_own(life: Life) -> None:
    other = ExperimentKey("grpo", "second")
    life.take(losses(1))
    life.take(losses(2), key=other)
    life.archiver.write_all()
    assert (life.values(), life.values(other)) == ([1.0], [2.0])


def test_what_cannot_be_written_waits_and_what_is_too_much_is_counted(life: Life) -> None:
    life.directory.write_text("no directory")
    life.archiver = life.new_archiver(every_s=1e-9, max_waiting_bytes=2_000)
    life.archiver.start()
    life.take(losses(*range(1, 101)))
    wait_until(lambda: not life.archiver.has_room(), timeout_s=60.0)
    life.take(losses(101, 102, 103))
    dropped = life.counters.value(Counter.ARCHIVE_DROPPED, reason=ArchiveDrop.NO_ROOM)
    assert dropped == 3
    life.directory.unlink()
    life.archiver.finish()
    life.archiver.join(60.0)
    assert life.values() == [float(value) for value in range(1, 101)]


def test_a_full_disk_leaves_no_half_of_a_file(life: Life, tmp_path: Path) -> None:
    with small_disk(life.directory) as disk:
        if not disk.fill():
            pytest.skip("this user may not mount a file system")
        life.take(losses(*range(1, 10_001)))
        with pytest.raises(ArchiveUnwritable, match="No space left on device"):
            life.archiver.write_all()
        assert not [*life.directory.rglob("*.parquet")]
        disk.free()
        life.archiver.write_all()
        assert life.values() == [float(value) for value in range(1, 10_001)]
        assert [file.suffix for file in life.files()] == [".parquet"]


def test_damaged_values_are_counted_and_the_others_are_there(life: Life, tmp_path: Path) -> None:
    life.take(losses(1, 2, 3))
    life.take(losses(4, 5))
    with closing(sqlite3.connect(tmp_path / "journal" / JOURNAL_FILE)) as connection:
        connection.execute("UPDATE archive SET crc = crc + 1 WHERE number = 1")
        connection.commit()
    life.archiver.write_all()
    assert life.values() == [4.0, 5.0]
    assert life.counters.value(Counter.ARCHIVE_DROPPED, reason=ArchiveDrop.DAMAGED) == 3


@pytest.mark.slow
def test_many_values_are_in_several_parts(life: Life) -> None:
    values = [float(value) for value in range(1, 40_001)]
    one = gauge(point(0.0, T0))
    exact = one.gauge.data_points[0]
    exact.start_time_unix_nano = T0 - S
    for value in values:
        exemplar = exact.exemplars.add(as_double=value, time_unix_nano=T0 - S + int(value))
        exemplar.filtered_attributes.extend(key_values({"rl.loop.iteration": int(value)}))
    life.take(one)
    life.archiver.write_all()
    table = life.read()
    assert sorted(table["value"]) == values
    assert list(table["step"]) == list(range(1, 40_001))


def resumed(life: Life) -> None:
    """A loss each second at steps 1 to 20, then from step 8 on again to 30."""
    for at_s, step in enumerate([*range(1, 21), *range(8, 31)]):
        one = point(float(at_s), T0 + at_s * S)
        one.attributes.extend(key_values({"rl.loop.iteration": step}))
        life.take(gauge(one), now_ns=T0 + at_s * S)


def test_a_value_has_the_attempt_of_its_time(life: Life) -> None:
    resumed(life)
    life.archiver.write_all()
    found = life.read().sort_values("time")
    assert [*zip(found["attempt"], found["step"], strict=True)] == [
        *((1, step) for step in range(1, 21)),
        *((2, step) for step in range(8, 31)),
    ]


def test_the_newest_values_wait_until_their_attempt_is_known(life: Life) -> None:
    resumed(life)
    assert life.store.begin_file(KEY, 1 << 20, T0 - 1) is None
    assert life.store.begin_file(KEY, 1 << 20, T0) is not None


def test_several_files_of_a_run_are_written_by_one_process(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = _started(monkeypatch)
    monkeypatch.setattr(archiver, "FILE_BYTES", 1)
    for value in (1, 2, 3):
        life.take(losses(value))
    life.archiver.write_all()
    assert (len(life.files()), life.values(), len(started)) == (3, [1.0, 2.0, 3.0], 1)


def test_no_process_starts_for_values_that_are_all_too_new(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = _started(monkeypatch)
    looks: list[int] = []
    size = ArchiveStore.size

    def looked(store: ArchiveStore) -> int:
        looks.append(size(store))
        return looks[-1]

    monkeypatch.setattr(ArchiveStore, "size", looked)
    life.archiver = Archiver(
        life.store,
        life.directory,
        every_s=300.0,
        max_waiting_bytes=1,
        counters=life.counters,
        clock_ns=lambda: T0 + S,
    )
    life.take(losses(1, 2, 3), now_ns=T0 + S)
    life.archiver.start()
    wait_until(lambda: len(looks) > 3, timeout_s=60.0)  # a look asks twice
    assert (started, life.archiver.has_room()) == ([], False)
    life.archiver.finish()
    life.archiver.join(60.0)
    assert (life.values(), len(started)) == ([1.0, 2.0, 3.0], 1)


def _started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The child processes that are started from now on."""
    started: list[object] = []
    start = subprocess.Popen

    def counted(*args: object, **kwargs: object) -> object:
        started.append(args)
        return start(*args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", counted)
    return started


def test_what_writes_a_file_loads_neither_pandas_nor_numpy(tmp_path: Path) -> None:
    head = json.dumps(FileHead(str(tmp_path / "run" / "file"), "grpo", "first")._asdict())
    ours, theirs = socket.socketpair()
    writer = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-P", "-m", MODULE, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
    )
    with theirs, Connection(ours.detach()) as channel:
        for question in (HEAD + head.encode(), WRITE):
            channel.send_bytes(question)
            answer = channel.recv_bytes()
    _, imported = writer.communicate()
    assert json.loads(answer) == {"values": 0}
    assert b"pyarrow.compute" in imported
    assert b"pandas.core" not in imported
    assert b"numpy.core" not in imported.replace(b"_core", b"core")
