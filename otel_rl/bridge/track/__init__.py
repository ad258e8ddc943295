"""The one interface between the bridge and an experiment tracker.

A tracker is one module that turns rows into calls. It has no queue, no retry and no thread of its
own: the delivery loop owns those. It runs in a writer process of its own, one per live run, so
that a tracker library that hangs, exits or dies takes nothing else with it.
"""

import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from otel_rl.records import Description, ExperimentKey, Row

__all__ = ["RunInfo", "Tracker", "writer_file"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run to write, as the bridge knows it.

    Attributes:
        key: Experiment and trial.
        run_id: Stable digest of ``key``, safe in paths and URLs: ``[a-z2-7]{16}``.
        directory: Where the tracker may keep files. Exists.
        attributes: Settings of the tracker from the bridge's configuration, e.g. ``project``.
        scratch: Where the writer's log and lock are; ``directory`` if not given.
        journal: Identity of the journal that the rows are in. The tracker keeps it with the run,
            and refuses a run with rows of another one. Empty if it is not to be compared.
        description: What is known of the run beside its rows, as of the opening.
    """

    key: ExperimentKey
    run_id: str
    directory: Path
    attributes: tuple[tuple[str, str], ...] = ()
    scratch: Path | None = None
    journal: str = ""
    description: Description = field(default_factory=Description)


def writer_file(run: RunInfo, suffix: str, /) -> Path:
    """A file about the writer of a run. Its directory is made."""
    directory = (run.scratch or run.directory) / "writers"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if stat.S_IMODE(directory.stat().st_mode) & ~stat.S_IRWXU:
        directory.chmod(stat.S_IRWXU)  # it is ours alone, however old: logs may hold anything
    return directory / f"{run.run_id}.{suffix}"


class Tracker(Protocol):
    """Writes the rows of one run to one place.

    All calls come from one thread, in the order ``open``, (``write`` | ``describe`` | ``flush``)*,
    ``close``.
    """

    def open(self, run: RunInfo, /) -> int:
        """Create or resume the run.

        Returns:
            The number of the next row that the tracker wants: 0 for a new run, n + 1 if it already
            has row n, and 0 again if what it had cannot be continued and must be written anew.

        Raises:
            TrackerUnavailable: Try again later.
            TrackerRejected: The settings or credentials are refused.
        """
        ...

    def write(self, rows: Sequence[Row], /) -> None:
        """Hand over rows, in ascending order of number and without a gap.

        Raises:
            TrackerUnavailable: The loop opens the run again and goes on from where it stands.
            TrackerRejected: The loop keeps the rows, reports why, and asks again now and then.
        """
        ...

    def describe(self, description: Description, /) -> None:
        """Show what is known of the run, as far as the tracker can change it while it is open.

        Raises:
            TrackerUnavailable: The loop opens the run again.
            TrackerRejected: As ``write``.
        """
        ...

    def flush(self, *, timeout_s: float) -> int | None:
        """Wait until every row handed over is safe at the tracker, or ``timeout_s`` has passed.

        Returns:
            The number of the first row that is not known to be safe. The journal must keep it and
            all after it. None if no row ever is, because the tracker starts anew after a crash.

        Raises:
            TrackerUnavailable: The tracker has stopped taking rows. The loop opens the run again.
            TrackerRejected: The tracker refuses the credentials it took before.
        """
        ...

    def location(self) -> str:
        """Where a person finds the run: a URL or a path. Valid after ``open``."""
        ...

    def close(self, *, exit_code: int) -> int | None:
        """Finish the run, with 0 for success. Idempotent; blocks until the tracker has it all.

        Returns:
            As ``flush``.

        Raises:
            TrackerUnavailable: It does not have it all. The loop opens the run again.
        """
        ...
