"""Names a run, and steps of it, on the command line."""

import argparse
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from otel_rl.bridge.journal.opening import names_there_are
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id

__all__ = ["WantedRun", "add_run", "add_run_names", "steps", "wanted_run"]


def add_run(parser: argparse.ArgumentParser, default: str = "the most recently active run") -> None:
    """Add the argument for a run, or a directory with runs; ``default`` is in its help."""
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN|DIR",
        help=f"a run by EXPERIMENT[/TRIAL] or id, or a data directory (default: {default})",
    )


def add_run_names(parser: argparse.ArgumentParser) -> None:
    """Add the options for the exact names of a run."""
    for name in ("experiment", "trial"):
        parser.add_argument(f"--{name}", metavar="NAME", help=f"exact {name} of the run")


def steps(text: str) -> tuple[int, int]:
    """Parse ``N`` or ``FIRST:LAST``, for argparse.

    Raises:
        ArgumentTypeError: It is neither.
    """
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"write N or FIRST:LAST (got {text!r})")
    return int(found[1]), int(found[2] or found[1])


class WantedRun(NamedTuple):
    """Run named on the command line.

    Attributes:
        text: Name as typed; it may contain slashes, so several runs may match.
        experiment: Exact experiment name; None for any.
        trial: Exact trial name; None for any.
    """

    text: str | None
    experiment: str | None = None
    trial: str | None = None

    @property
    def key(self) -> ExperimentKey | None:
        """Return the run if both of its names are given."""
        if self.experiment is None or self.trial is None:
            return None
        return ExperimentKey(self.experiment, self.trial)

    @property
    def is_exact(self) -> bool:
        """Return whether exact names are given."""
        return self.experiment is not None or self.trial is not None

    def of(self, keys: Iterable[ExperimentKey]) -> Sequence[ExperimentKey]:
        """Return the runs that match, in their order.

        Raises:
            ConfigError: The same text matches several runs.
        """
        keys = [
            key
            for key in keys
            if self.experiment in {None, key.experiment} and self.trial in {None, key.trial}
        ]
        if self.text is None:
            return keys
        whole = [key for key in keys if self.text == str(key)]
        if len(whole) > 1:
            runs = " or ".join(
                f"--experiment={shlex.quote(key.experiment)} --trial={shlex.quote(key.trial)}"
                for key in whole
            )
            raise ConfigError(f"{self.text!r} matches several runs.", hint=f"Write {runs}.")
        return whole or [
            key
            for key in keys
            if self.text in {key.experiment, key.trial, run_id(key.experiment, key.trial)}
        ]

    def not_found(self, names: Iterable[ExperimentKey], place: str) -> ConfigError:
        """Return the error that ``place`` has other runs."""
        name = self.text or "/".join(filter(None, (self.experiment, self.trial)))
        return ConfigError(
            f"There is no run {self} {place}.", hint=names_there_are(name, map(str, names))
        )

    def __str__(self) -> str:
        if self.text is not None:
            return repr(self.text)
        given = (("experiment", self.experiment), ("trial", self.trial))
        return " and ".join(f"{name} {value!r}" for name, value in given if value is not None)


def wanted_run(arguments: argparse.Namespace) -> WantedRun:
    """Return the run that is named.

    Args:
        arguments: With ``run`` and the options of ``add_run_names``.

    Raises:
        ConfigError: It is named twice.
    """
    wanted = WantedRun(arguments.run, arguments.experiment, arguments.trial)
    if wanted.text is not None and wanted.is_exact:
        raise ConfigError(
            "Name the run either by --experiment and --trial, or by EXPERIMENT[/TRIAL]."
        )
    return wanted
