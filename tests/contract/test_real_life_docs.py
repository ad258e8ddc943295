"""What docs/worker.md says of real life is held by tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WORDS = [
    "fork",
    "multiprocessing, spawn",
    "threads",
    "asyncio",
    "signals",
    "`os._exit`, exec, a kill",
    "the interpreter's exit",
    "a clock that jumps",
    "1,000 metrics in one call",
    "scalars of numpy and torch",
    "names in any script",
    "no bridge, or one that dies",
]


def held_by() -> dict[str, list[str]]:
    """Word -> beginnings of names of tests."""
    page = (ROOT / "docs" / "worker.md").read_text(encoding="utf-8")
    section = page.partition("## What real life does\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| .+ \| (`test_.+`) \|$", section, re.MULTILINE)
    return {word: re.findall(r"`(test_\w+)`", cell) for word, cell in rows}


def test_every_word_has_a_row() -> None:
    assert [*held_by()] == WORDS


@pytest.mark.parametrize("word", WORDS)
def test_every_word_is_held_by_tests_that_exist(word: str) -> None:
    files = [
        *(ROOT / "tests/process").glob("test_*.py"),
        *(ROOT / "tests/unit/worker").glob("*.py"),
    ]
    defined = "\n".join(file.read_text(encoding="utf-8") for file in files)
    missing = [name for name in held_by()[word] if f"\ndef {name}" not in defined]
    assert missing == []
