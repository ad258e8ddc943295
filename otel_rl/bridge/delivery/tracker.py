"""The one interface between the bridge and an experiment tracker, and the table of trackers.

A tracker is one module that turns rows into calls. It has no queue, no retry and no thread of its
own: the delivery loop owns those. It runs in a writer process, one per live run, so that a tracker
library that hangs, exits or dies harms only its own run; our own trackers that only write files run
in the bridge.

Another package registers its ``TrackerKind``:

    [project.entry-points."otel_rl.trackers"]
    mine = "my_package.tracker:KIND"

Below the table are the options of trackers, and checks that tell whether a tracker works here, for
the start of a bridge and for ``otel-rl doctor``.
"""

import dataclasses
import fcntl
import os
import shutil
import socket
import stat
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from otel_rl.bridge.private_files import open_private
from otel_rl.errors import ConfigError, TrackerUnavailable
from otel_rl.inbox import make_private_directory
from otel_rl.records import Description, ExperimentKey, Row
from otel_rl.redaction import is_secret_name, redacted

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_OptionsT = TypeVar("_OptionsT")

_CONNECT_TIMEOUT_S = 3.0
_LEAST_FREE_BYTES = 64 << 20  # of the disk of a data directory


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run that a tracker is to write.

    Attributes:
        key: Experiment and trial.
        run_id: Stable digest of ``key``, safe in paths and URLs: ``[a-z2-7]{16}``.
        directory: Existing directory in which the tracker may keep files.
        attributes: Settings of the tracker from the bridge's configuration, e.g. ``project``, with
            ``{project}``, ``{entity}`` and ``{mode}`` replaced by what the run's program names, if
            it names them.
        scratch: Directory of the writer's log and lock; ``directory`` if not given.
        journal: Identity of the journal of the rows. The tracker stores it with the run, and
            refuses a run with rows of another journal. Empty for no comparison.
        description: Run metadata at the time of the opening.
        tracker: Name of this tracker among those that write the run.
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
    owner = f".{run.tracker}" if run.tracker else ""
    return directory / f"{run.run_id}{owner}.{suffix}"


def lock_run(run: RunInfo) -> BinaryIO:
    """Lock the run for as long as the file is open, against a writer that a dead bridge has left.

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
            Number of the next row that the tracker needs: 0 for a new run, n + 1 if the tracker has
            row n, and 0 again if its rows cannot be continued and must be written anew.

        Raises:
            TrackerUnavailable: The tracker is unavailable; try again later.
            TrackerRejected: The settings or credentials are refused.
            ConfigError: The settings themselves are wrong; treated like TrackerRejected.
        """
        ...

    def write(self, rows: Sequence[Row], /) -> None:
        """Hand over rows, in ascending order of number and without a gap.

        Raises:
            TrackerUnavailable: The tracker takes no rows now. The loop reopens the run and resumes
                at its position.
            TrackerRejected: The tracker refuses. The loop keeps the rows, reports why, and retries
                at intervals.
        """
        ...

    def describe(self, description: Description, /) -> None:
        """Update the run's metadata, as far as the tracker can change it while the run is open.

        Raises:
            TrackerUnavailable: The tracker is unavailable. The loop reopens the run.
            TrackerRejected: See ``write``.
        """
        ...

    def flush(self, *, timeout_s: float) -> int | None:
        """Wait until every row handed over is safe at the tracker, or ``timeout_s`` has passed.

        Returns:
            Number of the first row that is not known to be safe. The journal must keep this row and
            all later ones. None if no row is ever safe, because the tracker starts anew after a
            crash.

        Raises:
            TrackerUnavailable: The tracker has stopped taking rows. The loop reopens the run.
            TrackerRejected: The tracker refuses credentials that it accepted before.
        """
        ...

    def location(self) -> str:
        """Return the URL or path of the run. Valid after ``open``."""
        ...

    def close(self, *, exit_code: int) -> int | None:
        """Finish the run; 0 means success. Idempotent; blocks until the tracker has the whole run.

        Returns:
            See ``flush``.

        Raises:
            TrackerUnavailable: The tracker lacks a part of the run. The loop reopens the run.
        """
        ...


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: Subject of the check.
        message: The finding, as one sentence.
        ok: Whether rows can be written as far as this check goes.
        hint: Remedy if ``ok`` is False.
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
        open_s: Seconds for opening a run.
        close_s: Seconds for finishing a run.
    """

    open_s: float = 180.0
    close_s: float = 600.0


@dataclass(frozen=True, slots=True)
class TrackerKind:
    """Kind of tracker, such as W&B.

    Attributes:
        name: Name of the kind in the settings.
        create: Makes the tracker of a run in the process in which it works: the writer process,
            unless ``in_bridge``. May load heavy libraries.
        validate: Raises ConfigError if a run with these attributes cannot work here.
        check: Runs further checks for a user. Takes at most a few seconds.
        environment: Makes the environment of a writer process from the bridge's environment and the
            run's attributes.
        patience: Returns the timeouts of a run with these attributes.
        home: Returns, from the environment, the directory where users of the tracker expect its
            files; None for the bridge's data directory. Only for a bridge inside a command.
        lacks: List of what the tracker cannot hold; a bridge says it once when it starts.
        knows_run: Tells whether a run with these attributes and this metadata can be opened. If
            not, the run's rows wait for further metadata, or for the end of the bridge.
        in_bridge: Whether the tracker runs in the bridge, in the thread of its run's delivery: it
            keeps no global state, and waits for files only, without holding Python's lock.
        of_the_program: Options of ``project``, ``entity`` and ``mode`` that a program may fill
            where the bridge is inside a command; unless set, each is ``{OPTION}``.
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


