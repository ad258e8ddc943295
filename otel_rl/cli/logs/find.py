"""Recognises the log of a run by what is there."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from otel_rl.cli.logs.log import Log
from otel_rl.cli.logs.tables import read_csv, read_json_lines, read_trainer_state
from otel_rl.cli.logs.tracker_files import (
    ADDRESS,
    HEAD,
    read_event_files,
    read_offline_run,
    read_server_run,
)
from otel_rl.errors import ConfigError

_STATE: Final = "trainer_state.json"
_EVENTS: Final = "*tfevents*"
_EVENT_DIRECTORIES: Final = ("*", "runs/*", "lightning_logs/*")
"""Where writers of event files make the directory of a run, below the one that they are given."""

_READ: Final = (
    f"Logs that can be read: {_STATE}, TensorBoard event files, offline-run-* or run-* of W&B, "
    ".csv, .jsonl."
)
_MOST_SHOWN: Final = 5


def log_at(text: str) -> Log | None:
    """Read the log of a path or address; None if there is no such file, or no log in a directory.

    Raises:
        ConfigError: A file is no log, has no numbers, or a directory has the logs of several runs.
        MissingExtra: The library of its format is not installed.
    """
    if text.startswith(ADDRESS):
        log = Log("a run of W&B", "wandb", text.rpartition("/")[2], text)
        read_server_run(text, log)
        log.check()
        return log
    try:
        path = Path(text).expanduser()
        files = [path] if path.is_file() else _files(path) if path.is_dir() else []
        if not files:
            return None
        # Of a directory the log that was found is named, and of event files their directory.
        taken = files[-1].parent if "tfevents" in files[-1].name else files[-1]
        log = _read(files, text if path.is_file() else str(taken.resolve()))
    except OSError as exc:
        raise ConfigError(f"{text!r} cannot be read: {exc.strerror or exc}.") from exc
    except RuntimeError:  # of a user that does not exist
        return None
    log.check()
    return log


def _files(directory: Path) -> Sequence[Path]:
    """Return the files of the one run in a directory.

    Raises:
        ConfigError: There are several runs.
    """
    if (state := directory / _STATE).is_file():
        return [state]
    saved = {_number(path.parent): path for path in directory.glob(f"checkpoint-*/{_STATE}")}
    if saved:
        return [saved[max(saved)]]
    if events := _by_age(directory.glob(_EVENTS)):
        return events
    if own := _by_age(directory.glob("*.wandb")):
        return [_only(own, directory)]
    below = [
        path
        for place in (directory, directory / "wandb")
        for kind in ("offline-run-*", "run-*")
        for path in place.glob(f"{kind}/*.wandb")
    ]
    if below:
        return [_only(_by_age(below), directory)]
    places = set[Path]()
    if directory.resolve() not in {Path.home().resolve(), Path(directory.anchor)}:
        places = {
            path.parent
            for below_ in _EVENT_DIRECTORIES
            for path in directory.glob(f"{below_}/{_EVENTS}")
        }
    if places:
        return _by_age(_only(sorted(places), directory).glob(_EVENTS))
    names = ("progress.csv", "result.json", "progress.json", "metrics.jsonl", "metrics.csv")
    return [path for name in names if (path := directory / name).is_file()][:1]


def _read(files: Sequence[Path], text: str) -> Log:
    path = files[-1]
    place = path.resolve().parent
    with path.open("rb") as file:
        head = file.read(4096)
    if "tfevents" in path.name:
        log = Log("TensorBoard's event files", place.parent.name or "log", place.name, text)
        read_event_files(files, log)
    elif head.startswith(HEAD):
        log = Log("W&B's file of a run", place.name, path.stem, text)
        read_offline_run(path, log)
    elif not head.strip():
        raise ConfigError(f"{text!r} is empty.", hint=_READ)
    elif path.name == _STATE or (path.suffix == ".json" and b'"log_history"' in head):
        of = place.parent if place.name.startswith("checkpoint-") else place
        trial = place.name if of is not place else path.stem
        log = Log(f"a {_STATE} of a Hugging Face trainer", of.name or "log", trial, text)
        read_trainer_state(path, log)
    elif head.lstrip().startswith(b"{"):
        log = Log("a file of JSON lines", place.name or "log", path.stem, text)
        read_json_lines(path, log)
    elif path.suffix.lower() in {".csv", ".tsv"} and b"\0" not in head:
        log = Log("a CSV file", place.name or "log", path.stem, text)
        read_csv(path, log)
    else:
        raise ConfigError(f"{text!r} is no log of a run.", hint=_READ)
    return log


def _only(found: Sequence[Path], directory: Path) -> Path:
    """Return the only path, else raise ConfigError with the newest ones."""
    if len(found) == 1:
        return found[0]
    shown = [str(path.parent if path.is_file() else path) for path in found[-_MOST_SHOWN:]]
    raise ConfigError(
        f"{str(directory)!r} has the logs of {len(found)} runs.",
        hint=f"Name one of them, such as {', '.join(shown)}.",
    )


def _by_age(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (path.stat().st_mtime, path.name))


def _number(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
