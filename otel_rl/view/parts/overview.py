"""Data of the pages *Runs* and *Overview*: state, verdict and charts."""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2s
from itertools import accumulate, pairwise
from statistics import median
from typing import Any, Final, NamedTuple

from otel_rl.bridge.journal.reader import (
    Standing,
    history_bytes,
    read_named_keys,
    state_of,
    total_steps,
)
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.dashboard.arrange import Panel, Section
from otel_rl.dashboard.resemblance import headlines
from otel_rl.goodput import as_json as as_json_goodput
from otel_rl.goodput import in_words
from otel_rl.records import GPUS, ExperimentStatus, KeySpec
from otel_rl.semconv.spec import METRICS, Tier
from otel_rl.view.downsample import downsample
from otel_rl.view.found import Found
from otel_rl.view.journals import Journals
from otel_rl.view.parts.workspace import MOST_LINES, amounts, first_row, workspace
from otel_rl.view.run_data import RunData, Series
from otel_rl.view.text import label, line_names, passage

_SPARK_POINTS: Final = 60
_LINE_POINTS: Final = 600
_MAX_SPARK_BYTES: Final = 4 << 20  # of stored history; longer ones are read when they are opened
_NEWEST_OF_LONG: Final = 4  # records, for the value alone
_MOST_WHOLE: Final = 20  # runs of the list whose rewards are drawn
_RESULTS_S: Final = 0.3  # of one answer, for the others
_MOST_RESULTS: Final = 2_000

_MOST_TAGS: Final = 8  # of a run in the list
_MOST_MACHINES: Final = 4

_NS_PER_S: Final = 1e9
_NS_PER_MS: Final = 1e6
_MS_PER_S: Final = 1e3
_MS_PER_HOUR: Final = 3_600_000

_LAST_STEPS: Final = 20
_LAST_VALUES: Final = 200  # of a key that may have several in a step


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


def time_of_step(data: RunData, step: int | None) -> float | None:
    """Return when a step was, in ms since the epoch; None if no value is of it."""
    if step is None:
        return None
    places = ((of, of.place_of(step)) for of in data.series.values())
    return next((of.times_ms[place] for of, place in places if place is not None), None)


def _lost_since(series: Series) -> float | None:
    """Return the step from which on all values are NaN or infinite, if any was finite before."""
    since = None
    for step, value in zip(reversed(series.steps), reversed(series.values), strict=True):
        if math.isfinite(value):
            return since
        since = step
    return None


def step_seconds(data: RunData) -> float | None:
    """Return the median duration of the last steps, or time between their values without spans.

    None if neither is known.
    """
    last = [step.seconds for step in data.steps[-_LAST_STEPS:]] or _between_values(data)
    return median(last) if last else None


def _between_values(data: RunData) -> list[float]:
    """Return seconds per step between the values of the key with most of them."""
    series = max(data.series.values(), key=lambda one: len(one.values), default=Series())
    newest = zip(series.steps[-_LAST_VALUES:], series.times_ms[-_LAST_VALUES:], strict=True)
    ends = sorted(dict(newest).items())[-_LAST_STEPS:]
    return [
        (time_ms - earlier_ms) / _MS_PER_S / (step - earlier)
        for (earlier, earlier_ms), (step, time_ms) in pairwise(ends)
    ]


def standing_of(found: Found) -> Standing:
    """Return the standing of a run, just read."""
    with found.open() as connection:
        return read_standing(connection, found.id)


def keys_of(found: Found) -> Sequence[KeySpec]:
    """Return the keys of a run."""
    with found.open() as connection:
        return read_named_keys(connection, found.id).specs


def goodput(standing: Standing) -> dict[str, Any] | None:
    """Return the goodput of a run; None if it is unknown."""
    spent = standing.goodput
    if not in_words(spent):
        return None
    roles = {label(role): of for role, of in as_json_goodput(spent).items()}
    return {"words": passage(in_words(spent)), "spent": roles}


