"""Leaving one worker out of the sum of all is the mean of its peers."""

from collections.abc import Iterable
from itertools import takewhile
from math import exp, inf, log, nan
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.diagnose.history.track import Track, in_order
from otel_rl.diagnose.stats.peers import Peers

VALUES = st.one_of(st.floats(1e-9, 1e9), st.sampled_from([0.0, -1.0, nan, inf]))
TRACKS = st.dictionaries(
    st.sampled_from([f"trainer/{index}" for index in range(6)]),
    st.lists(st.tuples(st.integers(0, 5), VALUES), max_size=12),
    min_size=1,
)


def logs_at(step: int, tracks: Iterable[Track]) -> list[float]:
    return [
        log(value)
        for track in tracks
        for at, value in zip(track.steps, track.values, strict=True)
        if at == step and value > 0
    ]


def relative_one_by_one(tracks: dict[str, Track], worker: str) -> dict[int, float]:
    """The definition: the means of a worker and of all others are computed for each worker.

    Where no other has one, those of the last of three steps before count, if it has none there.
    """
    found = {}
    own, others = tracks[worker], [track for name, track in tracks.items() if name != worker]
    for step in sorted(set(own.steps)):
        before = takewhile(lambda at: at not in own.steps, range(step - 1, step - 4, -1))
        of_others = (logs_at(at, others) for at in (step, *before))
        peers = next(filter(None, of_others), None)
        if (logs := logs_at(step, [own])) and peers:
            found[step] = exp(fmean(logs)) / exp(fmean(peers))
    return found


@given(TRACKS)
def test_values_relative_to_peers_are_those_of_the_definition(
    columns: dict[str, list[tuple[int, float]]],
) -> None:
    tracks = {
        worker: in_order(
            Track.of([step for step, _ in some], [0.0] * len(some), [value for _, value in some]),
            by_step=True,
        )
        for worker, some in columns.items()
    }
    peers = Peers(tracks)
    for worker in tracks:
        relative = peers.relative(worker)
        expected = relative_one_by_one(tracks, worker)
        assert [*relative.steps] == list(expected)
        assert [*relative.values] == pytest.approx(list(expected.values()), rel=1e-12, nan_ok=True)


def test_who_has_become_slow_and_out_of_step_is_compared_with_the_step_before() -> None:
    every_second = range(0, 20, 2)
    slow = Track.of([0, 2, 4, 7, 11, 16], [0.0] * 6, [1.0, 1.0, 1.0, 2.5, 2.5, 2.5])
    tracks = {
        f"generator/{index}": Track.of(every_second, [0.0] * 10, [1.0] * 10) for index in range(3)
    }
    relative = Peers({**tracks, "generator/3": slow}).relative("generator/3")
    assert [*relative.steps] == [*slow.steps]
    assert [*relative.values] == pytest.approx([*slow.values])
