"""List of the missed goals for docs/performance.md. The chart has all figures with a goal."""

from collections.abc import Iterator, Mapping

from bench.figures import Figure, Limits
from bench.record import PartRecord


def listing(parts: Mapping[str, PartRecord]) -> Iterator[str]:
    """Yield lines of Markdown: of each part its name, commit, date and load, and missed goals."""
    for name, part in parts.items():
        shown = [figure for figure in part.figures if figure.met is False]
        if shown:
            before, after = part.load
            when = f"{part.commit}, {part.date}, load {before:.0f} to {after:.0f}"
            yield from ("", f"`{name}` ({when}):", "")
            yield from map(_line, shown)


def _line(figure: Figure) -> str:
    is_ours = figure.limits is Limits.OURS
    value, unit = (figure.ours, f" {figure.unit}") if is_ours else (figure.ratio or 0.0, "")
    spread = "" if figure.spread is None else " ({:.2g} to {:.2g})".format(*figure.spread)
    return f"- {figure.name}: {value:.2g}{unit}{spread}; goal {figure.goal:.2g}"
