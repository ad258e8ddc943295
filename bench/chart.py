"""Chart of the published figures: each one beside its goal, as an SVG image."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from bench.figures import Figure, Limits
from bench.record import PartRecord
from bench.svg import bar, document, text

_WIDTH: Final = 1180
_BAR_X: Final = 410
_GOAL_PX: Final = 80
"""Pixels of a bar whose value is its goal."""

_MOST: Final = 3.0
"""Goals at which a bar is cut off."""

_TEXT_X: Final = _BAR_X + int(_GOAL_PX * _MOST) + 14
_ROW: Final = 24
_HEAD: Final = 52

_COLOURS: Final[Mapping[bool, str]] = {True: "#3a8f5c", False: "#d9822b"}
"""Of a bar, by whether the goal is met."""


def chart(parts: Iterable[PartRecord]) -> str:
    """Return an SVG image of every figure that has a goal, grouped by part.

    Each bar is a cost in units of its goal, so all goals are one line: a bar that crosses it
    misses. The text beside has the cost, the alternative's and the ratio, with the lowest and
    highest round.
    """
    drawn = [text(_BAR_X + _GOAL_PX + 5, 18, "goal", "small")]
    y = 30
    for part in parts:
        shown = [one for one in part.figures if one.goal is not None]
        if shown:
            drawn.extend(_part(part, shown, y))
            y += _HEAD + _ROW * len(shown)
    return document("Costs of otel_rl beside their goals", _WIDTH, y, drawn)


def _part(part: PartRecord, shown: Sequence[Figure], y: int) -> Iterator[str]:
    before, after = part.load
    when = f"{part.commit}, {part.date}, {part.machine}, load {before:.0f} to {after:.0f}"
    yield text(12, y + 14, part.title, "title")
    yield text(12, y + 30, when, "small")
    top = y + _HEAD - 14
    for number, figure in enumerate(shown):
        yield from _row(figure, top + number * _ROW)
    x, bottom = _BAR_X + _GOAL_PX, top + _ROW * len(shown)
    yield f'<path d="M{x} {top - 4}V{bottom - 4}" stroke="#24292f" stroke-dasharray="3 3"/>'


def _row(figure: Figure, y: int) -> Iterator[str]:
    goals = _limited(figure) / (figure.goal or 1)
    width = min(goals, _MOST) * _GOAL_PX
    colour = _COLOURS[figure.met is not False]
    yield text(_BAR_X - 10, y + 11, figure.name, anchor="end")
    yield bar(_BAR_X, y, width, colour)
    yield text(_TEXT_X, y + 11, _words(figure), "small")


def _limited(figure: Figure) -> float:
    """Return the value that the goal bounds."""
    return figure.ours if figure.limits is Limits.OURS else figure.ratio or 0.0


def _words(figure: Figure) -> str:
    """Return the cost, its ratio to the alternative's and the goal, as a line of text."""
    ours = f"{figure.ours:.3g} {figure.unit}"
    theirs = "" if figure.theirs is None else f"{figure.theirs:.3g}, {figure.against}"
    spread = "" if figure.spread is None else " ({:.2g} to {:.2g})".format(*figure.spread)
    if figure.limits is Limits.OURS:
        beside = f"; beside {theirs}" if theirs else ""
        return f"{ours}{spread}{beside}; goal {figure.goal:.2g} {figure.unit}"
    return f"{ours}: {figure.ratio or 0:.2g}{spread} of {theirs}; goal {figure.goal:.2g}"
