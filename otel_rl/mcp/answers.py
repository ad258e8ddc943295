"""Answers about runs, from the answers that the page and the commands use."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from statistics import fmean
from typing import Any, Final

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.diagnosis.histories import MemoryBound
from otel_rl.errors import ConfigError
from otel_rl.mcp.longest import longest_phases, longest_spans, step_time
from otel_rl.records import KeySpec
from otel_rl.view.downsample import downsample
from otel_rl.view.found import Found
from otel_rl.view.journals import Journals, may_see
from otel_rl.view.parts.diagnoses import Asked, Diagnoses, Unread
from otel_rl.view.parts.overview import keys_of, standing_of
from otel_rl.view.parts.runs import run_facts
from otel_rl.view.parts.sides import Side, Sides
from otel_rl.view.parts.timeline import timeline
from otel_rl.view.run_data import RunData, Series
from otel_rl.view.text import label

_READING_S: Final = 20.0  # of a long history; a client waits for longer
_DIAGNOSED_EVERY_S: Final = 5.0  # a run that goes on
_LONGEST_OF_STEP: Final = 15
_MOST_NEAR, _LEAST_ALIKE = 8, 0.5  # workers that may have been meant

_NAME: Final = "Name a run as EXPERIMENT, TRIAL or EXPERIMENT/TRIAL."

Scope = Sequence[str] | None
"""Experiments that a reader may see, see ``Grant``; None for all."""

Steps = tuple[int, int | None] | None
"""First and last step, None for the newest one; None for all."""


class Answers:
    """Answers of one server. One thread.

    Args:
        settings: Of the bridge that writes, or wrote, the journals.
        bound: Of the memory of histories, for all threads that answer.
        clock_ns: Nanoseconds since the epoch.

    Attributes:
        named: Ids of the runs that were asked for, each with True; a name of which the reader can
            see no run, as it was given, with False. Its user clears it.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        bound: MemoryBound,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.named: dict[str, bool] = {}
        self._clock_ns = clock_ns
        self._journals = Journals(settings.journal_place, bound)
        self._diagnoses = Diagnoses(every_s=_DIAGNOSED_EVERY_S, budget_s=_READING_S, bound=bound)

    def close(self) -> None:
        """Close the shared database, if there is one."""
        self._journals.close()

    def runs(self, scope: Scope, *, search: str, offset: int, limit: int) -> Mapping[str, Any]:
        """Return runs, the most recently active first."""
        found = self._journals.all()
        wanted = search.casefold()
        seen = [
            one
            for one in found
            if may_see(one.run.key, scope) and wanted in str(one.run.key).casefold()
        ]
        now_ns = self._clock_ns()
        page = [_facts_and_verdict(one, now_ns) for one in seen[offset : offset + limit]]
        return {**_paged("runs", page, len(seen), offset), "faults": [*self._journals.faults]}

    def diagnose(
        self, scope: Scope, run: str | None, steps: Steps, *, now: bool
    ) -> Mapping[str, Any]:
        """Return causes of slow steps, failures and bad learning; see ``otel-rl diagnose``."""
        found = self._named(scope, run)
        of = None if steps is None else _known_steps(found, *steps)
        return self._diagnosed(found, Asked(of, now))

    def why_step(self, scope: Scope, run: str | None, step: int) -> Mapping[str, Any]:
        """Return the use of the time of one step, beside other steps."""
        found = self._named(scope, run)
        _known_steps(found, step, step)
        data = self._read(found)
        return {
            **_run(found),
            "step": step,
            "time": step_time(data, step),
            "diagnosis": self._diagnosed(found, Asked((step, step))),
            "longest": longest_phases(data, step=step, most=_LONGEST_OF_STEP),
            "critical_path": _critical_path(found, step),
        }

    def keys(
        self, scope: Scope, run: str | None, *, search: str, offset: int, limit: int
    ) -> Mapping[str, Any]:
        """Return the keys of a run, each with its range."""
        found = self._named(scope, run)
        listed = _key_list(self._read(found), keys_of(found), search)
        page = listed[offset : offset + limit]
        return {**_run(found), **_paged("keys", page, len(listed), offset)}

    def history(
        self, scope: Scope, run: str | None, key: str, steps: Steps, most: int
    ) -> Mapping[str, Any]:
        """Return values of a key, cut to a number of points with all extremes kept."""
        found = self._named(scope, run)
        data = self._read(found)
        series = data.series_of(key)
        if series is None:
            similar = ", ".join(_similar_keys(data, key))
            raise ConfigError(
                f"Run {found.run.key} has no key {key!r}.",
                hint=f"Similar ones: {similar}." if similar else "The tool keys lists them.",
            )
        first, last = (-math.inf, math.inf) if steps is None else _known_steps(found, *steps)
        values = _key_series(series, first=first, last=last, most=most)
        return {**_run(found), "key": key, **values}

    def compare(
        self, scope: Scope, run: str, other: str, keys: Sequence[str], most: int
    ) -> Mapping[str, Any]:
        """Return where two runs differ; see ``otel-rl compare``."""
        both = [self._named(scope, run), self._named(scope, other)]
        if both[0].id == both[1].id:
            raise ConfigError(f"Both names are run {both[0].run.key}.", hint=_NAME)
        try:
            histories = self._diagnoses.histories(both)
        except Unread as exc:
            raise _unread(both[0], exc.share) from exc
        before, after = (
            Side(str(found.run.key), [found.run], [history])
            for found, history in zip(both, histories, strict=True)
        )
        told = Sides.of(before, after, "step", keys).as_json()
        measures = told["measures"]
        return {**told, "measures": measures[:most], "left_out": max(0, len(measures) - most)}

    def slowest(
        self, scope: Scope, run: str | None, *, name: str, worker: str, most: int
    ) -> Mapping[str, Any]:
        """Return the longest spans that are kept, and the longest phases of the whole run."""
        found = self._named(scope, run)
        data = self._read(found)
        phases = longest_phases(data, name=name, worker=worker, most=most)
        spans = longest_spans(found, name=name, worker=worker, most=most)
        if worker and not phases and not spans["spans"]:
            _check_worker(found, data, worker)
        return {**_run(found), **spans, "phases_of_the_whole_run": phases}

    def _diagnosed(self, found: Found, asked: Asked) -> Mapping[str, Any]:
        try:
            return self._diagnoses.of(found, asked, now_ns=self._clock_ns())
        except Unread as exc:
            raise _unread(found, exc.share) from exc

    def _named(self, scope: Scope, run: str | None) -> Found:
        name = run or ""
        self.named.setdefault(name, False)
        found = self._journals.named(run or None, sees=lambda found: may_see(found.run.key, scope))
        del self.named[name]
        self.named[found.id] = True
        return found

    def _read(self, found: Found) -> RunData:
        progress = self._journals.read(found, budget_s=_READING_S)
        if progress.share < 1:
            raise _unread(found, progress.share)
        return progress.data


