"""Reads dumps of PyTorch's flight recorder: the open collective, and the missing ranks.

Each rank dumps its own collectives to a file of its own, ``<prefix><rank>``, as a pickle of plain
values. A pickle may call any function while it is read, so everything but plain values is refused.
"""

import io
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["collective_in_words"]

_PREFIXES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")

_MAX_BYTES: Final = 16 << 20
_MAX_FILES: Final = 64
_MOST_NAMED: Final = 8
_DONE: Final = "completed"
_MAX_CHARS: Final = 100


class _Collective(NamedTuple):
    group: str
    number: int
    name: str


class _Dump(NamedTuple):
    """Dump of one rank.

    Attributes:
        last: By group, the number of the last collective that the rank has entered.
        open: Collectives that the rank has entered and not left, in order.
        ranks: By group, its ranks.
    """

    last: Mapping[str, int]
    open: list[_Collective]
    ranks: Mapping[str, list[int]]


def collective_in_words(environ: Mapping[str, str], since_ns: int) -> str:
    """Return the oldest open collective and who is missing; empty without a dump of one.

    ``environ`` names the prefix of the files, as PyTorch reads it. Dumps from before ``since_ns``
    (nanoseconds since the epoch) are of another hang.
    """
    prefix = next((environ[name] for name in _PREFIXES if environ.get(name)), "")
    if not prefix:
        return ""
    dumps = {rank: dump for rank, path in _files(prefix, since_ns) if (dump := _read(path))}
    waiting = [(one.number, rank, one) for rank, dump in dumps.items() for one in dump.open]
    if not waiting:
        return ""
    number, rank, one = min(waiting)
    ranks = dumps[rank].ranks.get(one.group) or sorted(dumps)
    late = [of for of in ranks if of in dumps and dumps[of].last.get(one.group, 0) < number]
    unknown = [of for of in ranks if of not in dumps]
    words = f"{one.name} (number {number} of group {one.group})"
    if late:
        return f"{words} is without {_named(late)}"
    if unknown:
        return f"{words} is open; {_named(unknown)} left no dump"
    return f"{words} has all ranks and does not end"


def _named(ranks: list[int]) -> str:
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
            waiting.append(_Collective(group, number, words))
    config = content.get("pg_config") or {}
    ranks: dict[str, list[int]] = {}
    for group, name in groups.items():
        known = config.get(group) or config.get(name)
        if known is None and len(config) == 1:
            (known,) = config.values()
        if known is not None:
            ranks[group] = [int(of) for of in re.findall(r"\d+", str(known["ranks"]))]
    return _Dump(last, waiting, ranks)
