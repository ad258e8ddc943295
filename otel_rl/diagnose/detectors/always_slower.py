"""Detector of a worker that is slower than its peers from the first step on.

The peers' time takes the place of an earlier level, if they do the same work. For the first and the
last worker of a role time alone proves nothing: they may hold the embedding or the loss of a
pipeline, and write for all.
"""

from collections.abc import Collection, Iterator, Mapping
from math import inf
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import (
    Work,
    goodput_part_of,
    is_collective,
    only_waits,
    work_of,
)
from otel_rl.diagnose.detectors.slow_phases import in_seconds, more_of, slower
from otel_rl.diagnose.history.pipeline import stages_of
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.history.timings import is_whole_step
from otel_rl.diagnose.result import Cause
from otel_rl.diagnose.stats.changes import spread
from otel_rl.diagnose.stats.peers import Peers, peers_of, turn_length
from otel_rl.diagnose.stats.pooled import pooled, usual_time
from otel_rl.diagnose.step_times import usual_step_s
from otel_rl.diagnose.thresholds import (
    BEYOND_NOISE,
    CLEARLY,
    FEWEST_BEFORE,
    FEWEST_PEERS,
    LARGE_PART,
    LEAST_LONGER,
    MUCH_LONGER,
    OFTEN,
    UNLIKE,
)
from otel_rl.semconv.names import RlGoodputPartValues

_BY_DESIGN: Final = 2.0  # the same of a first or last worker: no pipeline is made so unequal

# Replicas that serve requests do the same, whatever their number.
_OF_RANKS: Final = frozenset({Work.TRAINING, Work.DATA, Work.OTHER})


class _Alike(NamedTuple):
    """Workers with the same work.

    Attributes:
        tracks: Times of the workers, by worker.
        peers: The same times in a form for comparison.
        ends: The first and the last worker, if these may be the ends of a pipeline.
    """

    tracks: Mapping[str, Track]
    peers: Peers
    ends: Collection[str]


class _Slowest(NamedTuple):
    """A worker that is slower than its peers all along.

    Attributes:
        place: The slow work.
        peers_s: Usual time of the work by its peers, in s.
        own_s: Usual time of the work by the worker, in s.
        is_end: Whether the worker may be the end of a pipeline.
    """

    place: PhaseKey
    worker: str
    peers_s: float
    own_s: float
    is_end: bool

    @property
    def is_by_design(self) -> bool:
        """Return whether the worker may have more to do by design."""
        return self.is_end and self.own_s < _BY_DESIGN * self.peers_s

    def __str__(self) -> str:
        return (
            f"{self.place.phase} of {self.worker} takes {self.own_s / self.peers_s:.1f} times as "
            "long as that of its peers, in all steps"
        )


def always_slower(history: RunHistory) -> Iterator[Cause]:
    """Find the one worker that is slower than all of its peers from the first step on."""
    yield from (_cause(history, one) for one in _slowest(history) if not one.is_by_design)


def longer_by_design(history: RunHistory) -> Iterator[str]:
    """Yield in words which workers take longer all along, slow or by a pipeline's design."""
    for one in _slowest(history):
        if one.is_by_design and work_of(one.place) is Work.TRAINING:
            yield f"{one}: it is slow, or has more to do as the end of a pipeline (no pp_rank)"


def _slowest(history: RunHistory) -> Iterator[_Slowest]:
    usual_s = usual_step_s(history)
    for place in history.spans:
        if not _is_uneven(history, place) or not _is_work_of_all(history, place):
            continue
        for alike in _alike(history, place):
            found = _slowest_of(history, place, alike)
            if found is not None and found.own_s - found.peers_s >= LARGE_PART * usual_s:
                yield found


def _is_uneven(history: RunHistory, place: PhaseKey) -> bool:
    """Return whether a worker may take longer than its peers; cheap, from cached times."""
    of_role = pooled(history, place).values
    return bool(of_role) and usual_time(history, place) >= LEAST_LONGER * median(of_role)


def _is_work_of_all(history: RunHistory, place: PhaseKey) -> bool:
    """Return whether a whole role does this work alike, as far as its name tells."""
    work = work_of(place)
    if work is Work.SYNC or is_collective(place) or is_whole_step(place.phase):
        return False
    if work is Work.OTHER and goodput_part_of(place) is not RlGoodputPartValues.PRODUCTIVE:
        return False  # one writes a checkpoint, for all
    return work is Work.DATA or not only_waits(history, place)


def _alike(history: RunHistory, place: PhaseKey) -> Iterator[_Alike]:
    """Yield groups of workers with the same work: those of each pipeline stage, else all."""
    tracks = history.spans[place]
    stages = [
        workers & tracks.keys()
        for of in stages_of(history).values()
        for workers in of.values()
        if workers & tracks.keys()
    ]
    if not stages:
        has_ends = work_of(place) in _OF_RANKS
        yield _Alike(tracks, peers_of(history, place), _ends(tracks) if has_ends else ())
    for workers in stages:
        of_stage = {worker: tracks[worker] for worker in sorted(workers)}
        yield _Alike(of_stage, Peers(of_stage, turn_length(of_stage)), ())


def _slowest_of(history: RunHistory, place: PhaseKey, alike: _Alike) -> _Slowest | None:
    tracks = alike.tracks
    if len(tracks) < FEWEST_PEERS:
        return None
    typical = {name: median(track.values) for name, track in tracks.items()}
    worker = max(typical, key=lambda name: typical[name])
    others = [time for name, time in typical.items() if name != worker]
    unlike = max(others) / min(others) if min(others) > 0 else inf  # who takes no time is no peer
    if unlike > UNLIKE or not _is_mostly_slower(alike.peers, worker, [*tracks], unlike):
        return None
    peers_s, own_s = median(others), typical[worker]
    if more_of(history, place, worker, history.first, peers_s, own_s) < LARGE_PART:
        return None
    return _Slowest(place, worker, peers_s, own_s, worker in alike.ends)


def _ends(workers: Collection[str]) -> Collection[str]:
    return min(workers, key=_number), max(workers, key=_number)


def _number(worker: str) -> int:
    index = worker.rpartition("/")[2]
    return int(index) if index.isdigit() else -1


def _is_mostly_slower(peers: Peers, worker: str, workers: Collection[str], unlike: float) -> bool:
    """Return whether a worker takes longer than its peers in most steps, beyond their noise.

    Args:
        peers: Times of all workers.
        unlike: Ratio of the slowest worker's time to that of its fastest peer.
    """
    relative = peers.relative(worker).values
    if len(relative) < FEWEST_BEFORE:
        return False
    noises = [
        spread(values) / median(values)
        for other in workers
        if other != worker and (values := peers.relative(other).values)
    ]
    noise = median(noises) if noises else 1.0
    least = min(MUCH_LONGER, max(CLEARLY * unlike, 1 + BEYOND_NOISE * noise))
    return sum(one >= least for one in relative) >= OFTEN * len(relative)


def _cause(history: RunHistory, found: _Slowest) -> Cause:
    return slower(
        history,
        found.place,
        found.worker,
        f"{found}: {in_seconds(found.own_s)}, and {in_seconds(found.peers_s)}",
        levels=(found.peers_s, found.own_s),
        what=", of its peers and its own",
    )
