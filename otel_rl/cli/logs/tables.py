"""Logs as text: ``trainer_state.json``, CSV, and JSON lines."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from otel_rl.cli.logs.log import Log
from otel_rl.errors import ConfigError
from otel_rl.records import ExperimentStatus

MOST_JSON_BYTES: Final = 256 << 20
_LONGEST_LINE: Final = 16 << 20


def read_trainer_state(path: Path, log: Log) -> None:
    """Read what Hugging Face's trainers, TRL's included, save beside each checkpoint.

    Raises:
        ConfigError: It is none, or is only half there.
        OSError: It cannot be read.
    """
    if path.stat().st_size > MOST_JSON_BYTES:
        raise ConfigError(
            f"{str(path)!r} has more than {MOST_JSON_BYTES >> 20} MiB.",
            hint="Name its TensorBoard or W&B files, which can be of any size.",
        )
    try:
        state = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as exc:
        raise ConfigError(
            f"{str(path)!r} is no whole JSON file: {exc}.",
            hint="A checkpoint that was being written is incomplete; name the one before it.",
        ) from exc
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise ConfigError(
            f"{str(path)!r} has no log_history.", hint="Name a trainer_state.json, or JSON lines."
        )
    for row in history:
        if isinstance(row, dict):
            log.add_row(row)
        else:
            log.broken += 1
    most, done = state.get("max_steps"), state.get("global_step")
    if isinstance(most, int) and isinstance(done, int) and 0 < most <= done:
        log.status = ExperimentStatus.COMPLETE
    names = ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps")
    log.config.update({name: state[name] for name in names if name in state})


def read_csv(path: Path, log: Log) -> None:
    """Read a table with a header.

    Raises:
        ConfigError: It has no header.
        OSError: It cannot be read.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = _Lines(file, log)
        rows = csv.DictReader(lines, restkey="\0", restval=None)
        while True:
            try:
                row = next(rows, None)
            except csv.Error:
                log.broken += 1
                continue
            if row is None:
                break
            if "\0" in row or None in row.values():
                log.is_cut, log.broken = lines.is_cut, log.broken + (not lines.is_cut)
                continue
            log.add_row({key: value for key, value in row.items() if key})
    if not rows.fieldnames:
        raise ConfigError(f"{str(path)!r} is empty.", hint="A CSV file begins with a header.")


def read_json_lines(path: Path, log: Log) -> None:
    """Read a file with an object in each line.

    Raises:
        OSError: It cannot be read.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = _Lines(file, log)
        for line in lines:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                log.is_cut, log.broken = lines.is_cut, log.broken + (not lines.is_cut)
                continue
            if isinstance(row, dict):
                log.add_row(row)
            else:
                log.broken += 1


class _Lines:
    """Lines of a file, of bounded length.

    Attributes:
        is_cut: Whether the line that was yielded last has no end. It may be whole all the same.
    """

    def __init__(self, file: TextIO, log: Log) -> None:
        self._file = file
        self._log = log
        self.is_cut = False

    def __iter__(self) -> Iterator[str]:
        is_within = False
        while line := self._file.readline(_LONGEST_LINE):
            is_whole = line.endswith("\n")
            if not is_whole and len(line) == _LONGEST_LINE:
                is_within = True
                continue
            if is_within:
                is_within = False
                self._log.broken += 1
                continue
            self.is_cut = not is_whole
            yield line.replace("\0", "")
