"""The one interface between the bridge and an experiment tracker.

A tracker is one module that turns rows into calls. It has no queue, no retry and no thread of its
own: the delivery loop owns those. It runs in a writer process, one per live run, so that a tracker
library that hangs, exits or dies harms only its own run; trackers of our own that only write files
run in the bridge.

``TrackerKind`` is what another package registers under the entry-point group ``otel_rl.trackers``.
"""

import fcntl
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from otel_rl.bridge.private_files import make_private_directory, open_private
from otel_rl.errors import TrackerUnavailable
from otel_rl.records import Description, ExperimentKey, Row

__all__ = [
    "CheckResult",
    "RunInfo",
    "Tracker",
    "TrackerKind",
    "WriterTimeouts",
    "lock_run",
    "writer_file",
]

_FIRST_TRACKER: Final = "wandb"  # whose files had no name in theirs when there was one tracker


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Run to write.

    Attributes:
        key: Experiment and trial.
        run_id: Stable digest of ``key``, safe in paths and URLs: ``[a-z2-7]{16}``.
        directory: Where the tracker may keep files. Exists.
        attributes: Settings of the tracker from the bridge's configuration, e.g. ``project``, with
            what the program of the run names for ``{project}``, ``{entity}`` and ``{mode}``, if it
            does.
        scratch: Directory of the writer's log and lock; ``directory`` if not given.
        journal: Identity of the journal of the rows. The tracker stores it with the run, and
            refuses a run with rows of another one. Empty for no comparison.
        description: Run metadata at the time of the opening.
        tracker: Name of the tracker, which writes the run beside others.
    """

    key: ExperimentKey
    run_id: str
    directory: Path
    attributes: tuple[tuple[str, str], ...] = ()
    scratch: Path | None = None
    journal: str = ""
    description: Description = field(default_factory=Description)
    tracker: str = ""


def writer_file(run: RunInfo, suffix: str, /) -> Path:
    """Return the path of a file of a run's writer, and make its directory."""
    directory = (run.scratch or run.directory) / "writers"
    make_private_directory(directory)
    if stat.S_IMODE(directory.stat().st_mode) & ~stat.S_IRWXU:
        directory.chmod(stat.S_IRWXU)  # set even for an old directory: logs may hold anything
    owner = "" if run.tracker in ("", _FIRST_TRACKER) else f".{run.tracker}"
    return directory / f"{run.run_id}{owner}.{suffix}"


def lock_run(run: RunInfo) -> BinaryIO:
    """Lock the run for as long as the file is open, against a leftover writer of a dead bridge.

    Raises:
        TrackerUnavailable: Another writer has not ended yet.
    """
    file = open(writer_file(run, "lock"), "wb", opener=open_private)  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        file.close()
        raise TrackerUnavailable(f"Another writer holds the run {run.run_id}.") from exc
    return file


class Tracker(Protocol):
    """Writes the rows of one run to one place.

    All calls come from one thread, in the order ``open``, (``write`` | ``describe`` | ``flush``)*,
    ``close``.
    """

    def open(self, run: RunInfo, /) -> int:
        """Create or resume the run.

        Returns:
            Number of the next row that the tracker needs: 0 for a new run, n + 1 if it already has
                row n, and 0 again if its rows cannot be continued and must be written anew.

        Raises:
            TrackerUnavailable: Try again later.
            TrackerRejected: The settings or credentials are refused.
            ConfigError: As TrackerRejected, from the settings themselves.
        """
        ...

    def write(self, rows: Sequence[Row], /) -> None:
        """Hand over rows, in ascending order of number and without a gap.

        Raises:
            TrackerUnavailable: The loop reopens the run and resumes from its position.
            TrackerRejected: The loop keeps the rows, reports the reason, and retries at intervals.
        """
        ...

    def describe(self, description: Description, /) -> None:
        """Update the run's metadata, as far as the tracker can change it while the run is open.

        Raises:
            TrackerUnavailable: The loop reopens the run.
            TrackerRejected: As ``write``.
        """
        ...

    def flush(self, *, timeout_s: float) -> int | None:
        """Wait until every row handed over is safe at the tracker, or ``timeout_s`` has passed.

        Returns:
            Number of the first row that is not known to be safe. The journal must keep it and all
            later ones. None if no row ever is, because the tracker starts anew after a crash.

        Raises:
            TrackerUnavailable: The tracker has stopped taking rows. The loop reopens the run.
            TrackerRejected: The tracker refuses credentials that it accepted before.
        """
        ...

    def location(self) -> str:
        """Return the URL or path of the run. Valid after ``open``."""
        ...

    def close(self, *, exit_code: int) -> int | None:
        """Finish the run, with 0 for success. Idempotent; blocks until the tracker has all of it.

        Returns:
            As ``flush``.

        Raises:
            TrackerUnavailable: It lacks a part. The loop reopens the run.
        """
        ...


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: Subject of the check.
        message: The finding, as one sentence.
        ok: Whether rows can be written as far as this check goes.
        hint: Remedy if it is not ok.
    """

    name: str
    message: str
    ok: bool = True
    hint: str = ""


@dataclass(frozen=True, slots=True)
class WriterTimeouts:
    """Timeouts after which a silent writer counts as hanging.

    Each is well beyond the tracker's own timeouts, so that the tracker's more precise error comes
    first.

    Attributes:
        open_s: For opening a run.
        close_s: For finishing a run.
    """

    open_s: float = 180.0
    close_s: float = 600.0


@dataclass(frozen=True, slots=True)
class TrackerKind:
    """Kind of tracker.

    Attributes:
        name: Its name in the settings.
        create: Makes the tracker of a run, where it runs: in the writer process, unless
            ``in_bridge``. May load heavy libraries.
        validate: Raises ConfigError if a run with these attributes cannot work here.
        check: Runs further checks for a user. Takes at most a few seconds.
        environment: Makes the environment of a writer process from that of the bridge and the run's
            attributes.
        patience: Timeouts of a run with these attributes.
        home: Returns, from the environment, the directory where the users of the tracker expect its
            files; None for the bridge's data directory. Only for a bridge inside a command.
        lacks: What it cannot hold, as a list; said once when a bridge starts.
        knows_run: Returns whether a run with these attributes and this metadata can be opened. If
            not, its rows wait for further metadata, or for the end of the bridge.
        in_bridge: Whether it runs in the bridge, in the thread of its run's delivery: it keeps no
            global state, and waits for files only, without holding Python's lock.
        of_the_program: Options that a program may fill, which are ``{OPTION}`` unless they are set,
            where the bridge is inside a command: of ``project``, ``entity`` and ``mode``.
    """

    name: str
    create: Callable[[RunInfo], Tracker]
    validate: Callable[[Mapping[str, str]], None] = lambda _: None
    check: Callable[[Mapping[str, str], Path], Sequence[CheckResult]] = lambda *_: ()
    environment: Callable[[Mapping[str, str], Mapping[str, str]], dict[str, str]] = (
        lambda environ, _: dict(environ)
    )
    patience: Callable[[Mapping[str, str]], WriterTimeouts] = lambda _: WriterTimeouts()
    home: Callable[[Mapping[str, str]], Path | None] = lambda _: None
    lacks: str = ""
    knows_run: Callable[[Mapping[str, str], Description], bool] = lambda *_: True
    in_bridge: bool = False
    of_the_program: Sequence[str] = ()
