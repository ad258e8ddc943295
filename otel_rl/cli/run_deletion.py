"""Deletes one run of a data directory: what the journal has of it, and its files there."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.reader import looking, read_runs
from otel_rl.bridge.journal.retention import delete_run
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, LOCK_FILE, LockFile, SqliteJournal
from otel_rl.cli.find_run import FoundRun, Runs
from otel_rl.cli.replays import archive_place
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError, JournalLocked
from otel_rl.plurals import many
from otel_rl.redaction import shown

__all__ = ["delete"]


def delete(settings: BridgeSettings, name: str, *, is_confirmed: bool) -> int:
    """Delete the run of a name, once that is confirmed. Returns the exit status.

    Args:
        settings: Those of its bridge.
        name: ``EXPERIMENT/TRIAL``, one of both, or an id.
        is_confirmed: Whether nobody is asked.

    Raises:
        ConfigError: It is not clear which run, or a database has it.
        JournalLocked: A bridge is writing it.
    """
    if settings.journal.url is not None:
        raise ConfigError(
            "--delete: the runs of a database are removed by its bridges.",
            hint="They do so journal.keep_ended after the end of a run.",
        )
    run, directory = _wanted(settings, name)
    key, identity = run.key, run.id
    locations = [one.location for one in run.overviews if one.location]
    rows = max(one.rows for one in run.overviews)
    # `otel-rl run` makes a data directory for each run.
    with looking(directory) as connection:
        is_alone = {one.key for one in read_runs(connection)} == {key}
    is_alone &= directory.name == identity
    with closing(_held(directory, settings, is_alone=is_alone)) as held:
        paths = [directory] if is_alone else [*_files(settings, directory, identity)]
        words = " and ".join([many(rows, "row"), *map(str, paths)])
        if not (is_confirmed or _is_wished(f"Delete run {key} with {words}?")):
            say("nothing was deleted")
            return 1
        if isinstance(held, SqliteJournal):
            delete_run(held, key, time.time_ns())
        for path in paths:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    say(f"run {key} was deleted")
    for location in locations:
        if "://" in location or Path(location).exists():
            say(f"  its tracker keeps it: {location}")
    return 0


def _wanted(settings: BridgeSettings, name: str) -> tuple[FoundRun, Path]:
    """Return the run, and the directory of its journal.

    Raises:
        ConfigError: There is no such run, or more than one.
    """
    with Runs(settings) as runs:
        found = runs.named(name)
    keys = {run.key: run.id for run in found}
    if len(keys) > 1:
        names = " or ".join([*keys.values()][:3])
        raise ConfigError(
            f"{name!r} names {len(keys)} runs {settings.journal_place.words}.",
            hint=f"Write EXPERIMENT/TRIAL, or the id of one of them, such as {names}.",
        )
    places = [run.directory for run in found if run.directory is not None]
    if len(places) > 1:
        raise ConfigError(
            f"{len(places)} journals have the run {found[0].key}: "
            f"{', '.join(map(str, places[:3]))}.",
            hint="Name the directory of one: otel-rl runs DIR --delete RUN.",
        )
    return found[0], places[0]


class _Held(Protocol):
    def close(self) -> None: ...


def _held(directory: Path, settings: BridgeSettings, *, is_alone: bool) -> _Held:
    """Lock a data directory against bridges; if it has other runs, by opening its journal.

    Raises:
        JournalLocked: A bridge uses it.
    """
    try:
        if is_alone:
            return LockFile(directory / LOCK_FILE)
        return SqliteJournal(directory, max_bytes=settings.journal.max_bytes)
    except JournalLocked as exc:
        raise JournalLocked(
            f"--delete: {exc.args[0]}",
            hint="That is the bridge which writes the run. Let `otel-rl run` come to its end, or "
            "stop `otel-rl bridge`, and delete the run then. A bridge that goes on removes ended "
            "runs by itself, after journal.keep_ended.",
        ) from exc


def _files(settings: BridgeSettings, directory: Path, identity: str) -> Iterator[Path]:
    """Yield what there is of a run beside the journal of several: all that bears its id."""
    archive = archive_place(settings, directory) / identity
    found: list[Path] = []
    for path in (archive, *sorted(directory.rglob(f"*{identity}*"))):
        is_inside = any(path.is_relative_to(one) for one in found)
        if path.exists() and not is_inside and not (path / JOURNAL_FILE).exists():
            found.append(path)
    yield from found


def _is_wished(question: str) -> bool:
    """Ask whoever sits at the terminal.

    Raises:
        ConfigError: Nobody does.
    """
    if not sys.stdin.isatty():
        raise ConfigError(
            "--delete: the input is no terminal, so that nobody can be asked.", hint="Add --yes."
        )
    print(shown(f"{question} [y/N] "), end="", flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
