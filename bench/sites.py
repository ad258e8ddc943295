"""Whole sites of the sparse shape: 8 to 2,000 workers, each with 40 series a second.

Costs as in ``bench.sparse``, beside the Collector's gateway in the same run. One core of the bridge
has to be enough, so many workers send less often. Then, at 512 workers: the time from the last
request that a step waits for to its stored row, and how long the bridge takes for what all workers
measured in ten minutes without it. And by how much a burst of one run delays the rows of another.
"""

import contextlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench import bridge as dense
from bench.figures import Figure, Limits
from bench.sparse import GATEWAY_GOAL, SETTINGS, last_step, sent_anew, wait_for, whole_way
from bench.sparse_worker import EXPERIMENT, GAUGES, MIXED, S, Worker, traffic
from otel_rl.run_id import run_id
from tests.lab.programs import COLLECTOR
from tests.lab.running import Bridge

SITES: Mapping[int, float] = {8: 1.0, 128: 1.0, 512: 1.0, 2000: 5.0}
"""Seconds between two requests of a worker, by the number of workers."""
SECONDS = 10
"""Requests of each worker."""
ROUNDS = 3
LARGE = 512
LATE_GOAL_S = 0.6
AWAY_S = 600
CATCH_UP_GOAL_S = 120.0
BURST_EXPORTS = 12
"""Of each of 8 workers of another run, with 10,000 points each, one after the other."""
BURST_GOAL_S = 1.0
"""By which the rows of a run may be later for it."""

_POLL_S = 0.01


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Yield CPU by site, lateness of rows, and the time to catch up; medians over rounds."""
    sites = {4: 0.5} if tiny else SITES
    requests, rounds = (2, 1) if tiny else (SECONDS, ROUNDS)
    if not COLLECTOR.is_built():
        print("sites: gateway not measured, run `make lab` first", file=sys.stderr)
    for workers, pace_s in sites.items():
        for what, instruments in (("", GAUGES), (" with counters and histograms", MIXED)):
            found = [whole_way(workers, requests, instruments, pace_s) for _ in range(rounds)]
            for name in found[0]:
                if name != "gateway":
                    figure = f"sparse: {workers:,} workers{what}, {name}"
                    yield _beside_gateway(figure, name, found)
    workers, seconds = (4, 3) if tiny else (LARGE, 20)
    late_s = [late for _ in range(rounds) for late in _lateness_s(workers, seconds)]
    yield Figure(
        f"sparse: {workers} workers, last request for a step to its row, 99 of 100",
        *("s", _p99(late_s), None, "", None, LATE_GOAL_S, Limits.OURS),
        (min(late_s), max(late_s)),
    )
    exports = 1 if tiny else BURST_EXPORTS
    delays_s, alone_s = [], []
    for _ in range(rounds):
        alone_s.append(statistics.median(_lateness_s(4, 5 if tiny else 20)))
        delays_s.append(max(_lateness_s(4, 5 if tiny else 20, exports)) - alone_s[-1])
    yield Figure(
        "sparse: 4 workers, longest delay of a row by the burst of another run",
        *("s", max(delays_s), statistics.median(alone_s), "from request to row without it", None),
        *(BURST_GOAL_S, Limits.OURS, (min(delays_s), max(delays_s))),
    )
    away_s = 5 if tiny else AWAY_S
    took_s = [_catch_up_s(workers, away_s) for _ in range(1 if tiny else rounds)]
    yield Figure(
        f"sparse: {workers} workers, catch-up after {away_s} s away",
        *("s", statistics.median(took_s), None, "", None, CATCH_UP_GOAL_S, Limits.OURS),
        (min(took_s), max(took_s)),
    )


def _beside_gateway(what: str, name: str, found: list[Mapping[str, float]]) -> Figure:
    ours = [costs[name] for costs in found]
    theirs = [costs["gateway"] for costs in found if "gateway" in costs]
    ratios = [one / other for one, other in zip(ours, theirs, strict=False)]
    return Figure(
        what,
        "us",
        statistics.median(ours),
        statistics.median(theirs) if theirs else None,
        "gateway of the Collector" if theirs else "",
        statistics.median(ratios) if ratios else None,
        GATEWAY_GOAL if ratios else None,
        spread=(min(ratios), max(ratios)) if ratios else (min(ours), max(ours)),
    )


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def _lateness_s(workers: int, seconds: int, burst: int = 0) -> list[float]:
    """Return, for each step, the seconds from the request that completes it to its row.

    That is the last one of the next step: until then a worker may measure more.

    Args:
        workers: Of the run.
        seconds: Steps, one a second.
        burst: Exports of each worker of another run meanwhile.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with Bridge(directory / "bridge", SETTINGS) as bridge:
            run = _run_of(directory)
            warm = 3
            requests = traffic(workers, warm + seconds)
            sent_anew(bridge.url, requests[:warm], directory)
            wait_for(run, warm - 1)
            watch = RowWatch(run)
            with _sent_meanwhile(bridge.url.removeprefix("http://"), burst, directory):
                answered = sent_anew(bridge.url, requests[warm:], directory, 1.0)
                wait_for(run, warm + seconds - 1)
            seen = watch.stop()
    last_sent_s: dict[int, float] = {}
    for one in answered:
        step = warm + one.second
        last_sent_s[step] = max(one.sent_s, last_sent_s.get(step, 0.0))
    return [
        seen[step] - last_sent_s[step + 1]
        for step in last_sent_s
        if step in seen and step + 1 in last_sent_s
    ]


@contextlib.contextmanager
def _sent_meanwhile(address: str, exports: int, directory: Path) -> Iterator[None]:
    """Send so many exports of another run within the block."""
    directory.joinpath("burst").mkdir()
    files = dense.requests(0, exports, directory / "burst") if exports else []
    sender = threading.Thread(target=dense.send, args=(address, exports, files))
    if exports:
        sender.start()
    yield
    if exports:
        sender.join()


class RowWatch(threading.Thread):
    """Looks when each step comes into a run."""

    def __init__(self, run: Path) -> None:
        super().__init__(daemon=True)
        self._run, self._seen, self._is_over = run, dict[int, float](), threading.Event()
        self.start()

    def run(self) -> None:
        known = last_step(self._run)
        while not self._is_over.wait(_POLL_S):
            newest, now_s = last_step(self._run), time.time()
            self._seen.update(dict.fromkeys(range(known + 1, newest + 1), now_s))
            known = newest

    def stop(self) -> Mapping[int, float]:
        """Return the Unix time at which each step was first seen."""
        self._is_over.set()
        self.join()
        return self._seen


def _catch_up_s(workers: int, seconds: int) -> float:
    """Return the seconds from the first request to the last row, after an outage."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        begun_ns = time.time_ns() - seconds * S
        exports = [
            Worker(number, workers, GAUGES, begun_ns).requests(range(seconds))
            for number in range(workers)
        ]
        with Bridge(directory / "bridge", SETTINGS) as bridge:
            begun_s = time.monotonic()
            # Of equally many requests each: all have measured the same.
            sent_anew(bridge.url, [*zip(*exports, strict=True)], directory)
            wait_for(_run_of(directory), seconds - 1)
            return time.monotonic() - begun_s


def _run_of(directory: Path) -> Path:
    return directory / "bridge" / "data" / f"{run_id(EXPERIMENT, 'default')}.jsonl"
