"""Whatever the lags of its ranks, a job that goes back makes one row of each step and pass.

Ranks run the same steps, each behind by a lag of its own, and export on their own beat. Now and
then all of them go back to a checkpoint, in the same processes or in new ones. All of them live and
report, so no row may be partial, late or of two passes: the value that a rank measures says which
rank and which pass it is.
"""

from collections import Counter
from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Decoded, Export, Measurements, Row, Series, Worker
from tests.support.slow import examples

S = 1_000_000_000
T0 = 1_700_000_000 * S


@dataclass(frozen=True)
class Pass:
    """Steps from a checkpoint on, after a pause; in new processes or the same.

    The first step is eight or more before the last: nearer ones may be of an asynchronous sender.
    """

    back: int
    steps: int
    pause_s: float
    is_restart: bool


PASSES = st.lists(
    st.builds(
        Pass,
        back=st.integers(9, 40),
        steps=st.integers(12, 60),
        pause_s=st.sampled_from([0.0, 2.0, 9.0, 30.0]),
        is_restart=st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=examples(40), deadline=None)
@example(
    passes=[Pass(back=30, steps=47, pause_s=0.0, is_restart=True)],
    lags_s=[0.0, 2.5],
    step_s=0.5,
    beat_s=0.5,
    known=False,
)
@given(
    passes=PASSES,
    lags_s=st.lists(st.floats(0, 2.5), min_size=1, max_size=4),
    step_s=st.sampled_from([0.5, 1.0, 3.0]),
    beat_s=st.sampled_from([0.5, 1.0]),
    known=st.booleans(),
)
def test_each_pass_is_an_attempt_with_one_whole_row_a_step(
    passes: list[Pass], lags_s: list[float], step_s: float, beat_s: float, known: bool
) -> None:
    ranks = len(lags_s)
    made: list[list[tuple[float, int, int, int]]] = [[] for _ in range(ranks)]
    expected: list[tuple[int, int]] = []
    now_s, step, life = 0.0, 0, 0
    for number, one in enumerate([Pass(0, 50, 0, is_restart=False), *passes]):
        step = max(step - one.back, 0)
        life += one.is_restart
        # New processes come when the old ones have been missed for a moment; and nobody can tell a
        # second time from the first before all have gone back once.
        behind_s = max(lags_s)
        at_least_s = 6.0 + behind_s if one.is_restart else behind_s + 2.0 if number > 1 else 0.0
        now_s += max(one.pause_s, at_least_s)
        for _ in range(one.steps):
            now_s, step = now_s + step_s, step + 1
            expected.append((step, number))
            for rank in range(ranks):
                made[rank].append((now_s + lags_s[rank], step, number, life))
    # All are heard of before the first makes a step, or nobody would know how many there are.
    exports: list[tuple[float, int, int, list[tuple[float, int, int, int]]]] = [
        (0.0, rank, 0, []) for rank in range(ranks)
    ]
    for rank in range(ranks):
        todo, at_s = made[rank], lags_s[rank] + rank / 100
        place = 0
        while place < len(todo):
            at_s += beat_s
            end = place
            while end < len(todo) and todo[end][0] <= at_s and todo[end][3] == todo[place][3]:
                end += 1
            process = todo[place][3] if end > place else todo[max(place - 1, 0)][3]
            # A job that is started again exports nothing in between.
            if end > place or todo[place][3] == process:
                exports.append((at_s, rank, process, todo[place:end]))
            place = end
    aligner = Run(AlignSettings())
    rows: list[Row] = []
    looked_s = 0.0
    for at_s, rank, process, part in sorted(exports, key=lambda export: export[:2]):
        while at_s - looked_s > 0.5:  # a bridge looks all the time
            looked_s += 0.5
            rows += aligner.close(T0 + int(looked_s * S))
        worker = Worker(
            "trainer", f"{process}.{rank}", rank if known else None, ranks if known else None
        )
        points = [
            Measurements(
                Series(worker, name),
                [T0 + int(t * S) + place for t, *_ in part],
                [float(100 * number + rank) for *_, number, _ in part],
                [of for _, of, *_ in part],
            )
            for place, name in enumerate(("loss", "kl"))
            if part
        ]
        aligner.add(
            Decoded(points, [Export(worker, T0 + int(at_s * S))]),
            received_ns=T0 + int(at_s * S),
        )
        rows += aligner.close(T0 + int(at_s * S))
        looked_s = at_s
    rows += aligner.close(T0 + int((looked_s + 60) * S), everything=True)
    mean = sum(range(ranks)) / ranks
    for key in ("trainer/loss", "trainer/kl"):
        of_key = [row for row in rows if key in row.values]
        found = Counter((row.step, row.attempt, row.values[key]) for row in of_key)
        assert found == Counter((of, number + 1, 100 * number + mean) for of, number in expected)
    assert not [row for row in rows if "service/trainer/step/reported" in row.values]
    assert [row.number for row in rows] == list(range(len(rows)))
