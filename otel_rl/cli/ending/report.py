"""Last lines about the runs of a bridge: where each is, what went wrong, what is left or lost.

A normal end is one line for each run and tracker, and what went wrong is said once.
"""

import shlex
import shutil
import sys
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.counters import ArchiveDrop, Counter
from otel_rl.bridge.delivery.manager import RunState, RunStatus
from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.reader import looking, read_runs
from otel_rl.bridge.rows.scheduler import NO_METRIC_HINT
from otel_rl.bridge.rows.stored_run import read_standing
from otel_rl.cli.own_run import not_joined
from otel_rl.cli.standard_streams import say
from otel_rl.errors import JournalError
from otel_rl.plurals import many
from otel_rl.records import (
    Description,
    ExperimentKey,
    ExperimentStatus,
    RoleStanding,
    WorkerFailure,
)
from otel_rl.run_id import run_id

_PROGRAM: Final = "otel-rl"

NOT_STORED: Final = "not_stored"
"""Requests that the journal had no room for, and whose senders gave up."""


class _Loss(NamedTuple):
    noun: str
    verb: str


_LOSSES: Final = {
    Counter.POINTS_REFUSED: _Loss("data point", "refused"),
    Counter.EXEMPLARS_REFUSED: _Loss("measurement", "refused"),
    Counter.LOGS_REFUSED: _Loss("log event", "refused"),
    Counter.SAMPLES_DROPPED: _Loss("sample", "dropped"),
}


@dataclass(slots=True)
class Ending:
    """How a bridge has ended.

    Attributes:
        statuses: Of each run with each tracker.
        requests: Accepted requests of which no rows are made.
        problem: Why it could not go on; empty if it could.
        interrupted: Signal that has ended the wait for the rest; None if none has.
        is_shared: Whether other bridges write what is left.
        lost: How much by reason, as in the status file.
        lost_in_words: The same for people; empty if nothing was lost.
    """

    statuses: Sequence[RunStatus] = ()
    requests: int = 0
    problem: str = ""
    interrupted: int | None = None
    is_shared: bool = False
    lost: Mapping[str, int] = field(default_factory=dict)
    lost_in_words: str = ""

    @property
    def unfinished(self) -> Sequence[RunStatus]:
        return [one for one in self.statuses if one.state is not RunState.FINISHED]

    @property
    def is_complete(self) -> bool:
        """Return whether everything that the bridge has kept is written."""
        left = self.requests or (self.unfinished and not self.is_shared)
        return not (left or self.problem)

    def note_losses(self, bridge: Bridge, *, senders_have_ended: bool) -> None:
        """Note what is lost.

        Args:
            bridge: Has stopped.
            senders_have_ended: Whether nobody is left to repeat what could not be stored.
        """
        lost: dict[str, int] = {}
        words = []
        if senders_have_ended and (count := bridge.unstored.count):
            lost[NOT_STORED] = count
            reason = bridge.unstored.reason
            why = f" ({reason.rstrip('.')})" if reason not in self.problem else ""
            words.append(
                f"at least {many(count, 'request')} could not be stored and did not come again{why}"
            )
        for (name, reason), count in bridge.counters.snapshot().items():
            for counter, loss in _LOSSES.items():
                if count and name == counter:
                    lost[f"{name}{{{reason}}}"] = count
                    words.append(f"{many(count, loss.noun)} {loss.verb} ({reason})")
        self.lost = lost
        self.lost_in_words = "; ".join(words)

    def as_status(self, exit_status: int, data: Path) -> dict[str, Any]:
        rows = sum(one.pending for one in self.unfinished)
        return {
            "exit_status": exit_status,
            "runs": [
                {
                    "experiment": one.key.experiment,
                    "trial": one.key.trial,
                    "id": run_id(one.key.experiment, one.key.trial),
                    "tracker": one.tracker,
                    "location": one.location,
                    "rows": one.next_row + one.pending,
                    "rows_left": one.pending,
                    "finished": one.state is RunState.FINISHED,
                    "error": one.last_error,
                }
                for one in self.statuses
            ],
            "lost": self.lost,
            "left": {
                "requests": self.requests,
                "rows": rows,
                "command": "" if self.is_complete else rest_command(data),
            },
            "problem": self.problem,
        }


def report(bridge: Bridge, ending: Ending, told: str = "") -> None:
    """Say where each run is, what went wrong, and what is left.

    Args:
        bridge: Has stopped, or is left.
        told: What was said before.
    """
    data = bridge.settings.data
    errors = {told}
    faults = _faults(bridge)
    for key, of_run in groupby(ending.statuses, key=lambda one: one.key):
        for status in of_run:
            say(f"run {key}: {_place(status, data, errors)}")
        for words in faults.get(key, ()):
            say(f"  {words}")
    if bridge.has_page and ending.statuses:
        say(f"show the run again with: {own_command('view', str(data))}")
    if late := bridge.counters.value(Counter.SAMPLES_LATE):
        have, are = ("has", "is") if late == 1 else ("have", "are")
        say(f"{many(late, 'sample')} {have} arrived late and {are} in extra rows")
    _say_unarchived(bridge)
    _say_defects(bridge)
    if ending.problem:
        say(ending.problem)
    if ending.is_shared:
        say(_who_goes_on(bridge.other_bridges))
    if ending.requests:
        say(f"{many(ending.requests, 'acknowledged request')} in {data} not yet made into rows")
    if not (ending.is_complete or bridge.problem):
        say(f"write the rest with: {rest_command(data)}")
    for key in bridge.without_metrics:
        say(f"{key} ended with no metric. {NO_METRIC_HINT}")


