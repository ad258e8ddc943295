"""Record of a bench: each part with its figures, the commit and the machine of its run.

``build/bench.json`` has the parts of one run. ``docs/bench.json`` has the latest published run of
each part, and docs/performance.md is made from it.
"""

import datetime as dt
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from bench.figures import Figure

PUBLISHED: Final = Path("docs/bench.json")

_DIRTY: Final = "-changed"
"""End of a commit's name if tracked files differed from it."""


@dataclass(frozen=True, slots=True)
class PartRecord:
    """Figures of one part of the bench.

    Attributes:
        title: The question that the part answers.
        commit: Of the code that was measured; ends in ``-changed`` if files differed from it.
        date: Of the run, UTC.
        machine: Cores and Python.
        load: Load average of one minute when the part began and when it ended.
        figures: In the order in which they were measured.
    """

    title: str
    commit: str
    date: str
    machine: str
    load: tuple[float, float]
    figures: Sequence[Figure]


def record(title: str, figures: Sequence[Figure], load: tuple[float, float]) -> PartRecord:
    """Return the record of a part that has just been measured."""
    now = dt.datetime.now(dt.UTC)
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    return PartRecord(title, _commit(), f"{now:%Y-%m-%d}", machine, load, figures)


def read(path: Path) -> dict[str, PartRecord]:
    """Return each part of a file of records; none if there is no file."""
    if not path.exists():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, PartRecord])


def write(records: Mapping[str, PartRecord], path: Path) -> None:
    """Write a file of records; each figure also tells whether it met its goal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {part: asdict(one) for part, one in records.items()}
    for part, one in records.items():
        kept[part]["figures"] = [{**asdict(figure), "met": figure.met} for figure in one.figures]
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def publish(records: Mapping[str, PartRecord], path: Path = PUBLISHED) -> None:
    """Replace these parts of the published record."""
    write({**read(path), **records}, path)


def _commit() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--abbrev=9", f"--dirty={_DIRTY}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"
