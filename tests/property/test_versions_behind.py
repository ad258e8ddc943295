"""Versions by which a worker is behind, against a walk over every report of the leader."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.diagnose.detectors.stale_policy import versions_behind
from otel_rl.diagnose.history.run_history import Track

_times = st.lists(st.integers(0, 40).map(float), max_size=30)
_versions = st.integers(0, 12).map(float)


def _walked(newest: Track, own: Track) -> list[tuple[int, float, float]]:
    """Return step, time and versions behind, from one walk along both tracks."""
    behind = []
    place = changes = 0
    again = inf
    known = before = None
    for step, time_s, value in zip(own.steps, own.times_s, own.values, strict=True):
        while place < len(newest.times_s) and newest.times_s[place] <= time_s:
            known = newest.values[place]
            place += 1
        if before is not None and value < before:
            changes, again = 0, 6
        else:
            changes += before is not None and value != before
            again -= 1
        before = value
        if known is not None and (changes >= 3 or again <= 0):
            behind.append((step, time_s, max(0.0, known - value)))
    return behind


@st.composite
def _tracks(draw: st.DrawFn) -> Track:
    times_s = draw(_times)
    if draw(st.booleans()):
        times_s.sort()  # reports whose clock was set back are in no order
    values = draw(st.lists(_versions, min_size=len(times_s), max_size=len(times_s)))
    return Track.of(range(len(times_s)), times_s, values)


@given(_tracks(), _tracks())
def test_versions_behind_are_those_of_a_walk_over_all_reports(newest: Track, own: Track) -> None:
    (behind,) = versions_behind(newest, [own])
    assert [*zip(behind.steps, behind.times_s, behind.values, strict=True)] == _walked(newest, own)


def test_a_worker_costs_its_own_reports_and_not_all_versions() -> None:
    read = 0

    class Counted(list[float]):
        def __getitem__(self, place):  # type: ignore[no-untyped-def]
            nonlocal read
            read += 1
            return super().__getitem__(place)

    versions = 4096
    newest = Track.of(range(versions), map(float, range(versions)), map(float, range(versions)))
    newest.values = Counted(newest.values)
    own = Track.of(range(8), map(float, range(8)), map(float, range(8)))
    for _ in versions_behind(newest, [own] * 100):
        pass
    assert read <= 100 * 8
