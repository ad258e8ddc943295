"""How late exports arrive, which is by what a diagnosis judges clocks."""

from otel_rl.bridge.rows.aligner import Aligner
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind
from otel_rl.records import Decoded, Export, Measurements, Series, Worker
from tests.kept import revived

S = 1_000_000_000
T0 = 1_700_000_000 * S


def measured(worker: Worker, step: int, time_ns: int) -> Decoded:
    points = [Measurements(Series(worker, "loss"), [time_ns], [1.0], [step])]
    return Decoded(points=points, exports=[Export(worker, time_ns)])


def history_of_a_bridge_that_was_held_up(held_up_s: float) -> RunHistory:
    """Four workers with right clocks, of which one ends before the bridge is held up."""
    workers = [Worker("learner", f"l{rank}", index=rank, count=4) for rank in range(4)]
    aligner, bodies, now_ns = Aligner(), [], T0
    for step in range(40):
        now_ns += S
        if step == 20:
            now_ns += int(held_up_s * S)
            aligner = revived(aligner)
            aligner.go_on(now_ns)
        for worker in workers if step < 20 else workers[1:]:
            aligner.clock_is(now_ns)
            aligner.add(measured(worker, step, now_ns - S // 10), received_ns=now_ns)
        aligner.close(now_ns)
        record = aligner.logs.take_history(now_ns, everything=True)
        bodies += [record.body] if record is not None else []
    return RunHistory(Facts.decode(body) for body in bodies)


def test_a_bridge_that_was_held_up_makes_no_clock_wrong() -> None:
    history = history_of_a_bridge_that_was_held_up(24.0)
    lags = [lag_s for track in history.lags.values() for lag_s in track.values]
    assert (round(min(lags), 3), round(max(lags), 3)) == (0.1, 0.1)
    # The worker that ended told nobody, and the others went on.
    causes = [(cause.kind, cause.worker) for cause in diagnose(history).causes]
    assert causes == [(Kind.CRASH, "learner/0")]
