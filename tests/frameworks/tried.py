"""Keeps what the tests with real frameworks have tried, for the table of docs/how-to/frameworks.md.

A test with the mark ``tried`` that passes must find its versions and its claim in ``tried.json``;
with ``OTEL_RL_TRIED=write`` it writes them. The lab's run thus fails when a version changes.
"""

import fcntl
import json
import os
import re
from pathlib import Path
from typing import Final

from tests.lab.frameworks.sources import SOURCES

TRIED: Final = Path(__file__).with_name("tried.json")
"""By row of the table: the versions tried, and what was seen."""

_LOCKS: Final = Path(__file__).parents[1] / "lab" / "frameworks"


def versions(packages: tuple[str, ...], lock: str = "requirements") -> str:
    """Return the names and versions as the table has them: those that the lab installs."""
    text = (_LOCKS / f"{lock}.lock").read_text()
    return ", ".join(f"{package} {_version(package, text)}" for package in packages)


def tried(row: str, versions: str, seen: str) -> None:
    """Compare what a test has seen with the file, or write it."""
    entry = {"seen": seen, "tried": versions}
    with TRIED.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # tests run in several processes
        table = json.load(file)
        if os.environ.get("OTEL_RL_TRIED") == "write":
            table[row] = entry
            file.seek(0)
            file.truncate()
            json.dump(table, file, indent=2, sort_keys=True)
            file.write("\n")
    hint = f"run the tests of {TRIED.parent.name} with OTEL_RL_TRIED=write, then edit the docs"
    assert table.get(row) == entry, f"{row} in {TRIED.name} is of another run: {hint}"


def _version(package: str, lock: str) -> str:
    source = SOURCES.get(package.lower())
    if source is not None:
        return source.version
    name = {"tunix": "google-tunix"}.get(package.lower(), package.lower())
    found = re.search(rf"^{re.escape(name)}==(\S+) ", lock, re.MULTILINE)
    assert found, f"{package} is not in the lab"
    return found[1]
