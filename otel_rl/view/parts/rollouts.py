"""Data of the page *Rollouts*: those in flight, and the finished ones that the journal keeps.

A view is one page of what matches, found by the heads of ``RolloutIndex``; only what is shown is
read with its texts.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from statistics import median
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.log import Log, read_log
from otel_rl.bridge.journal.state import StateRefused
from otel_rl.bridge.rows.rollouts import Head, InFlight, read_in_flight
from otel_rl.view.found import Found
from otel_rl.view.parts.rollout_index import Entry, RolloutIndex
from otel_rl.view.text import label, passage

_PAGE: Final = 100
_MOST_REWARDS: Final = 5_000  # of a histogram: of more, an even selection by rank
_MOST_IN_FLIGHT: Final = 500
_MOST_CHOICES: Final = 200
_NS_PER_S: Final = 1e9

_CHOICES: Final = ("table", "outcome", "environment")

_FROM_HEAD: Final = frozenset({"step", "worker"})
"""Columns that every sample has, in front and at the end."""

_Sample = dict[str, Any]
_Group = tuple[str, int | None]  # with the step


class Order(StrEnum):
    """Order of samples."""

    NEWEST = "newest"
    LOWEST = "lowest"
    HIGHEST = "highest"


class Wanted(Struct, frozen=True):
    """Rollouts that a reader wants, as the parameters of the page are called.

    Attributes:
        search: Text in any field, in any case; empty for all.
        table: Name of a table; empty for all.
        step: Only the rollouts of this step, else of the last one before it that has some; None for
            all steps.
        order: By reward those without one come last.
        outcome: Empty for all.
        environment: Empty for all.
        lowest: Only rewards from here on; None for all, also those without a reward.
        highest: Only rewards up to here.
        prompt: Digest of the prompt; None for all.
        page: From 0.
    """

    search: str = ""
    table: str = ""
    step: int | None = None
    order: Order = Order.NEWEST
    outcome: str = ""
    environment: str = ""
    lowest: float | None = None
    highest: float | None = None
    prompt: int | None = None
    page: int = 0


class _Matching(NamedTuple):
    entries: Sequence[Entry]
    wanted: Wanted
    version: int
    read: float
    rewards: Sequence[float]
    by_step: list[list[float]]


def rollouts(found: Found, index: RolloutIndex, wanted: Wanted) -> dict[str, Any]:
    """Return one page of rollouts, and the rewards of all that match, together and by step."""
    with found.open() as connection:
        matching = _matching(connection, found.id, index, wanted)
        entries = _in_order(matching.entries, wanted.order)
        first = max(0, wanted.page) * _PAGE
        shown = entries[first : first + _PAGE]
        fields = index.fields(connection, found.id, [one.number for one in shown])
    samples = [_sample(one, fields[one.number]) for one in shown]
    names = dict.fromkeys(chain.from_iterable(samples))
    columns = [name for name in names if name not in _FROM_HEAD]
    columns = [*(["step"] if "step" in names else []), *columns]
    columns += ["worker"] if "worker" in names else []
    return {
        **_facts(matching, index),
        "columns": [label(column) for column in columns],
        "samples": [[_shown(sample.get(column)) for column in columns] for sample in samples],
        "numbers": [str(one.number) for one in shown],
        "prompts": [str(one.head.prompt) if one.head.prompt else "" for one in shown],
        "rewards": matching.rewards,
        "by_step": matching.by_step,
    }


def prompts(found: Found, index: RolloutIndex, wanted: Wanted) -> dict[str, Any]:
    """Return one page of prompts by step, with the rewards of their rollouts."""
    with found.open() as connection:
        matching = _matching(connection, found.id, index, wanted)
    groups: dict[tuple[int, int | None], list[Entry]] = defaultdict(list)
    for one in matching.entries:
        if one.head.prompt:
            groups[one.head.prompt, one.head.step].append(one)
    first = max(0, wanted.page) * _PAGE
    rows = [_prompt_row(*place, some) for place, some in [*groups.items()][first : first + _PAGE]]
    return {
        **_facts(matching, index),
        "groups": len(groups),
        "prompts": rows,
        "rewards": matching.rewards,
        "by_step": matching.by_step,
    }


def one_rollout(found: Found, index: RolloutIndex, number: int) -> dict[str, Any] | None:
    """Return all that is known of a rollout; None if there is none of that number."""
    with found.open() as connection:
        index.read_on(connection, found.id)
        entry = index.entry(number)
        if entry is None:
            return None
        fields = index.fields(connection, found.id, [number])[number]
    return {
        "number": str(number),
        "prompt": str(entry.head.prompt) if entry.head.prompt else "",
        "trace_id": label(str(fields.get("trace_id", ""))),
        "fields": [[label(name), _shown(value)] for name, value in _sample(entry, fields).items()],
    }


def in_flight(found: Found, index: RolloutIndex, now_ns: int) -> dict[str, Any]:
    """Return the rollouts in flight, the one without progress for longest first, then by age.

    The one that holds up the buffer is the oldest of the group of which most have ended.
    """
    with found.open() as connection:
        index.read_on(connection, found.id)
        bodies = read_log(connection, found.id, Log.IN_FLIGHT)
    open_: Sequence[InFlight] = ()
    if bodies:
        try:
            open_ = read_in_flight(bodies[-1])
        except StateRefused:
            open_ = ()
    oldest = sorted(open_, key=_begun_ns)
    stalled = min(oldest, key=_progress_ns, default=None)
    if stalled is not None:
        oldest.remove(stalled)
        oldest.insert(0, stalled)
    ended = _ended_of_groups(index, open_)
    blocking = _blocking(open_, ended)
    quiet = [now_ns - _progress_ns(one) for one in open_]
    return {
        "all": len(open_),
        "median_quiet_s": median(quiet) / _NS_PER_S if quiet else None,
        "rollouts": [
            {
                "id": label(one.id),
                "attempt": one.attempt,
                "stage": label(one.stage),
                "worker": label(one.worker),
                "environment": label(one.environment),
                "group": label(one.group),
                "step": one.step,
                "prompt": passage(one.prompt),
                "age_s": max(0.0, (now_ns - _begun_ns(one)) / _NS_PER_S),
                "quiet_s": max(0.0, (now_ns - _progress_ns(one)) / _NS_PER_S),
                "is_stalled": one is stalled and len(open_) > 1,
                "is_blocking": one is blocking,
                "group_ended": ended.get(_group(one), 0),
            }
            for one in oldest[:_MOST_IN_FLIGHT]
        ],
    }


def _begun_ns(one: InFlight) -> int:
    return one.begun_ns + one.shift_ns


def _progress_ns(one: InFlight) -> int:
    return one.progress_ns + one.shift_ns


def _group(one: InFlight | Head) -> _Group:
    return one.group, one.step


def _ended_of_groups(index: RolloutIndex, open_: Sequence[InFlight]) -> Mapping[_Group, int]:
    """Return how many of the groups that have open rollouts have ended.

    A prompt comes again in each epoch: of rollouts without a step, those that ended before any of
    the open ones began are of an earlier one.
    """
    begun_ns: dict[_Group, int] = {}
    for one in open_:
        if one.group:
            begun_ns[_group(one)] = min(one.begun_ns, begun_ns.get(_group(one), one.begun_ns))
    ended: dict[_Group, int] = defaultdict(int)
    for _, head in index.entries() if begun_ns else ():
        since_ns = begun_ns.get(_group(head))
        if since_ns is not None and (head.step is not None or head.time_ns >= since_ns):
            ended[_group(head)] += 1
    return ended


def _blocking(open_: Sequence[InFlight], ended: Mapping[_Group, int]) -> InFlight | None:
    """Return the rollout that the buffer waits for: without groups the oldest of the lowest step.

    A buffer that takes whole groups has most of the group already of which most have ended.
    """
    if len(open_) < 2:
        return None
    left: dict[_Group, int] = defaultdict(int)
    for one in open_:
        left[_group(one)] += 1

    def rank(one: InFlight) -> tuple[float, float, int]:
        done = ended.get(_group(one), 0)
        step = math.inf if one.step is None else one.step
        return -done / (done + left[_group(one)]), step, _begun_ns(one)

    return min(open_, key=rank)


def _matching(connection: Connection, run: str, index: RolloutIndex, wanted: Wanted) -> _Matching:
    """Return what matches; of a reader who only turns pages, as it was found before."""
    read = index.read_on(connection, run)
    of = replace(wanted, page=0, order=Order.NEWEST)
    known = index.kept
    if isinstance(known, _Matching) and known.wanted == of and known.version == index.version:
        return known
    entries: Sequence[Entry] = index.entries()
    for accepts in _filters(index, wanted):
        entries = [one for one in entries if accepts(one.head)]
    if wanted.step is not None:
        steps = (step for one in entries if (step := one.head.step) is not None)
        newest = max((step for step in steps if step <= wanted.step), default=None)
        entries = [one for one in entries if newest is not None and one.head.step == newest]
    if wanted.search:
        numbers, share = index.find(connection, run, wanted.search.casefold())
        entries = [one for one in entries if one.number in numbers]
        read = min(read, share)
    rewards = _thinned(sorted(reward for _, reward in _rewards(entries)))
    found = _Matching(entries, of, index.version, read, rewards, _by_step(entries))
    index.kept = found if read == 1 else None
    return found


def _filters(index: RolloutIndex, wanted: Wanted) -> Iterator[Callable[[Head], bool]]:
    for name in _CHOICES:
        if text := getattr(wanted, name):
            yield _is_one_of(name, {one for one in index.choices[name] if label(one) == text})
    if wanted.prompt is not None:
        yield lambda head: head.prompt == wanted.prompt
    lowest, highest = wanted.lowest, wanted.highest
    if lowest is not None or highest is not None:
        low = -math.inf if lowest is None else lowest
        high = math.inf if highest is None else highest
        yield lambda head: head.reward is not None and low <= head.reward <= high


def _is_one_of(name: str, words: Collection[str]) -> Callable[[Head], bool]:
    of = attrgetter(name)
    return lambda head: of(head) in words


def _facts(matching: _Matching, index: RolloutIndex) -> dict[str, Any]:
    return {
        **{
            f"{name}s": sorted(map(label, filter(None, index.choices[name])))[:_MOST_CHOICES]
            for name in _CHOICES
        },
        "matching": len(matching.entries),
        "all": len(index),
        "read": round(matching.read, 3),
        "left_out": index.left_out,
        "damaged": index.damaged,
        "page_size": _PAGE,
    }


def _sample(entry: Entry, fields: Mapping[str, Any]) -> _Sample:
    """Return the fields as a table has them: the step in front and the worker at the end."""
    head = entry.head
    sample: _Sample = {} if head.step is None else {"step": head.step}
    sample.update((name, value) for name, value in fields.items() if name not in _FROM_HEAD)
    return {**sample, "worker": head.worker} if head.worker else sample


def _prompt_row(prompt: int, step: int | None, some: Sequence[Entry]) -> dict[str, Any]:
    rewards = [reward for _, reward in _rewards(some)]
    best = max(rewards, default=None)
    return {
        "prompt": str(prompt),
        "beginning": label(some[0].head.beginning),
        "step": step,
        "samples": len(some),
        "mean": sum(rewards) / len(rewards) if rewards else None,
        "spread": None if best is None else best - min(rewards),
        "best": best,
        "characters": sum(one.head.length for one in some) / len(some),
    }


def _rewards(entries: Iterable[Entry]) -> Iterator[tuple[int | None, float]]:
    """Yield steps and rewards."""
    for one in entries:
        reward = one.head.reward
        if reward is not None and math.isfinite(reward):
            yield one.head.step, float(reward)


def _thinned(values: Sequence[float]) -> Sequence[float]:
    if len(values) <= _MOST_REWARDS:
        return values
    last = len(values) - 1
    return [values[round(n * last / (_MOST_REWARDS - 1))] for n in range(_MOST_REWARDS)]


def _by_step(entries: Iterable[Entry]) -> list[list[float]]:
    """Return of each step the 10th, 50th and 90th percentile of rewards, and shares of extremes.

    These are the share of the samples with a reward of 0 or less, and with the highest of all.
    """
    steps: dict[int, list[float]] = defaultdict(list)
    for step, reward in _rewards(entries):
        if step is not None:
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


def _in_order(entries: Sequence[Entry], order: Order) -> Sequence[Entry]:
    if order is Order.NEWEST:
        return entries
    sign = 1 if order is Order.LOWEST else -1

    def rank(one: Entry) -> tuple[bool, float]:
        reward = one.head.reward
        if reward is None or math.isnan(reward):
            return True, 0.0
        return False, sign * reward

    return sorted(entries, key=rank)


def _shown(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    return passage(value if isinstance(value, str) else str(value))