BACKENDS: Final[Mapping[str, str]] = {
    "wandb": "wandb.kind:WANDB",
    "jsonl": "jsonl:JSONL",
    "mlflow": "mlflow:MLFLOW",
    "trackio": "trackio:TRACKIO",
    "tensorboard": "tensorboard:TENSORBOARD",
}
"""Trackers of this package, by name. A process loads only the modules that it needs."""

_GROUP: Final = "otel_rl.trackers"  # of entry points


def backend(name: str) -> TrackerKind:
    """Look up a backend: one of our own, else one of another package.

    Raises:
        ConfigError: The name is unknown, or its package cannot be loaded.
    """
    if name in BACKENDS:
        module, _, ours = BACKENDS[name].partition(":")
        found: TrackerKind = getattr(import_module(f"{__package__}.{module}"), ours)
        return found
    kind = _load(name)
    if kind is None:
        known = ", ".join((*BACKENDS, *sorted({point.name for point in _points()})))
        raise ConfigError(
            f'tracker: unknown name (got "{name}").', hint=f"Known trackers: {known}."
        )
    return kind


def _load(name: str) -> TrackerKind | None:
    point = next((point for point in _points() if point.name == name), None)
    if point is None:
        return None
    try:
        kind = point.load()
    except Exception as exc:
        raise ConfigError(
            f"tracker: {name} cannot be loaded from {point.value} ({type(exc).__name__}: {exc}).",
            hint="Install or repair the package that registers it.",
        ) from exc
    if not isinstance(kind, TrackerKind):
        raise ConfigError(
            f"tracker: {name} at {point.value} is no TrackerKind (got {type(kind).__name__}).",
            hint="See `otel-rl help write-a-tracker`.",
        )
    return kind


def _points() -> "tuple[EntryPoint, ...]":
    from importlib.metadata import entry_points  # 3 MB that a writer of ours saves

    return tuple(entry_points(group=_GROUP))


def parse_options(
    kind: str, options: type[_OptionsT], attributes: Mapping[str, str], *, secret_hint: str = ""
) -> _OptionsT:
    """Return the options of a run as a frozen dataclass, parsed from the texts of the settings.

    Args:
        kind: Name of the tracker, for errors.
        options: A dataclass whose fields are texts, numbers of seconds (``int`` drops fractions) or
            switches.
        secret_hint: Says where a secret belongs that was given as an option.

    Raises:
        ConfigError: An option's name is unknown, or its value has the wrong type.
    """
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(options)  # type: ignore[arg-type]  # a dataclass
    known = [field.name for field in fields]
    types = typing.get_type_hints(options)
    for name in attributes:
        if name not in known:
            hint = f"Known settings: {', '.join(known)}." if known else "There are none."
            if is_secret_name(name) and secret_hint:
                hint = secret_hint
            # Without the value: it may be a secret.
            raise ConfigError(f"{kind}.{name}: unknown setting.", hint=hint)
    return options(
        **{name: _parsed(f"{kind}.{name}", types[name], text) for name, text in attributes.items()}
    )


def _parsed(name: str, wanted: object, text: str) -> object:
    if wanted is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f'{name}: must be true or false (got "{text}").')
        return text.lower() == "true"
    if wanted in (float, int):
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise ConfigError(f'{name}: must be a number of seconds (got "{text}").')
        return number if wanted is float else int(number)
    return text


def check_settings(
    name: str, validate: Callable[[Mapping[str, str]], None], attributes: Mapping[str, str]
) -> CheckResult | None:
    """Return the fault of the settings; None if there is none."""
    try:
        validate(attributes)
    except ConfigError as exc:
        return CheckResult(name, exc.args[0], ok=False, hint=exc.hint)
    return None


def check_writable(name: str, directory: Path) -> CheckResult:
    """Check that files can be made in a directory, or the directory itself, and that it has room.

    The check creates no files.
    """
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        return CheckResult(
            name, f"{nearest} cannot be written to.", ok=False, hint="Choose another directory."
        )
    if words := nearly_full(nearest):
        hint = "Free some, or choose another directory."
        return CheckResult(name, words, ok=False, hint=hint)
    return CheckResult(name, f"{directory} can be written to.")


def nearly_full(directory: Path) -> str:
    """Return a sentence on how little room a directory has; empty if it has enough."""
    free = shutil.disk_usage(directory).free
    if free >= _LEAST_FREE_BYTES:
        return ""
    if not free:
        return f"The disk of {directory} is full."
    size = f"{free >> 20} MiB" if free >> 20 else f"{free >> 10} KiB"
    return f"The disk of {directory} is nearly full: {size} free."


def check_server(name: str, url: str, hint: str = "") -> CheckResult:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    shown = redacted(url)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as exc:
        return CheckResult(
            name,
            f"{shown} cannot be reached ({exc}).",
            ok=False,
            hint=f"Rows are kept until it can be. {hint}".rstrip(),
        )
    return CheckResult(name, f"{shown} can be reached.")
