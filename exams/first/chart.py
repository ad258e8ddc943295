"""Chart of an exam: the share of each fault that is named right and first, with its interval."""

from collections.abc import Sequence
from typing import Final

from bench.svg import bar, document, text
from exams.first.shares import wilson

_LEFT: Final = 190
_BAR: Final = 400
_ROW: Final = 22
_COLOUR: Final = "#89a9cb"


def chart(faults: Sequence[tuple[str, int, int]], *, seed: int, commit: str) -> str:
    """Return an SVG image with a bar for each kind of fault.

    Args:
        faults: Name, cases named right and first, cases.
        seed: Of the exam.
        commit: Of its rules.

    The thin line is the 95 % interval after Wilson: with few cases it is long.
    """
    drawn = [
        text(12, 20, "Named right and first, by fault", "title"),
        text(12, 36, f"seed {seed}, {commit}; line: 95 % interval", "small"),
    ]
    y = 48
    for name, right, n in faults:
        low, high = (_LEFT + _BAR * end for end in wilson(right, n))
        drawn += (
            text(_LEFT - 10, y + 11, name, anchor="end"),
            bar(_LEFT, y, _BAR * right / n, _COLOUR),
            f'<path d="M{low:.1f} {y + 7}H{high:.1f}" stroke="#24292f"/>',
            text(_LEFT + _BAR + 14, y + 11, f"{right} of {n}", "small"),
        )
        y += _ROW
    return document("Faults named right and first", _LEFT + _BAR + 90, y + 8, drawn)
