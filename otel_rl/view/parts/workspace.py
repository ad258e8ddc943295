"""Sections and charts of the page: three hundred keys of a program, so that a person finds one.

Metrics of the registry stand where the dashboard has them. Keys of a program's own stand under the
first segment of their names, and those that differ by one number share a chart.
"""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2s
from itertools import accumulate, pairwise
from typing import Any, Final

from otel_rl.dashboard.arrange import Panel, Section, arrange
from otel_rl.dashboard.resemblance import headlines, resembled
from otel_rl.dashboard.sections import OWN
from otel_rl.records import KeySpec
from otel_rl.semconv import names
from otel_rl.semconv.spec import METRICS, Tier
from otel_rl.view.downsample import downsample
from otel_rl.view.run_data import RunData, Series
from otel_rl.view.text import label, line_names

MOST_LINES: Final = 60
"""Keys that differ by a number, in one chart."""

_NUMBER: Final = re.compile(r"\d+")
EVALUATION: Final = re.compile(r"(^|[/_])(eval|evaluation|val|valid|validation|test)([-_/]|$)")
"""In the lower-case name of a key that is measured in evaluations."""

_SCORES: Final = (names.RL_REWARD_MEAN, names.RL_REWARD_STD)
_AMOUNT: Final = re.compile(
    r"(^|[/_.])(num_|total_num_|total_)?(tokens|samples|episodes)(_total)?$"
)
_MOST_AMOUNTS: Final = 8

_LINE_POINTS: Final = 600
_NS_PER_MS: Final = 1e6
_MS_PER_HOUR: Final = 3_600_000


def workspace(keys: Iterable[KeySpec]) -> Sequence[Section]:
    """Return the sections of the page, each with at least one chart."""
    keys = list(keys)
    specs = {spec.key: spec for spec in keys}
    known: list[Section] = []
    own: dict[str, list[Panel]] = defaultdict(list)
    for section in arrange(keys):
        stays = []
        for panel in section.panels:
            spec = specs[panel.keys[0]]
            name = _own_name(spec) and (spec.own_name or _own_name(spec))
            if name:
                first, _, rest = name.partition("/")
                own[first if rest else OWN].append(panel)
            else:
                stays.append(panel)
        if stays:
            known.append(Section(section.title, tuple(stays)))
    sections = [
        Section(title, tuple(_joined(panels, specs))) for title, panels in sorted(own.items())
    ]
    titles = {section.title for section in sections}
    # A section of the program may be called as one of ours.
    return [
        *(one for one in known if one.title not in titles),
        *(
            section
            if (ours := next((one for one in known if one.title == section.title), None)) is None
            else Section(section.title, (*ours.panels, *section.panels))
            for section in sections
        ),
    ]


def first_row(sections: Sequence[Section], keys: Iterable[KeySpec]) -> list[tuple[Section, Panel]]:
    """Return the charts that a person looks at first, at most one for each question, in order."""
    keys = list(keys)
    specs = {spec.key: spec for spec in keys}
    charts = [(section, panel) for section in sections for panel in section.panels]
    reward = next((spec.key for _, spec in headlines(keys)), "")
    found: list[tuple[Section, Panel]] = []
    for is_wanted in (lambda spec: spec.key == reward, *_QUESTIONS):
        matching = [
            one
            for one in charts
            if one not in found and any(is_wanted(specs[key]) for key in one[1].keys)
        ]
        if matching:
            # Of the registry before own ones, and the mean before its relatives.
            found.append(min(matching, key=lambda one: _rank(specs[one[1].keys[0]])))
    return found


def amounts(keys: Iterable[KeySpec]) -> dict[str, str]:
    """Return keys that count tokens, samples or episodes, with a word for each: x of a chart."""
    found: dict[str, str] = {}
    for spec in keys:
        match = _AMOUNT.search((spec.name or spec.key).lower())
        is_amount = match is not None and spec.unit.partition("/")[2] == ""
        if match and is_amount and not spec.worker and spec.statistic in {"value", "total"}:
            found.setdefault(spec.key, match[3])
    return dict(list(found.items())[:_MOST_AMOUNTS])


def _own_name(spec: KeySpec) -> str:
    """Return the name that the program gave; empty for a metric of the registry."""
    name = spec.name or spec.key
    return "" if name in names.METRICS or spec.section == "diagnosis" else name


