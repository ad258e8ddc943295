"""What a reader of the page costs those who send, on one bridge.

Sixteen workers of the sparse shape send every second, first without a reader, then with one that
asks for every chart, the timeline and the workers of the run anew, without a pause: far more than
an open page, which asks at most every two seconds. Each is measured in turns.
"""

import gzip
import itertools
import json
import statistics
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.family import family_cpu_s
from bench.figures import Figure, Limits
from bench.sparse import WORKERS, sent_anew, wait_for
from bench.sparse_worker import EXPERIMENT, traffic
from otel_rl.run_id import run_id
from tests.lab.running import Bridge

SECONDS = 20
ROUNDS = 3
_GZIP = b"\x1f\x8b"
LATER_GOAL_MS = 250.0
"""By how much later than without a reader 99 of 100 requests may be answered."""


def figures(*, tiny: bool) -> Iterator[Figure]:
    """Measure answers to senders, without a reader and beside one."""
    workers, seconds, rounds = (4, 3, 1) if tiny else (WORKERS, SECONDS, ROUNDS)
    alone: list[float] = []
    beside: list[float] = []
    pages = 0
    spent = {False: 0.0, True: 0.0}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with Bridge(directory / "bridge") as bridge:
            run = directory / "bridge" / "data" / f"{run_id(EXPERIMENT, 'default')}.jsonl"
            requests = traffic(workers, 2 * rounds * seconds)
            for turn, reads in enumerate([False, True] * rounds):
                some = requests[turn * seconds : (turn + 1) * seconds]
                before_s = family_cpu_s(bridge.pid)
                reader = _Reader(bridge.url)
                if reads:
                    reader.start()
                answered = sent_anew(bridge.url, some, directory, pace_s=1.0)
                wait_for(run, (turn + 1) * seconds - 1)
                if reads:
                    reader.stop()
                    pages += reader.pages
                spent[reads] += family_cpu_s(bridge.pid) - before_s
                (beside if reads else alone).extend(1e3 * one.took_s for one in answered)
    for name, share in (("median", 0.5), ("99 of 100", 0.99)):
        ours, theirs = _quantile(beside, share), _quantile(alone, share)
        yield Figure(
            f"view: answer to a sender beside a reader, {name}",
            *("ms", ours, theirs, "no reader", ours / theirs),
        )
    later_ms = _quantile(beside, 0.99) - _quantile(alone, 0.99)
    yield Figure(
        "view: 99 of 100 answers come later by",
        *("ms", later_ms, None, "", None, LATER_GOAL_MS, Limits.OURS),
    )
    yield Figure("view: pages a second", "", pages / (rounds * seconds), None, "", None)
    ours, theirs = (spent[reads] / (rounds * seconds) for reads in (True, False))
    yield Figure("view: CPU of a second", "s", ours, theirs, "no reader", ours / theirs)


def _quantile(values: Sequence[float], share: float) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[round(100 * share) - 1]


class _Reader(threading.Thread):
    """A browser that asks for everything, again and again."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._is_over = threading.Event()
        self.pages = 0

    def run(self) -> None:
        run = run_id(EXPERIMENT, "default")
        for _ in itertools.count():
            overview = json.loads(self._get(f"runs/{run}/overview"))
            panels = [one["id"] for of in overview["sections"] for one in of["panels"]]
            paths = [f"runs/{run}/panel?id={panel}" for panel in panels]
            for path in (*paths, f"runs/{run}/timeline", f"runs/{run}/workers", "runs"):
                if self._is_over.is_set():
                    return
                self._get(path)
                self.pages += 1

    def stop(self) -> None:
        """Ask for nothing more."""
        self._is_over.set()
        self.join()

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self._url}/api/{path}", timeout=120) as answer:
            found: bytes = answer.read()
        return gzip.decompress(found) if found[:2] == _GZIP else found
