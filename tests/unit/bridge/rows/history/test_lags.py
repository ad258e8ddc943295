"""How late exports arrive, which is by what a diagnosis judges clocks."""

import pytest

from otel_rl.bridge.rows.run import Run
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.records import Facts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Kind
from otel_rl.records import Decoded, Export, Measurements, Series, SpanRecord, Worker
from tests.kept import revived

S = 1_000_000_000
T0 = 1_700_000_000 * S


def measured(worker: Worker, step: int, time_ns: int) -> Decoded:
    points = [Measurements(Series(worker, "loss"), [time_ns], [1.0], [step])]
    return Decoded(points=points, exports=[Export(worker, time_ns)])


def history_of_a_bridge_that_was_held_up(held_up_s: float) -> RunHistory:
    """Four workers with right clocks, of which one ends before the bridge is held up."""
    workers = [Worker("learner", f"l{rank}", index=rank, count=4) for rank in range(4)]
    aligner, bodies, now_ns = Run(), [], T0
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
        record = aligner.take_history(now_ns, everything=True)
        bodies += [record.body] if record is not None else []
    return RunHistory(Facts.decode(body) for body in bodies)


def test_a_bridge_that_was_held_up_makes_no_clock_wrong() -> None:
    history = history_of_a_bridge_that_was_held_up(24.0)
    lags = [lag_s for track in history.lags.values() for lag_s in track.values]
    assert (round(min(lags), 3), round(max(lags), 3)) == (0.1, 0.1)
    # The worker that ended told nobody, and the others went on.
    causes = [(cause.kind, cause.worker) for cause in diagnose(history).causes]
    assert causes == [(Kind.CRASH, "learner/0")]


def history_of_spans(ahead_s: dict[str, float], late_s: float = 2.0) -> RunHistory:
    """Workers of a plain SDK that send spans alone: their exports have no time."""
    workers = [Worker("env", f"e{index}", index=index, count=6) for index in range(6)]
    aligner, bodies, now_ns = Run(), [], T0
    for step in range(40):
        now_ns += S
        for worker in workers:
            own_ns = now_ns + int((ahead_s.get(worker.instance, 0.0) - late_s) * S)
            span = SpanRecord(
                f"{step:08}{worker.instance:>16}".encode(), None, (), "env", worker.instance,
                "host", own_ns - S // 2, own_ns, "tool", "tool", "", step, failed=False,
            )  # fmt: skip
            aligner.clock_is(now_ns)
            aligner.add(
                Decoded((), [Export(worker, 0)], spans=[span], sampled={}), received_ns=now_ns
            )
        aligner.close(now_ns)
        record = aligner.take_history(now_ns, everything=True)
        bodies += [record.body] if record is not None else []
    return RunHistory(Facts.decode(body) for body in bodies)


@pytest.mark.parametrize(
    ("ahead_s", "told"),
    [
        ({"e1": 30.0}, ["env/1"]),
        ({"e1": 3.0}, []),  # within the time that exports take
        ({}, []),
        (dict.fromkeys(["e0", "e1", "e2", "e3", "e4", "e5"], 30.0), []),  # the bridge's is wrong
    ],
)
def test_spans_that_end_after_their_arrival_prove_a_clock_ahead(
    ahead_s: dict[str, float], told: list[str]
) -> None:
    causes = diagnose(history_of_spans(ahead_s)).causes
    assert [one.worker for one in causes if one.kind is Kind.CLOCK_SKEW] == told
    assert len(causes) == len(told)