def _joined(panels: Sequence[Panel], specs: Mapping[str, KeySpec]) -> list[Panel]:
    """Return the charts; those whose names differ by one number are one, at the first's place.

    Of more than ``MOST_LINES`` keys there are further charts, which are numbered.
    """
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, panel in enumerate(panels):
        for mask in _masks(panel.title):
            groups[mask, panel.unit, specs[panel.keys[0]].role].append(place)
    joined: dict[int, Panel] = {}
    left = set(range(len(panels)))
    for (mask, *_), places in sorted(groups.items(), key=lambda one: -len(one[1])):
        some = [place for place in places if place in left]
        if len(some) > 1:
            left -= {*some}
            for number, together in enumerate(_charts(some, panels), start=1):
                first = panels[together[0]]
                title = mask if number == 1 else f"{mask}, {number}"
                keys = tuple(key for place in together for key in panels[place].keys)
                joined[together[0]] = Panel(title, keys, first.axis, first.unit, is_stacked=False)
    return [
        joined.get(place, panel)
        for place, panel in enumerate(panels)
        if place in left or place in joined
    ]


def _charts(places: Sequence[int], panels: Sequence[Panel]) -> list[list[int]]:
    """Return the places of panels, by the chart in which there is room for their keys."""
    charts: list[list[int]] = [[]]
    lines = 0
    for place in places:
        lines += len(panels[place].keys)
        if charts[-1] and lines > MOST_LINES:
            charts.append([])
            lines = len(panels[place].keys)
        charts[-1].append(place)
    return charts


def _masks(title: str) -> list[str]:
    """Return the title with each of its numbers left open, one at a time."""
    return [
        f"{title[: number.start()]}*{title[number.end() :]}" for number in _NUMBER.finditer(title)
    ]


def _rank(spec: KeySpec) -> tuple[bool, bool, bool, str]:
    name = spec.name or spec.key
    is_beside = spec.role not in {"", "trainer"}
    return name not in names.METRICS, is_beside, "mean" not in spec.key, spec.key


def _is_like(*wanted: str) -> Callable[[KeySpec], bool]:
    def is_wanted(spec: KeySpec) -> bool:
        name = spec.name or spec.key
        if name in names.METRICS:
            return name in wanted
        return resembled(name) in wanted and not EVALUATION.search(spec.key.lower())

    return is_wanted


def _is_evaluation(spec: KeySpec) -> bool:
    name = spec.name or spec.key
    return resembled(name) in _SCORES and EVALUATION.search(name.lower()) is not None


_is_kl: Final = _is_like(names.RL_POLICY_KL_REFERENCE)
_QUESTIONS: Final[Sequence[Callable[[KeySpec], bool]]] = (
    _is_evaluation,
    _is_like(names.RL_GENERATOR_RESPONSE_TOKENS, names.RL_EPISODE_LENGTH),
    lambda spec: "coef" not in spec.key and _is_kl(spec),
    _is_like(names.RL_POLICY_ENTROPY),
    _is_like(names.RL_TRAIN_GRAD_NORM),
    lambda spec: spec.name == names.RL_PHASE_DURATION and spec.role == "trainer",
    _is_like(names.RL_ITERATION_DURATION),
    lambda spec: spec.name == names.RL_HEALTH_BOUND,
    _is_like(names.RL_TRAIN_TOKENS, names.RL_GENERATOR_TOKENS),
    _is_like(names.RL_POLICY_STALENESS),
)


# Charts of a run, with their values


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

    def keys(self, data: RunData) -> list[dict[str, Any]]:
        """Return titles and the keys of their charts that have data, with their units."""
        found = [
            {
                "title": section.title,
                "keys": [label(key) for key, _ in known],
                "units": [label(unit) for _, unit in known],
            }
            for section in self._sections
            for known in [
                [
                    (key, panel.unit)
                    for panel in section.panels
                    for key in panel.keys
                    if key in data.series
                ]
            ]
        ]
        return [section for section in found if section["keys"]]

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
        key: As ``Catalogue.keys`` names it, or as a diagnosis does.
        by_time: x is the time in hours since the first value of the run; else the step.
    """
    name = next((known for known in data.series if label(known) == key), key)
    series = data.series_of(name) or Series()
    xs: Sequence[float] = series.steps
    if by_time:
        xs = [(ms - data.begun_ns / _NS_PER_MS) / _MS_PER_HOUR for ms in series.times_ms]
    return downsample(xs, series.values, most=_LINE_POINTS)._asdict()
