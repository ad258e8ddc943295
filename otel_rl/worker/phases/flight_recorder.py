"""Reads dumps of PyTorch's flight recorder: open collectives, and the ranks that are missing.

Ranks that are missing in one group may wait in another. So the named ranks are those that others
wait for, and that wait for none themselves:

group a    [ rank 0 waits ][ rank 1 is not here ]
group b    [ rank 2 waits ][ rank 0 is not here ][ rank 1 is not here ]    rank 1 is named

Each rank dumps its own collectives to a file of its own, ``<prefix><rank>``, as a pickle of plain
values. A pickle may call any function while it is read, so everything but plain values is refused.
"""

import io
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

_PREFIXES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")

_MAX_BYTES: Final = 16 << 20
_MAX_FILES: Final = 64
_MOST_NAMED: Final = 8
_MOST_TOLD: Final = 3
_DONE: Final = "completed"
_MAX_CHARS: Final = 100


class _Collective(NamedTuple):
    """A collective; collectives are ordered by their begin (ns since the epoch, by any rank)."""

    begun_ns: int
    group: str
    number: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (number {self.number} of group {self.group})"


class _Dump(NamedTuple):
    """Dump of one rank.

    Attributes:
        last: By group, the number of the last collective that the rank has entered.
        open: Collectives that the rank has entered and not left, in order.
        ranks: Ranks of each group.
    """

    last: Mapping[str, int]
    open: list[_Collective]
    ranks: Mapping[str, list[int]]


def collective_in_words(environ: Mapping[str, str], since_ns: int) -> str:
    """Return the open collectives that lack ranks, with these ranks; empty without such a dump.

    ``environ`` names the prefix of the files, as PyTorch reads it. Dumps from before ``since_ns``
    (nanoseconds since the epoch) are of another hang.
    """
    prefix = next((environ[name] for name in _PREFIXES if environ.get(name)), "")
    if not prefix:
        return ""
    dumps = {rank: dump for rank, path in _files(prefix, since_ns) if (dump := _read(path))}
    waiting = sorted(one for dump in dumps.values() for one in dump.open)
    if not waiting:
        return ""
    groups = {name: ranks for dump in dumps.values() for name, ranks in dump.ranks.items()}

    @cache
    def late(group: str, number: int) -> list[int]:
        ranks = groups.get(group) or sorted(dumps)
        return [of for of in ranks if of in dumps and dumps[of].last.get(group, 0) < number]

    waits = {
        rank
        for rank, dump in dumps.items()
        if any(late(one.group, one.number) for one in dump.open)
    }
    missing = {of for one in waiting for of in late(one.group, one.number)}
    # All of them wait where two groups were entered in two orders.
    missing = missing - waits or missing
    told = []
    for one in sorted(
        waiting, key=lambda of: -len(missing.intersection(late(of.group, of.number)))
    ):
        if some := missing.intersection(late(one.group, one.number)):
            told.append(f"{one} is without {_ranks(sorted(some))}")
            missing -= some
    if told:
        return "; ".join(told[:_MOST_TOLD])
    one = waiting[0]
    unknown = [of for of in groups.get(one.group, ()) if of not in dumps]
    if unknown:
        return f"{one} is open; {_ranks(unknown)} left no dump"
    return f"{one} has all ranks and does not end"


def _ranks(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"


def _files(prefix: str, since_ns: int) -> Iterator[tuple[int, Path]]:
    """Yield rank and path of new dumps of this user."""
    start = Path(prefix)
    pattern = re.compile(re.escape(start.name) + r"(\d{1,9})")
    found = 0
    try:
        names = sorted(path.name for path in start.parent.iterdir())
    except OSError:
        return
    for name in names:
        match = pattern.fullmatch(name)
        if match is None or found >= _MAX_FILES:
            continue
        path = start.parent / name
        try:
            status = path.stat()
        except OSError:  # removed meanwhile
            continue
        is_own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
        if is_own and status.st_mtime_ns >= since_ns and status.st_size <= _MAX_BYTES:
            found += 1
            yield int(match[1]), path


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists, tuples, sets and dictionaries, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")

    def persistent_load(self, _pid: Any) -> Any:
        raise pickle.UnpicklingError("a reference is no plain value")


def _read(path: Path) -> _Dump | None:
    """Read a dump; None if the file holds no dump, or is being written."""
    try:
        content = _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
        return _dump(content)
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ):
        return None


def _dump(content: Any) -> _Dump:  # of any shape
    last: dict[str, int] = {}
    waiting: list[_Collective] = []
    groups: dict[str, str] = {}
    for entry in content["entries"]:
        if entry.get("is_p2p"):
            continue
        group, name = map(str, entry["process_group"])
        groups[group] = name
        number = int(entry["collective_seq_id"])
        last[group] = max(number, last.get(group, 0))
        if not entry.get("retired") and entry.get("state") != _DONE:
            words = str(entry.get("profiling_name", "a collective"))[:_MAX_CHARS]
            begun_ns = int(entry.get("time_created_ns") or 0)
            waiting.append(_Collective(begun_ns, group, number, words))
    config = content.get("pg_config") or {}
    ranks: dict[str, list[int]] = {}
    for group, name in groups.items():
        known = config.get(group) or config.get(name)
        if known is None and len(config) == 1:
            (known,) = config.values()
        if known is not None:
            ranks[group] = [int(of) for of in re.findall(r"\d+", str(known["ranks"]))]
    return _Dump(last, waiting, ranks)
