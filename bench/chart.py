"""Chart of the published figures: each one beside its goal, as an SVG image."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from bench.figures import Figure, Limits
from bench.record import PartRecord

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
    drawn: list[str] = []
    y = 30
    for part in parts:
        shown = [one for one in part.figures if one.goal is not None]
        if shown:
            drawn.extend(_part(part, shown, y))
            y += _HEAD + _ROW * len(shown)
    legend = f'<text x="{_BAR_X + _GOAL_PX + 5}" y="18" class="small">goal</text>'
    style = (
        "text{font:13px system-ui,sans-serif;fill:#24292f}"
        ".small{font-size:11px;fill:#57606a}.title{font-weight:600}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}">\n'
        f"<title>Costs of otel_rl beside their goals</title>\n<style>{style}</style>\n"
        f'<rect width="100%" height="100%" fill="#fff"/>\n{legend}\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _part(part: PartRecord, shown: Sequence[Figure], y: int) -> Iterator[str]:
    before, after = part.load
    when = f"{part.commit}, {part.date}, {part.machine}, load {before:.0f} to {after:.0f}"
    yield f'<text x="12" y="{y + 14}" class="title">{escape(part.title)}</text>'
    yield f'<text x="12" y="{y + 30}" class="small">{escape(when)}</text>'
    top = y + _HEAD - 14
    for number, figure in enumerate(shown):
        yield from _row(figure, top + number * _ROW)
    x, bottom = _BAR_X + _GOAL_PX, top + _ROW * len(shown)
    yield f'<path d="M{x} {top - 4}V{bottom - 4}" stroke="#24292f" stroke-dasharray="3 3"/>'


def _row(figure: Figure, y: int) -> Iterator[str]:
    goals = _limited(figure) / (figure.goal or 1)
    width = min(goals, _MOST) * _GOAL_PX
    colour = _COLOURS[figure.met is not False]
    yield f'<text x="{_BAR_X - 10}" y="{y + 11}" text-anchor="end">{escape(figure.name)}</text>'
    yield f'<rect x="{_BAR_X}" y="{y}" width="{width:.1f}" height="14" fill="{colour}"/>'
    yield f'<text x="{_TEXT_X}" y="{y + 11}" class="small">{escape(_words(figure))}</text>'


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