def _facts_and_verdict(found: Found, now_ns: int) -> Mapping[str, Any]:
    standing = standing_of(found)
    return {**run_facts(found, standing, now_ns), "verdict": standing.verdict or None}


def _unread(found: Found, share: float) -> ConfigError:
    return ConfigError(
        f"The history of {found.run.key} is long: {share:.0%} is read.",
        hint="Ask again: reading continues.",
    )


def _run(found: Found) -> Mapping[str, Any]:
    return {"run": str(found.run.key)}


def _paged(name: str, page: Sequence[Any], all_: int, offset: int) -> Mapping[str, Any]:
    after = offset + len(page)
    return {name: page, "all": all_, "next_offset": after if after < all_ else None}


def _known_steps(found: Found, first: int, last: int | None) -> tuple[int, int]:
    newest = found.run.step or 0
    last = max(first, newest) if last is None else last
    if not 0 <= first <= min(last, newest):
        raise ConfigError(
            f"There are no steps {first} to {last} in {found.run.key}.",
            hint=f"Its steps go to {newest}; the first must not be after the last.",
        )
    return first, last


def _check_worker(found: Found, data: RunData, worker: str) -> None:
    names = sorted({*data.workers, *(name.partition("/")[0] for name in data.workers)})
    if worker in names:
        return
    near = ", ".join(get_close_matches(worker, names, _MOST_NEAR, _LEAST_ALIKE))
    raise ConfigError(
        f"Run {found.run.key} has no worker {worker!r}.",
        hint=f"Similar ones: {near}." if near else "Name a role or <role>/<index>.",
    )


def _critical_path(found: Found, step: int) -> list[Mapping[str, Any]] | None:
    """Return seconds of the critical path by worker and phase; None if its spans have gone."""
    shown = timeline(found, first=step, last=step)
    if [one["step"] for one in shown["steps"]] != [step]:
        return None
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for part in shown["path"]:
        seconds[shown["lanes"][part["lane"]]["name"], part["phase"]] += part["seconds"]
    in_order = sorted(seconds.items(), key=lambda one: -one[1])
    return [
        {"worker": worker, "phase": phase, "seconds": took_s}
        for (worker, phase), took_s in in_order[:_LONGEST_OF_STEP]
    ]


# Values of keys


def _key_list(data: RunData, keys: Sequence[KeySpec], search: str) -> list[dict[str, Any]]:
    """Return the keys with a text in them, each with its range."""
    units = {spec.key: spec.unit for spec in keys}
    wanted = search.casefold()
    return [
        {"key": label(key), "unit": label(units.get(key, "")), **_summary(series)}
        for key, series in sorted(data.series.items())
        if wanted in key.casefold()
    ]


def _similar_keys(data: RunData, key: str, *, most: int = 8) -> list[str]:
    """Return names of keys that may have been meant."""
    within = [known for known in sorted(data.series) if key.casefold() in known.casefold()]
    return (within or get_close_matches(key, data.series, most, 0.3))[:most]


def _key_series(series: Series, *, first: float, last: float, most: int) -> dict[str, Any]:
    """Return a series in some steps with its extremes, cut to a number of points."""
    points = downsample(series.steps, series.values, most=most, first=first, last=last)
    values = [
        [step, value]
        for step, value in zip(points.xs, points.ys, strict=True)
        if first <= step <= last
    ]
    return {**_summary(series), "shown": len(values), "values": values}


def _summary(series: Series) -> dict[str, Any]:
    finite = [
        (value, step)
        for step, value in zip(series.steps, series.values, strict=True)
        if math.isfinite(value)
    ]
    if not finite:
        return {"points": len(series.values), "not_finite": len(series.values)}
    (least, least_at), (most, most_at) = min(finite), max(finite)
    return {
        "points": len(series.values),
        "not_finite": len(series.values) - len(finite),
        "last": finite[-1][0],
        "last_step": finite[-1][1],
        "min": least,
        "min_step": least_at,
        "max": most,
        "max_step": most_at,
        "mean": fmean(value for value, _ in finite),
    }
