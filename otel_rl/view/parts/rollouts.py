"""Data of the page *Rollouts*: the text samples that the journal still has, with a search."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from otel_rl.bridge.journal.run_reader import TableRow, read_tables
from otel_rl.records import CONSOLE, STACKS
from otel_rl.view.journals import Found
from otel_rl.view.text import label, passage

__all__ = ["rollouts"]

_MOST: Final = 200
_OWN: Final = "diagnosis/"
_STACKS: Final = f"/{STACKS}"


def rollouts(found: Found, *, search: str = "", table: str = "") -> dict[str, Any]:
    """Return the newest samples that match, and the rewards of all.

    Args:
        found: The run.
        search: Text in any field, in any case; empty for all.
        table: Name of a table; empty for the first.
    """
    with found.open() as connection:
        rows = read_tables(connection, found.id)
    names = sorted({key for row in rows for key in row.tables if _is_rollouts(key)})
    chosen = table if table in names else next(iter(names), "")
    samples = list(_samples(rows, chosen))
    columns = list(dict.fromkeys(column for sample in samples for column in sample))
    wanted = search.casefold()
    matching = [
        sample
        for sample in samples
        if not wanted or any(wanted in str(value).casefold() for value in sample.values())
    ]
    return {
        "tables": [label(name) for name in names],
        "table": label(chosen),
        "columns": [label(column) for column in columns],
        "samples": [
            [_shown(sample.get(column)) for column in columns] for sample in matching[:_MOST]
        ],
        "matching": len(matching),
        "all": len(samples),
        "rewards": [
            float(value)
            for sample in samples
            if isinstance(value := sample.get("reward"), int | float)
        ],
    }


def _is_rollouts(key: str) -> bool:
    return key != CONSOLE and not key.startswith(_OWN) and not key.endswith(_STACKS)


def _samples(rows: Sequence[TableRow], table: str) -> Iterator[dict[str, Any]]:
    """Yield samples as fields, the newest first."""
    for row in rows:
        found = row.tables.get(table)
        if found is not None:
            for line in reversed(found.rows):
                yield dict(zip(found.columns, line, strict=False))


def _shown(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    return passage(value if isinstance(value, str) else str(value))
