"""Deletes runs: what the journal has of them, and their files."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.leases import FREE
from otel_rl.bridge.journal.reader import read_runs
from otel_rl.bridge.journal.retention import EVERY_RUN, delete_run
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, LOCK_FILE, LockFile, SqliteJournal
from otel_rl.bridge.receive.tokens import TokenShares
from otel_rl.cli.ending.files import KeptSettings
from otel_rl.cli.find_run import Runs
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError, JournalLocked
from otel_rl.plurals import many
from otel_rl.redaction import shown
from otel_rl.view.found import Found


def delete(settings: BridgeSettings, name: str, *, is_confirmed: bool) -> int:
    """Delete the run of a name, once that is confirmed. Returns the exit status.

    Args:
        name: ``EXPERIMENT/TRIAL``, one of both, or an id.
        is_confirmed: Whether nobody is asked.

    Raises:
        ConfigError: It is not clear which run.
        JournalLocked: A bridge is writing it.
    """
    if not _delete(settings, _wanted(settings, name), is_confirmed=is_confirmed):
        say("nothing was deleted")
        return 1
    return 0


def delete_team(settings: BridgeSettings, team: str, *, is_confirmed: bool) -> int:
    """Delete all runs of a team, once that is confirmed. Returns the exit status.

    Args:
        is_confirmed: Whether nobody is asked.

    Raises:
        ConfigError: There is no such team.
    """
    shares = TokenShares(settings.team)
    if team not in shares.tokens:
        raise ConfigError(
            f"--delete-team: the settings have no team {team!r}.",
            hint=f"There are: {', '.join(shares.tokens)}."
            if shares.tokens
            else "Name the settings of its bridge: --config FILE.",
        )
    with Runs(settings) as runs:
        found = [run for run in runs.look() if shares.owner_of(run.key) == team]
        status = runs.status()
    words = f"Delete {many(len(found), 'run')} of team {team}?"
    if not found or not (is_confirmed or _is_wished(words)):
        say(f"nothing was deleted: team {team} has {many(len(found), 'run')}")
        return 1 if found else status
    for run in found:
        try:
            _delete(settings, run, is_confirmed=True)
        except JournalLocked as exc:
            say(f"run {run.key} stays: {exc}")
            status = 1
    return status


def _delete(settings: BridgeSettings, run: Found, *, is_confirmed: bool) -> bool:
    """Delete a run. Returns whether that was wished."""
    key, identity = run.key, run.id
    locations = [one.location for one in run.overviews if one.location]
    rows = max(one.rows for one in run.overviews)
    # `otel-rl run` makes a data directory for each run.
    is_alone = run.directory is not None and run.directory.name == identity
    if is_alone:
        with run.open() as connection:
            is_alone = {one.key for one in read_runs(connection)} == {key}
    with closing(_held(run, settings, is_alone=is_alone)) as held:
        paths = [*_files(settings, run, is_alone=is_alone)]
        words = " and ".join([many(rows, "row"), *map(str, paths)])
        if not (is_confirmed or _is_wished(f"Delete run {key} with {words}?")):
            return False
        if not isinstance(held, LockFile):
            free = EVERY_RUN if settings.journal.url is None else FREE
            if not delete_run(held, key, time.time_ns(), free):
                raise JournalLocked(
                    f"--delete: a bridge works on run {key}.",
                    hint="Let the run come to its end, and its tracker take all rows. The run of a "
                    "bridge that was killed is free after journal.lease.",
                )
        for path in paths:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    say(f"run {key} was deleted")
    for location in locations:
        if "://" in location or Path(location).exists():
            say(f"  its tracker keeps it: {location}")
    return True


def _wanted(settings: BridgeSettings, name: str) -> Found:
    """Return the run.

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
    return found[0]


def _held(run: Found, settings: BridgeSettings, *, is_alone: bool) -> LockFile | Journal:
    """Open the journal of a run, or only lock its directory if that is to go as a whole.

    Raises:
        JournalLocked: A bridge uses the directory.
    """
    if run.directory is None:
        return settings.journal_place.open()
    try:
        if is_alone:
            return LockFile(run.directory / LOCK_FILE)
        return SqliteJournal(run.directory, max_bytes=settings.journal.max_bytes)
    except JournalLocked as exc:
        raise JournalLocked(
            f"--delete: {exc.args[0]}",
            hint="That is the bridge which writes the run. Let `otel-rl run` come to its end, or "
            "stop `otel-rl bridge`, and delete the run then. A bridge that goes on removes ended "
            "runs by itself, after journal.keep_ended.",
        ) from exc


def _files(settings: BridgeSettings, run: Found, *, is_alone: bool) -> Iterator[Path]:
    """Yield what there is of a run: all that bears its id, and at last a directory of its own.

    It may be in directories of these settings, and in those that its bridge had.
    """
    directory = run.directory
    if directory is None and not (settings.data / JOURNAL_FILE).exists():
        directory = settings.data  # a journal there would have the files of its own runs
    places = {one for one in (directory, settings.tracker.directory) if one is not None}
    archives = [settings.archive.directory or (directory and directory / "archive")]
    if directory is not None:
        kept = KeptSettings.beside(directory)
        places.update(kept.directories("tracker"))
        archives += kept.directories("archive")
    found = [directory.resolve()] if directory is not None and is_alone else []
    named = sorted(path for place in places for path in place.rglob(f"*{run.id}*"))
    for path in (*(archive / run.id for archive in archives if archive), *named):
        is_inside = any(path.resolve().is_relative_to(one) for one in found)
        own = {path, *path.parents}.difference(*({one, *one.parents} for one in places))
        is_of_another = any((one / JOURNAL_FILE).exists() for one in own)
        if path.exists() and not is_inside and not is_of_another:
            found.append(path.resolve())
            yield path
    if is_alone and directory is not None:
        yield directory  # last: until then the command can be repeated


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
