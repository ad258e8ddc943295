"""Detector of slow links, by the bandwidths that NCCL Inspector measures.

Each series is about one operation and one range of message sizes, so that smaller messages do not
look like a slower link. In a collective all ranks are as slow as the slowest link: a rank that
reports less is named only if others are as fast as before, as in point-to-point transfers or groups
within one host.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import MOST_EVIDENCE, MOST_NAMED, Cause, Evidence, Kind
from otel_rl.diagnose.stats.levels import LevelChange, level
from otel_rl.diagnose.thresholds import HALF, IN_ORDER_OF_MANY, NOISE_OF_MANY

_BANDWIDTH: Final = re.compile(r"(^|/)nccl[_/](p2p_)?bus_bandwidth_gbs/")
_LARGE: Final = re.compile(r"/\d+-\d+[MGT]B(/|$)")  # small messages tell of latency
_SLOWER: Final = 0.7  # times the bandwidth before

_Falls = Mapping[str, LevelChange | None]


def slow_links(history: RunHistory) -> Iterator[Cause]:
    """Find reporters whose large messages move more slowly since some step."""
    of_reporter: dict[str, dict[str, LevelChange | None]] = defaultdict(dict)
    for key, tracks in history.workers.items():
        if _BANDWIDTH.search(key) and _LARGE.search(key):
            for worker, track in tracks.items():
                found = level(track)
                is_fall = found and found.is_fall(
                    ratio=_SLOWER, order=IN_ORDER_OF_MANY, size=NOISE_OF_MANY
                )
                of_reporter[worker][key] = found if is_fall else None
    slow = {worker: falls for worker, falls in of_reporter.items() if _are_most(falls)}
    if slow:
        yield _cause(slow, is_everywhere=len(slow) == len(of_reporter))


def _are_most(falls: _Falls) -> bool:
    return sum(fall is not None for fall in falls.values()) > HALF * len(falls)


def _cause(slow: Mapping[str, _Falls], *, is_everywhere: bool) -> Cause:
    found = sorted(
        (
            (fall.step, worker, key, fall)
            for worker, falls in slow.items()
            for key, fall in falls.items()
            if fall is not None
        ),
        key=lambda one: one[:3],
    )
    since, first, _, fall = found[0]
    role = first.rpartition("/")[0]
    if is_everywhere:
        where = f"all of {role}"
    else:
        where = f"{', '.join(sorted(slow)[:MOST_NAMED])}, and not of others"
    return Cause(
        Kind.SLOW_LINK,
        f"messages of NCCL move at {fall.after:.3g} GB/s since step {since}, {fall.before:.3g} "
        f"before, as large as before: of {where}",
        role=role,
        worker=first if len(slow) == 1 and not is_everywhere else None,
        since=since,
        evidence=[
            Evidence("bus bandwidth", key, worker, one.before, one.after, "GB/s")
            for _, worker, key, one in found[:MOST_EVIDENCE]
        ],
    )
