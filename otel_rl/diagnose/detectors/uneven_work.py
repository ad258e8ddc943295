"""Detector of work that is dealt unevenly: a rank with more tokens or samples is not slow.

Its peers wait for it as for a straggler, but it takes no longer for each token.
"""

import re
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final, NamedTuple

from otel_rl.diagnose.classify import Work, only_waits, summed_by_step, with_gaps, work_of
from otel_rl.diagnose.history.run_history import PhaseKey, RunHistory, Track
from otel_rl.diagnose.result import Cause, Evidence, Kind
from otel_rl.diagnose.stats.levels import level, medians, smoothed
from otel_rl.diagnose.stats.peers import Peers, peers_of, turn_length
from otel_rl.diagnose.step_times import usual_step_s
from otel_rl.diagnose.thresholds import (
    ALIKE,
    FEWEST_PEERS,
    FEWEST_VARYING,
    HALF,
    MOSTLY,
    OFTEN,
    SEVERAL,
    SMALL_PART,
    UNLIKE,
)

_AMOUNTS: Final = (
    (
        "tokens",
        re.compile(r"(^|[/_])tokens?(_(per_step|num|total|count|trained|processed))?$"),
    ),
    ("samples", re.compile(r"(^|[/_])(samples|sequences)(_(per_step|num|total|count))?$")),
)
_NO_AMOUNT: Final = re.compile(
    r"rate|per_?s(ec|$)|throughput|max|min|limit|evict|drop|lengths?[/_]"
)
_MORE: Final = 1.25  # times as much as peers
_NOISE: Final = 2.5  # by which it is more: amounts vary by chance


class _More(NamedTuple):
    """A worker with more work than its peers.

    Attributes:
        what: Kind of work in words.
        key: Tracker key that counts the work.
        since: First step; None if it always was so.
        ratio: Ratio to the amount of the peers.
        own: Usual amount of a step since that step.
    """

    what: str
    key: str
    worker: str
    since: int | None
    ratio: float
    own: float


def uneven_work(history: RunHistory) -> Iterator[Cause]:
    """Find workers that get more work than their peers, and take longer for it."""
    for what, pattern in _AMOUNTS:
        found = [
            (more, longer)
            for key, tracks in history.workers.items()
            if pattern.search(key) and not _NO_AMOUNT.search(key) and len(tracks) > 1
            for more in _with_more(what, key, _of_steps(history, key, tracks))
            if (longer := _longest(history, more)) is not None
        ]
        if found:
            yield _cause(*max(found, key=lambda one: one[0].ratio))
            return


def _of_steps(history: RunHistory, key: str, tracks: Mapping[str, Track]) -> Mapping[str, Track]:
    """Return what each worker did in each step; a counter's export has that of several steps."""
    is_counter = f"{key}/rate" in history.rows
    summed = {worker: summed_by_step(track.finite()) for worker, track in tracks.items()}
    if is_counter:
        summed = {worker: smoothed(with_gaps(history, one)) for worker, one in summed.items()}
    return {
        worker: track for worker, track in summed.items() if len(track.values) >= FEWEST_VARYING
    }


def _with_more(what: str, key: str, tracks: Mapping[str, Track]) -> Iterator[_More]:
    if len(tracks) < 2 or turn_length(tracks) > 1:
        return
    peers = Peers(tracks)
    for worker, track in tracks.items():
        relative = peers.relative(worker)
        found = level(relative, shortest=SEVERAL, among=len(tracks))
        if found is not None and found.is_rise(ratio=_MORE, order=MOSTLY, size=_NOISE):
            _, own = medians(track, found.step) or (0.0, 0.0)
            if found.after >= _MORE:
                yield _More(what, key, worker, found.step, found.after, own)
    yield from _always_more(what, key, tracks, peers)


def _always_more(what: str, key: str, tracks: Mapping[str, Track], peers: Peers) -> Iterator[_More]:
    """Find the one worker that gets more from the first step on, while its peers get the same."""
    usual = {worker: median(track.values) for worker, track in tracks.items()}
    most = max(usual, key=lambda worker: usual[worker])
    others = [amount for worker, amount in usual.items() if worker != most]
    if len(tracks) < FEWEST_PEERS or max(others) > ALIKE * min(others):
        return
    relative = peers.relative(most).values
    often = sum(one >= UNLIKE for one in relative)
    if often >= max(FEWEST_VARYING, OFTEN * len(relative)):
        yield _More(what, key, most, None, median(relative), usual[most])


def _longest(history: RunHistory, more: _More) -> tuple[PhaseKey, float] | None:
    """Return the work that takes the worker longer, and by how many times; None if none does."""
    usual_s = usual_step_s(history)
    found = []
    for place, tracks in history.spans.items():
        is_dealt = work_of(place) is Work.TRAINING and not only_waits(history, place)
        if more.worker not in tracks or len(tracks) < 2 or not is_dealt:
            continue  # environments and generators take as much as they can
        own = tracks[more.worker]
        if not own.values or median(own.values) < SMALL_PART * usual_s:
            continue
        relative = peers_of(history, place).relative(more.worker)
        before, after = (1.0, median(relative.values or [0.0]))
        if more.since is not None:
            before, after = medians(relative, more.since) or (1.0, 0.0)
        if after >= before * (1 + HALF * (more.ratio - 1)):
            found.append((median(own.values), place, after / before))
    return max(found)[1:] if found else None


def _cause(more: _More, longer: tuple[PhaseKey, float]) -> Cause:
    place, times = longer
    since = "in all steps" if more.since is None else f"since step {more.since}"
    peers = more.own / more.ratio
    return Cause(
        Kind.UNEVEN_WORK,
        f"{more.worker} gets {more.ratio:.1f} times the {more.what} of its peers {since}: "
        f"{more.own:.4g} of a step, and they {peers:.4g}; so its {place.phase} takes {times:.1f} "
        "times as long",
        role=place.role,
        worker=more.worker,
        phase=place.phase,
        since=more.since,
        evidence=[
            Evidence(f"{more.what} of a step, of its peers and its own", more.key, more.worker,
                     peers, more.own),
        ],
    )  # fmt: skip
