"""Data of the page *Rollouts*: the text samples that the journal still has, with a search."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from otel_rl.bridge.journal.reader import read_tables
from otel_rl.records import CONSOLE, STACKS, Row
from otel_rl.view.journals import Found
from otel_rl.view.text import label, passage

__all__ = ["Order", "Wanted", "rollouts"]

_MOST: Final = 200
_OWN: Final = "diagnosis/"
_STACKS: Final = f"/{STACKS}"

_Sample = dict[str, Any]


class Order(StrEnum):
    """Order of samples."""

    NEWEST = "newest"
    LOWEST = "lowest"
    HIGHEST = "highest"


class Wanted(NamedTuple):
    """Samples that a reader wants.

    Attributes:
        search: Text in any field, in any case; empty for all.
        table: Name of a table; empty for the first.
        step: Only the samples of this step, else of the last one before it that has some; None for
            all steps.
        order: Of the samples; by reward those without one come last.
    """

    search: str = ""
    table: str = ""
    step: int | None = None
    order: Order = Order.NEWEST


_ALL: Final = Wanted()


def rollouts(found: Found, wanted: Wanted = _ALL) -> dict[str, Any]:
    """Return samples, and the rewards of all that match, together and by step."""
    with found.open() as connection:
        rows = [*read_tables(connection, found.id)]
    names = sorted({key for row in rows for key in row.tables if _is_rollouts(key)})
    chosen = wanted.table if wanted.table in names else next(iter(names), "")
    samples = list(_samples(rows, chosen))
    columns = list(dict.fromkeys(column for sample in samples for column in sample))
    matching = _in_order(list(_matching(_of_step(samples, wanted.step), wanted.search)), wanted)
    return {
        "tables": [label(name) for name in names],
        "table": label(chosen),
        "columns": [label(column) for column in columns],
        "samples": [
            [_shown(sample.get(column)) for column in columns] for sample in matching[:_MOST]
        ],
        "matching": len(matching),
        "all": len(samples),
        "rewards": [reward for _, reward in _rewards(matching)],
        "by_step": _by_step(matching),
    }


def _rewards(samples: Iterable[_Sample]) -> Iterator[tuple[object, float]]:
    """Yield steps and rewards."""
    for sample in samples:
        reward = sample.get("reward")
        if isinstance(reward, int | float) and math.isfinite(reward):
            yield sample.get("step"), float(reward)


def _by_step(samples: Iterable[_Sample]) -> list[list[float]]:
    """Return of each step the 10th, 50th and 90th percentile of rewards, and shares of extremes.

    These are the share of the samples with a reward of 0 or less, and with the highest of all.
    """
    steps: dict[float, list[float]] = defaultdict(list)
    for step, reward in _rewards(samples):
        if isinstance(step, int | float) and math.isfinite(step):
            steps[step].append(reward)
    highest = max((max(rewards) for rewards in steps.values()), default=0.0)
    found = []
    for step, rewards in sorted(steps.items()):
        rewards.sort()
        n = len(rewards)
        low, middle, high = (rewards[round(share * (n - 1))] for share in (0.1, 0.5, 0.9))
        shares = (bisect_right(rewards, 0.0) / n, rewards.count(highest) / n)
        found.append([step, low, middle, high, *shares])
    return found


def _matching(samples: Iterable[_Sample], search: str) -> Iterator[_Sample]:
    text = search.casefold()
    for sample in samples:
        if not text or any(text in str(value).casefold() for value in sample.values()):
            yield sample


def _of_step(samples: Sequence[_Sample], step: int | None) -> Sequence[_Sample]:
    if step is None:
        return samples
    steps = [one for sample in samples if isinstance(one := sample.get("step"), int | float)]
    newest = max((one for one in steps if one <= step), default=None)
    return [sample for sample in samples if newest is not None and sample.get("step") == newest]


def _in_order(samples: Sequence[_Sample], wanted: Wanted) -> Sequence[_Sample]:
    if wanted.order is Order.NEWEST:
        return samples
    sign = 1 if wanted.order is Order.LOWEST else -1

    def rank(sample: _Sample) -> tuple[bool, float]:
        reward = sample.get("reward")
        if not isinstance(reward, int | float) or math.isnan(reward):
            return True, 0.0
        return False, sign * reward

    return sorted(samples, key=rank)


def _is_rollouts(key: str) -> bool:
    return key != CONSOLE and not key.startswith(_OWN) and not key.endswith(_STACKS)


def _samples(rows: Sequence[Row], table: str) -> Iterator[_Sample]:
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
