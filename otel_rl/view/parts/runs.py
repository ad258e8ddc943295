"""Data of the page *Runs*: state, verdict and reward of each run."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from otel_rl.bridge.journal.reader import Standing, history_bytes, state_of, total_steps
from otel_rl.dashboard.resemblance import headlines
from otel_rl.records import GPUS, ExperimentStatus, KeySpec
from otel_rl.view.downsample import downsample
from otel_rl.view.found import Found
from otel_rl.view.journals import Journals
from otel_rl.view.parts.overview import keys_of, standing_of
from otel_rl.view.run_data import RunData, Series
from otel_rl.view.text import label

_SPARK_POINTS: Final = 60
_MAX_SPARK_BYTES: Final = 4 << 20  # of stored history; longer ones are read when they are opened
_NEWEST_OF_LONG: Final = 4  # records, for the value alone
_MOST_WHOLE: Final = 20  # runs of the list whose rewards are drawn
_RESULTS_S: Final = 0.3  # of one answer, for the others
_MOST_RESULTS: Final = 2_000

_MOST_TAGS: Final = 8  # of a run in the list
_MOST_MACHINES: Final = 4

_NS_PER_S: Final = 1e9
_NS_PER_MS: Final = 1e6


def run_facts(found: Found, standing: Standing, now_ns: int) -> dict[str, Any]:
    """Return the overview of a run without its history."""
    run, key = found.run, found.run.key
    crash = run.description.crash
    idle_s = max(0.0, (now_ns - run.changed_ns) / _NS_PER_S)
    age_s = max(idle_s, (now_ns - (run.begun_ns or run.changed_ns)) / _NS_PER_S)
    has_ended = run.description.status is not ExperimentStatus.RUNNING
    return {
        "id": found.id,
        "experiment": label(key.experiment),
        "trial": label(key.trial),
        "state": state_of(run, standing, now_ns),
        "crash": None if crash is None else label(crash.as_crash),
        "tags": [label(tag) for tag in run.description.tags[:_MOST_TAGS]],
        "machines": [label(host) for host in [*run.description.hosts][:_MOST_MACHINES]],
        "gpus": sum(prefix.startswith(f"{GPUS}/") for prefix in run.description.devices) or None,
        "step": run.step,
        "total": total_steps(run.description.config),
        "lasted_s": age_s - idle_s if has_ended else age_s,
        "idle_s": idle_s,
        "now_ms": now_ns / _NS_PER_MS,
        "roles": {
            label(role): {
                "alive": None if run.is_interrupted else of.alive,
                "expected": of.expected,
                "failures": of.failures,
            }
            for role, of in sorted(run.roles.items())
        },
    }


def headline(data: RunData, keys: Sequence[KeySpec]) -> dict[str, Any] | None:
    """Return the reward of a run, or else its loss; None if it has neither."""
    for word, spec in headlines(keys):
        series = data.series.get(spec.key)
        if series is not None:
            values = [value * spec.own_scale for value in series.values]  # a cost is no reward
            last = values[-1]
            newest = last if math.isfinite(last) else str(last)
            return {
                "name": word,
                "key": label(spec.key),
                "last": newest,
                "lost_since": _lost_since(series),
                "ys": downsample(series.steps, values, most=_SPARK_POINTS).ys,
            }
    return None


def _lost_since(series: Series) -> float | None:
    """Return the step from which on all values are NaN or infinite, if any was finite before."""
    since = None
    for step, value in zip(reversed(series.steps), reversed(series.values), strict=True):
        if math.isfinite(value):
            return since
        since = step
    return None


class _Read(NamedTuple):
    """What was read of a run for its line.

    Attributes:
        changed_ns: Last change of the run, by then.
        is_whole: Whether its whole history was wanted.
        cause: Of its standing.
        result: Its verdict and its reward.
    """

    changed_ns: int
    is_whole: bool
    cause: str
    result: dict[str, Any]


class RunLines:
    """Lines of the list of runs: facts, reward and verdict, each read once while nothing is new.

    One thread.

    Args:
        journals: Of the runs.
        clock_s: Monotonic, in seconds.
    """

    def __init__(
        self, journals: Journals, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._journals = journals
        self._clock_s = clock_s
        self._known: dict[str, _Read] = {}  # by id; the longest read ago first

    def of(self, runs: Sequence[Found], now_ns: int) -> tuple[list[dict[str, Any]], float]:
        """Return the lines after reading on for a moment, and the share of them that were read.

        The first ones are read in any case, with the line of their reward. Of the others those come
        first that were never read, then those that have changed since, the longest read ago first:
        of runs that go on all the time none is forgotten.
        """
        until_s = self._clock_s() + _RESULTS_S
        for run in runs[:_MOST_WHOLE]:
            self._read(run, is_whole=True)
        order = {run_id: place for place, run_id in enumerate(self._known)}
        for run in sorted(runs[_MOST_WHOLE:], key=lambda run: order.get(run.id, -1)):
            if self._clock_s() >= until_s:
                break
            self._read(run, is_whole=False)
        read = sum(run.id in self._known for run in runs)
        return [self._line(run, now_ns) for run in runs], read / max(1, len(runs))

    def _line(self, found: Found, now_ns: int) -> dict[str, Any]:
        known = self._known.get(found.id)
        if known is None:
            return run_facts(found, Standing((), ""), now_ns)
        return {**run_facts(found, Standing((), "", cause=known.cause), now_ns), **known.result}

    def _read(self, found: Found, *, is_whole: bool) -> None:
        changed_ns, known = found.run.changed_ns, self._known.get(found.id)
        if known is not None and known.changed_ns == changed_ns and known.is_whole >= is_whole:
            return
        standing = standing_of(found)
        with found.open() as connection:
            is_short = history_bytes(connection, found.id) <= _MAX_SPARK_BYTES
        if is_whole and is_short:
            data = self._journals.read(found).data
        else:
            data = self._journals.newest(found, records=_NEWEST_OF_LONG)
        shown = headline(data, keys_of(found))
        if shown is not None and not (is_whole and is_short):
            shown["ys"] = []  # where it came from was not read
        result: dict[str, Any] = {
            "verdict": standing.verdict,
            "cause": label(standing.cause),
            "shown": shown,
        }
        if not found.run.step and data.last_step:
            result["step"] = data.last_step  # by spans alone
        self._known.pop(found.id, None)
        self._known[found.id] = _Read(changed_ns, is_whole, standing.cause, result)
        if len(self._known) > _MOST_RESULTS:
            del self._known[next(iter(self._known))]
