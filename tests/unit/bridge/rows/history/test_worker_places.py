"""Hosts and process ids of workers, which a diagnosis names beside the worker."""

import pytest

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.records import Decoded, Export, Measurements, Series, Worker
from tests.kept import revived
from tests.unit.diagnose.made import changed, made

S = 1_000_000_000
T0 = 1_700_000_000 * S
RANKS = [Worker("trainer", f"t{rank}", index=rank, count=2) for rank in range(2)]


def records(*, restarts: bool = False, max_bytes: int = 1 << 20) -> list[Facts]:
    """What is kept of two trainers, of which one tells its host in every second export only."""
    aligner = Run(AlignSettings(max_history_bytes=max_bytes))
    found, now_ns = list[Facts](), T0
    for step in range(200):
        now_ns += S
        if restarts and step == 100:
            aligner = revived(aligner)
        for worker in RANKS:
            host = f"node-{worker.index}" if step % 2 or worker.index else ""
            points = [Measurements(Series(worker, "loss"), [now_ns], [1.0], [step])]
            export = Export(worker, now_ns, host=host, pid=100 + (worker.index or 0))
            aligner.add(Decoded(points=points, exports=[export]), received_ns=now_ns)
        aligner.close(now_ns)
        record = aligner.take_history(now_ns, everything=True)
        found += [Facts.decode(record.body)] if record is not None else []
    return [one for one in found if one.time_ns > aligner.intake.history.kept.forgotten_ns]


PLACES = {"trainer/0": ("node-0", 100), "trainer/1": ("node-1", 101)}


@pytest.mark.parametrize("restarts", [False, True])
def test_the_place_of_a_worker_is_recorded_when_it_is_told_and_after_a_restart(
    restarts: bool,
) -> None:
    told = records(restarts=restarts)
    assert RunHistory(told).places == PLACES
    assert len([one for one in told if one.places]) == (4 if restarts else 2)
    assert RunHistory(told).between(50, 60).places == PLACES


def test_the_places_of_all_are_recorded_again_when_the_oldest_records_are_forgotten() -> None:
    kept = records(max_bytes=8_000)
    assert kept[0].step > 50
    assert RunHistory(kept).places == PLACES


def test_a_cause_names_the_host_and_the_process_of_its_worker() -> None:
    spans = {("trainer", "train", rank): changed(1.0, 1.0 + 2 * (rank == 1)) for rank in range(4)}
    history = made(spans=spans, step_s=changed(1.0, 3.0))
    history.places.update(PLACES)
    (cause,) = diagnose(history).causes
    assert (cause.worker, cause.host, cause.pid) == ("trainer/1", "node-1", 101)
