"""Leaving one worker out of the sum of all is the mean of its peers."""

from math import exp, inf, log, nan
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.diagnose.history.run_history import Track
from otel_rl.diagnose.stats.peers import Peers

VALUES = st.one_of(st.floats(1e-9, 1e9), st.sampled_from([0.0, -1.0, nan, inf]))
TRACKS = st.dictionaries(
    st.sampled_from([f"trainer/{index}" for index in range(6)]),
    st.lists(st.tuples(st.integers(0, 5), VALUES), max_size=12),
    min_size=1,
)


def relative_one_by_one(tracks: dict[str, Track], worker: str) -> dict[int, float]:
    """The definition: the means of a worker and of all others are computed for each worker."""
    found = {}
    for step in sorted(set(tracks[worker].steps)):
        logs: dict[bool, list[float]] = {True: [], False: []}
        for name, track in tracks.items():
            for at, value in zip(track.steps, track.values, strict=True):
                if at == step and value > 0:
                    logs[name == worker].append(log(value))
        if logs[True] and logs[False]:
            found[step] = exp(fmean(logs[True])) / exp(fmean(logs[False]))
    return found


@given(TRACKS)
def test_values_relative_to_peers_are_those_of_the_definition(
    columns: dict[str, list[tuple[int, float]]],
) -> None:
    tracks = {
        worker: Track([step for step, _ in some], [0.0] * len(some), [value for _, value in some])
        for worker, some in columns.items()
    }
    peers = Peers(tracks)
    for worker in tracks:
        relative = peers.relative(worker)
        expected = relative_one_by_one(tracks, worker)
        assert [*relative.steps] == list(expected)
        assert [*relative.values] == pytest.approx(list(expected.values()), rel=1e-12, nan_ok=True)
