"""Series and rhythm of a run that goes on: each look finds what a first would, at less cost."""

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.diagnose.history.records import Facts, RowFacts
from otel_rl.diagnose.history.rhythm import Rhythm
from otel_rl.diagnose.history.run_history import GrowingHistory, RunHistory
from otel_rl.diagnose.history.track import Track, in_order

VALUES = st.tuples(st.integers(0, 9), st.floats(0, 9), st.floats(allow_nan=True))
LOOKS = st.lists(st.lists(VALUES, max_size=5), max_size=8)


@given(LOOKS)
def test_a_series_that_grows_between_looks_is_ordered_as_a_whole_one(
    looks: list[list[tuple[int, float, float]]],
) -> None:
    grown, whole = Track(), list[tuple[int, float, float]]()
    for values in looks:
        whole += values
        for value in values:
            grown.add(*value)
        for by_step in (True, False):
            ordered = sorted(whole, key=lambda one: one[0] if by_step else (one[1], one[0]))
            expected = Track()
            for value in ordered:
                expected.add(*value)
            assert in_order(grown, by_step=by_step) == expected


class Counted(list[int]):
    """Steps of which it is counted how many were handed out."""

    looked_at = 0

    def __getitem__(self, place):  # type: ignore[no-untyped-def]  # both of a list's
        found = super().__getitem__(place)
        self.looked_at += len(found) if isinstance(found, list) else 1
        return found


def test_a_look_compares_the_values_since_the_one_before() -> None:
    steps = Counted(range(1_000))
    track = Track(steps, list(map(float, steps)), list(map(float, steps)))
    assert track.is_in_order(by_step=True)
    before = steps.looked_at
    for step in range(1_000, 1_010):
        track.add(step, step, 0.0)
    assert track.is_in_order(by_step=True)
    assert steps.looked_at - before == 11  # with the last one of before


def facts(step: int, time_s: int) -> Facts:
    time_ns = (time_s + 1) * 10**9
    return Facts(time_ns, step, [RowFacts(step, time_ns, {"trainer/loss": 1.0})])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=20))
def test_the_rhythm_of_a_run_that_goes_on_is_that_of_the_whole(
    paces: list[tuple[int, int]],
) -> None:
    growing, known, step, time_s = GrowingHistory(), list[Facts](), 0, 0
    for steps, seconds in paces:
        step, time_s = step + steps, time_s + seconds
        known.append(facts(step, time_s))
        growing.add(known[-1])
        assert Rhythm.of(growing.history()) == Rhythm.of(RunHistory(known))
