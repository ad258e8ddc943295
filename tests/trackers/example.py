"""The tracker of examples/tracker, installed as docs/write-a-tracker.md registers it."""

import shutil
import sqlite3
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.records import Row
from tests.support.docs_examples import blocks

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "write-a-tracker.md"
_CODE = _ROOT / "examples" / "tracker" / "sqlite.py"

_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"


def install_example(directory: Path) -> Path:
    """Write the package and its metadata. Returns the directory for the path."""
    place = directory / "site"
    (entry_points,) = blocks(_PAGE, "ini")
    package = place / "my_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(_CODE, package / "tracker.py")
    groups = tomllib.loads(entry_points)["project"]["entry-points"]
    register(place, "my-package", dict(groups["otel_rl.trackers"]))
    return place


def register(place: Path, name: str, trackers: Mapping[str, str]) -> None:
    """Write a package's metadata, with these trackers as entry points."""
    metadata = place / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(_METADATA.format(name=name), encoding="utf-8")
    lines = ["[otel_rl.trackers]", *(f"{key} = {value}" for key, value in trackers.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def read_example(run: RunInfo) -> list[Row]:
    """The run's rows, in the order of their insertion."""
    database = sqlite3.connect(run.directory / "runs.db")
    values: dict[int, dict[str, float]] = defaultdict(dict)
    for number, key, value in database.execute(
        'SELECT number, key, value FROM "values" WHERE run = ?', [run.run_id]
    ):
        values[number][key] = float(value)
    rows = database.execute(
        "SELECT number, step, time_ns, policy_version, attempt FROM rows WHERE run = ?"
        " ORDER BY rowid",
        [run.run_id],
    ).fetchall()
    database.close()
    return [
        Row(
            number=number,
            step=step,
            time_ns=time_ns,
            values=values[number],
            policy_version=version,
            attempt=attempt,
        )
        for number, step, time_ns, version, attempt in rows
    ]