class Catalogue:
    """Charts of a run, by the sections of ``otel_rl/dashboard``.

    Args:
        keys: Of the run.
        detail: ``basic``: a chart for each question; ``full``: internals, too.
    """

    def __init__(self, keys: Sequence[KeySpec], detail: Tier) -> None:
        shown = [spec for spec in keys if detail.includes(spec.tier)]
        self._sections = workspace(shown)
        self._first = first_row(self._sections, shown)
        self.amounts = amounts(keys)
        known = {spec.key: METRICS.get(spec.name) for spec in shown}
        self._briefs = {key: metric.brief for key, metric in known.items() if metric is not None}
        self._panels = {
            _panel_id(section, panel): panel
            for section in self._sections
            for panel in section.panels
        }

    def sections(self, data: RunData) -> list[dict[str, Any]]:
        """Return titles and panels that have data, without it."""
        sections = [self._section(section, data) for section in self._sections]
        return [section for section in sections if section["panels"]]

    def first(self, data: RunData) -> list[str]:
        """Return the ids of the charts that matter most and have data, in order."""
        return [
            _panel_id(section, panel)
            for section, panel in self._first
            if any(key in data.series for key in panel.keys)
        ]

    def _section(self, section: Section, data: RunData) -> dict[str, Any]:
        return {
            "title": section.title,
            "panels": [
                {
                    "id": _panel_id(section, panel),
                    "title": label(panel.title),
                    "about": self._briefs.get(panel.keys[0], ""),
                    "unit": label(panel.unit),
                    "stacked": panel.is_stacked,
                    "healthy": label(panel.healthy),
                    "keys": [label(key) for key in panel.keys[:MOST_LINES]],
                }
                for panel in section.panels
                if any(key in data.series for key in panel.keys)
            ],
        }

    def panel(self, panel: str) -> Panel | None:
        """Return the panel of an id."""
        return self._panels.get(panel)


def _panel_id(section: Section, panel: Panel) -> str:
    # Which key of a joined chart is the first, changes while keys arrive.
    is_joined = len(panel.keys) > 1 and "*" in panel.title
    name = f"{panel.title}\n{panel.unit}" if is_joined else panel.keys[0]
    return blake2s(f"{section.title}\n{name}".encode(), digest_size=8).hexdigest()


def panel_lines(
    data: RunData,
    panel: Panel,
    *,
    x: str,
    first: float,
    last: float,
    most: int = _LINE_POINTS,
) -> list[dict[str, Any]]:
    """Return the lines of a panel, downsampled.

    Args:
        data: Of the run.
        panel: The panel.
        x: ``time`` in ms since the epoch, a key of ``amounts``, or else the step.
        first: The lowest x.
        last: The highest x.
        most: Points of a line.
    """
    lines = []
    xs = _axis(data, x)
    for name, key in zip(line_names(panel.keys), panel.keys, strict=True):
        series = data.series.get(key)
        if series is None:
            continue
        points = downsample(xs(series), series.values, most=most, first=first, last=last)
        lines.append({"name": name, "key": label(key), **points._asdict()})
    return lines


def _axis(data: RunData, x: str) -> Callable[[Series], Sequence[float]]:
    if x == "time":
        return lambda series: series.times_ms
    of = next((of for known, of in data.series.items() if label(known) == x), None)
    if of is None or not of.values:
        return lambda series: series.steps
    amounts = [value if math.isfinite(value) else 0.0 for value in of.values]
    is_total = all(one <= other for one, other in pairwise(amounts)) and len({*amounts}) > 1
    reached = dict(zip(of.steps, amounts if is_total else accumulate(amounts), strict=True))
    steps = sorted(reached)
    # Before the first amount nothing was used up.
    return lambda series: [
        reached[steps[place - 1]] if (place := bisect_right(steps, step)) else 0.0
        for step in series.steps
    ]


def whole_series(data: RunData, key: str, *, by_time: bool) -> dict[str, Any]:
    """Return one key of a run, to be compared with that of others; empty if it has none.

    Args:
        data: Of the run.
        key: As a chart names it, or as a diagnosis does.
        by_time: x is the time in hours since the first value of the run; else the step.
    """
    name = next((known for known in data.series if label(known) == key), key)
    series = data.series_of(name) or Series()
    xs: Sequence[float] = series.steps
    if by_time:
        xs = [(ms - data.begun_ns / _NS_PER_MS) / _MS_PER_HOUR for ms in series.times_ms]
    return downsample(xs, series.values, most=_LINE_POINTS)._asdict()


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