def _say_unarchived(bridge: Bridge) -> None:
    no_room = bridge.counters.value(Counter.ARCHIVE_DROPPED, reason=ArchiveDrop.NO_ROOM)
    damaged = bridge.counters.value(Counter.ARCHIVE_DROPPED, reason=ArchiveDrop.DAMAGED)
    for values, why in (
        (no_room, "too many waited because its files could not be written fast enough"),
        (damaged, "the journal's disk has damaged them"),
    ):
        if values:
            say(f"the archive lacks {many(values, 'value')}, the run has them: {why}")


def _who_goes_on(others: int | None) -> str:
    if others:
        return f"{many(others, 'other bridge')} on this database may write the remaining rows"
    if others is None:
        return "the database does not answer: a bridge on it writes the remaining rows later"
    return "no other bridge uses this database: remaining rows wait there until one is started"


def _place(status: RunStatus, data: Path, told: set[str]) -> str:
    rows = many(status.next_row, "row")
    if status.state is RunState.FINISHED:
        is_file = bool(status.location) and "://" not in status.location
        if status.tracker == "wandb" and is_file:
            upload = shlex.join(["wandb", "sync", status.location])
            return f"{rows} in wandb, offline; upload it with: {upload}"
        return f"{rows} in {status.tracker}: {status.location or '(not opened)'}"
    where = f": {status.location}" if status.location else ""
    left = f"{status.pending} still in the journal {data}"
    if not status.pending:
        left = "the tracker has not confirmed them"
    error = status.last_error
    why = f". {error}" if error and error not in told else ""
    told.add(error)
    return f"{rows} in {status.tracker}{where}; {left}{why}"


def _say_defects(bridge: Bridge) -> None:
    found = [
        f"{count} in {reason}"
        for (name, reason), count in bridge.counters.snapshot().items()
        if count and name == Counter.EXCEPTIONS
    ]
    if found:
        say(f"unexpected exceptions of the bridge, see its log: {', '.join(found)}")


def _faults(bridge: Bridge) -> Mapping[ExperimentKey, Sequence[str]]:
    data = bridge.settings.data
    with suppress(JournalError), looking(data) as connection:
        return {
            run.key: [
                *failures(run.description),
                *troubles(run.roles, listed(run.description)),
                *_diagnosis(connection, run.key, data),
                *not_joined(bridge.settings, run.description),
            ]
            for run in read_runs(connection)
        }
    return {}  # errors of the journal are reported elsewhere


def _diagnosis(connection: Connection, key: ExperimentKey, data: Path) -> Iterator[str]:
    """Yield the first cause that the bridge has found in a run, and how to see its evidence."""
    cause = read_standing(connection, run_id(key.experiment, key.trial)).cause
    if cause and not cause.startswith("crash "):  # which the failures tell
        command = own_command("diagnose", str(key), "--data", str(data))
        yield f"diagnosis: {cause}; evidence: {command}"


def rest_command(data: Path) -> str:
    return own_command("finish", str(data))


def own_command(*words: str) -> str:
    """Return a command of this program, as the user's shell finds it."""
    own = Path(sys.argv[0])
    is_elsewhere = own.name == _PROGRAM and shutil.which(_PROGRAM) is None  # as for `make demo`
    return shlex.join([str(own) if is_elsewhere else _PROGRAM, *words])


# What was wrong with a run

_MOST: Final = 8  # failures that are listed

_LAST_INTERVAL: Final = "up to an export interval (1 s unless set) of metrics"


def troubles(
    roles: Mapping[str, RoleStanding], listed: Sequence[WorkerFailure] = ()
) -> Iterator[str]:
    """Yield one phrase for each role with a fault.

    Args:
        listed: Failures that are listed one by one.
    """
    named = Tally(map(_role, listed))
    lasting = Tally(_role(one) for one in listed if one.recovery_s is None)
    killed = Tally(_role(one) for one in listed if not one.is_reported)
    for role, standing in sorted(roles.items()):
        missing = standing.expected - standing.alive - lasting[role]
        # Without a total: workers that reported their end are no longer expected.
        words = [f"{missing} missing"] if missing > 0 else []
        if standing.failures > named[role]:
            words += _failed(standing)
        words += _silent(standing)
        if killed[role]:
            words.append(f"{_LAST_INTERVAL} is missing, of {killed[role]} without an exit report")
        if words:
            yield f"{role}: {', '.join(words)}"


def failures(description: Description) -> Iterator[str]:
    """Yield a line for the failure that ended the run, its message, and the last other ones."""
    crash = description.crash
    if crash is not None:
        yield crash.as_crash
        if crash.message:
            yield f"  {crash.message}"
    elif description.status is ExperimentStatus.CRASHED:
        yield "crashed"
    for one in listed(description):
        if one is not crash:
            yield str(one)


def listed(description: Description) -> Sequence[WorkerFailure]:
    last = [*description.failures[-_MOST:]]
    crash = description.crash
    return last if crash is None or crash in last else [crash, *last]


def _role(failure: WorkerFailure) -> str:
    return failure.worker.rpartition("/")[0]


def _failed(standing: RoleStanding) -> Iterator[str]:
    if standing.failures:
        yield f"{standing.failures} failed"
    if standing.recovery_s is not None:
        yield f"replaced after {standing.recovery_s:.1f} s"


def _silent(standing: RoleStanding) -> Iterator[str]:
    if standing.silent:
        yield (
            f"{standing.silent} ended without an exit report, or outlived the command; "
            f"{_LAST_INTERVAL}, or what followed the command, is missing"
        )
