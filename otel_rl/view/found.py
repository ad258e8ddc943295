"""Finds the runs of every journal in reach, for the page and for commands."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from otel_rl.bridge.journal.interface import Connection
from otel_rl.bridge.journal.places import JournalPlace, names_there_are
from otel_rl.bridge.journal.reader import RunOverview, journals_below, looking, read_runs
from otel_rl.errors import ConfigError, JournalError
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

Open = Callable[[], AbstractContextManager[Connection]]


class Found(NamedTuple):
    """A run, and the journal that it is in.

    Attributes:
        overviews: As the journal has it, for each tracker.
        directory: Of the journal; None for the database of ``journal.url``.
        open: Opens the journal for reading, for the length of a context.
    """

    overviews: Sequence[RunOverview]
    directory: Path | None
    open: Open

    @property
    def run(self) -> RunOverview:
        """Return its overview for the first tracker."""
        return self.overviews[0]

    @property
    def key(self) -> ExperimentKey:
        """Return its experiment and trial."""
        return self.run.key

    @property
    def id(self) -> str:
        """Return its ``rl.run.id``."""
        return run_id(*self.key)


class FoundRuns:
    """The runs of every journal in reach. One thread.

    Args:
        place: Of the journals below a directory, or of the shared one.
        directories: Of journals to look into in place of those; None for those.

    Attributes:
        faults: Why journals could not be read at the last look.

    Raises:
        OtelRLError: The shared database cannot be used.
    """

    def __init__(self, place: JournalPlace, directories: Sequence[Path] | None = None) -> None:
        self.faults: Sequence[str] = ()
        self._place = place
        self._directories = directories
        is_shared = place.url is not None and directories is None
        self._shared = place.open() if is_shared else None

    def close(self) -> None:
        """Close the shared database."""
        if self._shared is not None:
            self._shared.close()

    def all(self) -> Sequence[Found]:
        """Return every run, the most recently active first, and note the faults."""
        found: list[Found] = []
        faults: list[str] = []
        for directory, open_ in self._journals():
            try:
                found += runs_of(directory, open_)
            except JournalError as exc:
                faults.append(str(exc))
        self.faults = faults
        return sorted(found, key=lambda one: (-one.run.changed_ns, str(one.key)))

    def no_run(self, name: str, keys: Sequence[ExperimentKey]) -> ConfigError:
        """Return what is wrong with a name that none of these runs has."""
        if not keys:
            return self._place.no_run()
        where = self._place.words if self._directories is None else "in these journals"
        return ConfigError(
            f"There is no run {name!r} {where}.", hint=names_there_are(name, map(str, keys))
        )

    def _journals(self) -> Iterator[tuple[Path | None, Open]]:
        """Yield each journal with its directory, which the shared one has not."""
        if self._shared is not None:
            yield None, self._shared.read
            return
        others = self._directories
        for directory in journals_below(self._place.directory) if others is None else others:
            yield directory, partial(looking, directory)


def runs_of(directory: Path | None, open_: Open) -> Sequence[Found]:
    """Return the runs of one journal; one with two trackers is there once."""
    with open_() as connection:
        overviews = read_runs(connection, directory)
    # By name, so trackers adjoin.
    of_runs = groupby(overviews, key=lambda one: one.key)
    return [Found([*of_run], directory, open_) for _, of_run in of_runs]


def matching(name: str | None, keys: Iterable[ExperimentKey]) -> Sequence[ExperimentKey]:
    """Return the runs of a name in their order; all of them without a name.

    Args:
        name: ``EXPERIMENT/TRIAL``, either of the two, or an id.

    Raises:
        ConfigError: Both parts may contain slashes, and the same text is that of several runs.
    """
    keys = [*keys]
    if name is None:
        return keys
    whole = [key for key in keys if name == str(key)]
    if len(several := dict.fromkeys(whole)) > 1:  # of one run, several journals may know
        ids = " or ".join(
            f"{run_id(*key)} (experiment {key.experiment!r}, trial {key.trial!r})"
            for key in several
        )
        raise ConfigError(f"{name!r} matches several runs.", hint=f"Name one by its id: {ids}.")
    return whole or [key for key in keys if name in {key.experiment, key.trial, run_id(*key)}]
