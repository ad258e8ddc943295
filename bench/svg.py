"""Elements of an SVG image for the charts of the documentation."""

from collections.abc import Iterable
from html import escape
from typing import Final

_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}"
    ".small{font-size:11px;fill:#57606a}.title{font-weight:600}"
)


def document(title: str, width: int, height: int, elements: Iterable[str]) -> str:
    """Return an image on white, for pages of either colour scheme; sizes in pixels."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n"
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(elements) + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    """Return a line of text; ``style`` is empty, ``small`` or ``title``."""
    return (
        f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def bar(x: float, y: float, width: float, colour: str) -> str:
    """Return a horizontal bar of a row of text."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="14" fill="{colour}"/>'
