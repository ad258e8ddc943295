"""Runs the ``otel-rl`` command as a user does: a process of its own in a directory of its own."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from otel_rl.cli.main import main
from otel_rl.run_id import run_id
from tests.support.leftovers import process_of_a_command
from tests.support.wandb_offline import OfflineRun, read_offline_run, run_directories

OTEL_RL = [sys.executable, "-m", "otel_rl"]
TIMEOUT_S = 200

EVERY_KEY = {
    "OTEL_RL_BRIDGE__TRACKER__DETAIL": "everything",
    "OTEL_RL_BRIDGE__TRACKER__NAMES": "otel_rl",
}
"""A run with all keys under shared names: most tests are not about what is left out."""

OPEN_FOR_LONG = {
    "OTEL_RL_BRIDGE__ROWS__WORKER_TIMEOUT": "600",
    "OTEL_RL_BRIDGE__ROWS__START_WAIT": "600",
    "OTEL_RL_BRIDGE__ROWS__WAIT": "600",
}
"""A step waits for all workers, however much later than the first a busy machine starts them."""

NO_CONSOLE = {"OTEL_RL_CONSOLE": "off"}
"""No rows of what a program prints, for tests that count rows; "" for the default."""

_NO_BRIDGE = {"OTEL_RL_EMBED": "off"}
"""A worker starts no bridge for itself, see ``tests/process/test_inbox.py``."""

_NO_HOST = {"OTEL_RL_HOST": "off"}
# A short process on a busy machine may end before its code is read, and warns and counts that.
_NO_CODE = {"OTEL_RL_PROVENANCE": "command"}
_PATIENT = {"OTEL_RL_EXIT_TIMEOUT": "60"}  # a busy machine answers late what a process sends last
_NO_ARCHIVE = {"OTEL_RL_BRIDGE__ARCHIVE__ENABLED": "false"}  # see tests/conftest.py

_LAUNCHERS = ("SLURM_", "OMPI_", "MV2_", "PMI_", "RAY_", "ROLE_", "RANK", "WORLD_SIZE")
_FOREIGN = ("OTEL_", "WANDB_", *_LAUNCHERS)

_FROM_BRIDGE = re.compile(r"otel_rl/|service/[^/]+/(expected|alive|failures|recovery_s|silent)$")


def clean_environment(home: Path, **extra: str) -> dict[str, str]:
    """The environment of a fresh login: no key, no settings, no launcher; a trial of known name."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN) or name.startswith("OTEL_RL_TEST_")
    }
    own = {"HOME": str(home), "OTEL_RL_TRIAL": "default"}
    return {
        **kept,
        **own,
        **EVERY_KEY,
        **NO_CONSOLE,
        **_NO_BRIDGE,
        **_NO_HOST,
        **_NO_CODE,
        **_PATIENT,
        **_NO_ARCHIVE,
        **extra,
    }


def as_a_user(home: Path, **extra: str) -> dict[str, str]:
    """The environment of a fresh login, without anything that tests want: as the pages mean it."""
    clean = clean_environment(home)
    kept = {name: value for name, value in clean.items() if not name.startswith("OTEL_")}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**kept, **_PATIENT, "PATH": path, **extra}


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    status: int
    out: str
    err: str


def otel_rl(
    *arguments: str | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Finished:
    """Run ``otel-rl`` to its end."""
    done = subprocess.run(
        [*OTEL_RL, *map(str, arguments)],
        cwd=cwd,
        env=dict(env) if env is not None else clean_environment(cwd),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def otel_rl_here(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None
) -> Finished:
    """Run ``otel-rl`` in this process, for a command that is refused before anything starts.

    A process of its own takes a second of CPU to load the bridge.
    """
    out, err = io.StringIO(), io.StringIO()
    environment = env if env is not None else clean_environment(cwd)
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        process_of_a_command(),
    ):
        try:
            status = main([*map(str, arguments)])
        except SystemExit as exc:  # of the parser of arguments
            status = exc.code if isinstance(exc.code, int) else 1
    return Finished(status, out.getvalue(), err.getvalue())


@dataclass(frozen=True)
class Row:
    """One row of a JSON-lines run."""

    number: int
    step: int
    time_ns: int
    values: dict[str, float]

    @property
    def reported(self) -> dict[str, float]:
        """What workers reported, without what the bridge says of itself and of them."""
        return {key: value for key, value in self.values.items() if not _FROM_BRIDGE.match(key)}


def jsonl_rows(
    directory: Path, experiment: str, trial: str = "default", *, goes_on: bool = False
) -> Sequence[Row]:
    """The rows of the run, wherever under ``directory`` it is; there is exactly one file of it.

    Args:
        directory: Somewhere above it.
        experiment: Of the run.
        trial: Of the run.
        goes_on: A line may be half-written; else each is whole.
    """
    (path,) = directory.rglob(f"{run_id(experiment, trial)}.jsonl")
    lines = growing_lines(path) if goes_on else [*map(json.loads, path.read_text().splitlines())]
    return [
        Row(
            line["number"],
            line["step"],
            line["time_ns"],
            {key: float(value) for key, value in line["values"].items()},
        )
        for line in lines
    ]


def http_address(bridge: "subprocess.Popen[str]") -> str:
    """Return where a started ``otel-rl bridge`` takes OTLP over HTTP, as ``HOST:PORT``.

    A run of an earlier bridge may be opened, and named, before the addresses are.
    """
    assert bridge.stderr is not None
    said = []
    while line := bridge.stderr.readline():
        if found := re.search(r"OTLP/HTTP on (\S+),", line):
            return found[1]
        said.append(line)
    raise AssertionError("".join(said))


def growing_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON to which a process may be writing."""
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def reported_rows(directory: Path, experiment: str, trial: str = "default") -> Sequence[Row]:
    """The rows that hold something that a worker reported.

    How many others there are depends on how long the run takes.
    """
    return [row for row in jsonl_rows(directory, experiment, trial) if row.reported]


def wandb_run(directory: Path, experiment: str, trial: str = "default") -> OfflineRun:
    """The W&B offline run; there is exactly one."""
    (path,) = run_directories(directory, run_id(experiment, trial))
    return read_offline_run(path)
