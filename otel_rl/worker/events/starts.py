"""Content of a run's start: the metadata of the run, and the provenance of the process.

The metadata is validated as the attributes of ``rl.experiment.start``. A thread finds out the
provenance (command, code and machine, as the attributes of ``rl.worker.start``) once, because git
may take seconds: secrets in arguments and in the difference are masked, nothing raises, and
whatever cannot be read in time is left out.
"""

import os
import platform
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_rl.errors import ConfigError
from otel_rl.redaction import redacted
from otel_rl.semconv.names import (
    OS_DESCRIPTION,
    PROCESS_COMMAND_ARGS,
    PROCESS_EXECUTABLE_PATH,
    PROCESS_RUNTIME_VERSION,
    RL_EXPERIMENT_CONFIG,
    RL_EXPERIMENT_CONFIG_DEFAULTS,
    RL_EXPERIMENT_DISPLAY_NAME,
    RL_EXPERIMENT_ENTITY,
    RL_EXPERIMENT_GROUP,
    RL_EXPERIMENT_JOB_TYPE,
    RL_EXPERIMENT_MODE,
    RL_EXPERIMENT_NOTES,
    RL_EXPERIMENT_PROJECT,
    RL_EXPERIMENT_TAGS,
    RL_WORKER_DIFF,
    RL_WORKER_PACKAGES,
    RL_WORKER_START,
    VCS_REF_HEAD_REVISION,
    VCS_REPOSITORY_URL_FULL,
    RlExperimentModeValues,
)
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.masking import masked, masked_lines
from otel_rl.worker.events.queue import EventQueue
from otel_rl.worker.forks import IMPORTS
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.anyvalue import MAX_CONFIG_BYTES, Plain, cut, plain_config

RunMetadata = Mapping[str, Plain]
"""Attributes of ``rl.experiment.start``. Empty: the event only reports a running run."""

MAX_WORD_CHARS: Final = 128
"""Per tag, group or other name. W&B refuses longer ones."""

MAX_TAGS: Final = 64

MAX_NOTES_CHARS: Final = 16_384

_EXIT_S: Final = 1.0
"""How long the end of a short process waits for what is found out of its code."""

_GIT_TIMEOUT_S: Final = 10.0  # of each call; a working tree may be on a slow network disk

_MAX_PACKAGES: Final = 2_000

_MAX_DIFF_BYTES: Final = 96 << 10
"""Below the bridge's bound of a text."""


def validated_metadata(
    guard: Guard,
    *,
    config: Mapping[str, object] | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    group: str | None = None,
    job_type: str | None = None,
    project: str | None = None,
    entity: str | None = None,
    name: str | None = None,
    mode: str | None = None,
) -> RunMetadata:
    """Validate the arguments of ``init`` about the run; omit arguments without a value.

    ``guard`` counts the settings that are too large.

    Raises:
        ConfigError: An argument has a wrong type, or is too long.
    """
    metadata: dict[str, Plain] = {}
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config: must be a mapping (got {type(config).__name__}).",
            hint="Pass vars(arguments) or dataclasses.asdict(settings).",
        )
    if config:
        metadata.update(config_metadata(config, guard))
    if notes:
        metadata[RL_EXPERIMENT_NOTES] = cut(_text("notes", notes), MAX_NOTES_CHARS)
    if tags:
        metadata[RL_EXPERIMENT_TAGS] = _tags(tags)
    for argument, attribute, word in (
        ("group", RL_EXPERIMENT_GROUP, group),
        ("job_type", RL_EXPERIMENT_JOB_TYPE, job_type),
        ("project", RL_EXPERIMENT_PROJECT, project),
        ("entity", RL_EXPERIMENT_ENTITY, entity),
        ("name", RL_EXPERIMENT_DISPLAY_NAME, name),
    ):
        if word:
            metadata[attribute] = _word(argument, word)
    if mode:
        if mode not in tuple(RlExperimentModeValues):
            words = ", ".join(RlExperimentModeValues)
            raise ConfigError(
                f"mode: must be one of {words} (got {mode!r}).",
                hint="To record nothing, set OTEL_SDK_DISABLED=true.",
            )
        metadata[RL_EXPERIMENT_MODE] = str(mode)
    return metadata


def config_metadata(config: Mapping[str, object], guard: Guard) -> RunMetadata:
    """Convert the config to an attribute, and count settings that are too large. Never raises."""
    taken, left_out = plain_config(config)
    if left_out:
        guard.drop(
            DropReason.TOO_LARGE,
            f"A config may have {MAX_CONFIG_BYTES >> 10} KiB; left out: {', '.join(left_out)}.",
            len(left_out),
        )
    return {RL_EXPERIMENT_CONFIG: taken} if taken else {}


def with_defaults(config: Mapping[str, object], metadata: RunMetadata, guard: Guard) -> RunMetadata:
    """Add hyper-parameters that count only where no process gives them. Never raises."""
    given = config_metadata(config, guard)
    if not given:
        return metadata
    return {**metadata, RL_EXPERIMENT_CONFIG_DEFAULTS: given[RL_EXPERIMENT_CONFIG]}


def _tags(tags: object) -> list[str]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise ConfigError(
            f"tags: must be a list of text (got {tags!r}).", hint='Pass tags=["grpo", "7b"].'
        )
    if len(tags) > MAX_TAGS:
        raise ConfigError(f"tags: must be at most {MAX_TAGS} (got {len(tags)}).")
    return [_word(f"tags[{number}]", tag) for number, tag in enumerate(tags)]


def _word(name: str, value: object) -> str:
    word = _text(name, value)
    if not word.strip() or len(word) > MAX_WORD_CHARS or not word.isprintable():
        raise ConfigError(
            f"{name}: must have 1 to {MAX_WORD_CHARS} printable characters "
            f"(got {len(word)}: {word[:40]!r}).",
            hint="Long text belongs in notes.",
        )
    return word


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name}: must be text (got {value!r}).", hint="Pass str(...).")
    return value


class ProvenanceThread:
    """Adds the provenance of one process to the process's events."""

    def __init__(self, events: EventQueue, guard: Guard) -> None:
        self._events = events
        self._guard = guard
        # _lock guards the two below. Re-entrant, for signal handlers that shut down.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._is_settled = False  # the event was added, or comes too late

    def start(self, *, with_code: bool) -> None:
        """Start the thread, unless a thread was started before or the worker ends."""
        with self._lock:
            if self._is_settled or self._thread is not None:
                return
            thread = threading.Thread(
                target=self._report,
                kwargs={"with_code": with_code},
                name="otel-rl-provenance",
                daemon=True,
            )
            thread.start()
            self._thread = thread

    def stop(self) -> None:
        """Start no thread from now on, and wait up to a second for a running thread."""
        with self._lock:
            thread = self._thread
            self._is_settled = self._is_settled or thread is None
        if thread is None or thread is threading.current_thread():
            return
        thread.join(_EXIT_S)
        with self._lock:  # an event behind the last export would be lost
            is_late = thread.is_alive() and not self._is_settled
            self._is_settled = True
        if is_late:
            self._guard.drop(
                DropReason.SHUTDOWN,
                "The process ended before its commit and packages were read: the run lacks them.",
            )

    def forget(self) -> None:
        self._lock, self._thread = threading.RLock(), None  # another thread may have held it
        self._is_settled = False

    def _report(self, *, with_code: bool) -> None:
        with self._guard:
            found = provenance(with_code=with_code)
            with self._lock:
                if self._is_settled:
                    return
                self._is_settled = True
                is_added = self._events.add(RL_WORKER_START, found)
            if not is_added:
                self._guard.drop(DropReason.BUFFER_FULL, "Too many events in one interval.")


def provenance(*, with_code: bool) -> Mapping[str, Plain]:
    """Find out what this process runs, and where. This takes up to some seconds.

    Args:
        with_code: Whether to include the difference to the commit and the installed packages, which
            are the same for all workers of a role.
    """
    command = getattr(sys, "orig_argv", None) or sys.argv
    found: dict[str, Plain] = {
        PROCESS_COMMAND_ARGS: masked([*command[1:]] or [*command]),
        PROCESS_EXECUTABLE_PATH: sys.executable or "",
        PROCESS_RUNTIME_VERSION: platform.python_version(),
        OS_DESCRIPTION: f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
    }
    directory = _directory()
    commit = _git(directory, "rev-parse", "HEAD")
    if commit:
        found[VCS_REF_HEAD_REVISION] = commit.strip()
        found[VCS_REPOSITORY_URL_FULL] = redacted(
            _git(directory, "config", "--get", "remote.origin.url").strip()
        )
    if with_code:
        if commit:
            diff = _git(
                directory, "diff", "--no-color", "--no-ext-diff", "--submodule=diff", "HEAD"
            )
            found[RL_WORKER_DIFF] = _cut_bytes(masked_lines(diff))
        found[RL_WORKER_PACKAGES] = _packages()
    return {key: value for key, value in found.items() if value}


def _directory() -> Path:
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(program).resolve().parent if program else Path.cwd()


def _git(directory: Path, *arguments: str) -> str:
    """Return the output of git; empty without git, without a repository, or after the timeout."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(  # noqa: S603  # the user's own git
            ["git", "-C", os.fspath(directory), *arguments],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _cut_bytes(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= _MAX_DIFF_BYTES:
        return text
    kept = encoded[:_MAX_DIFF_BYTES].decode(errors="ignore")
    return f"{kept}\n[... {len(encoded) - _MAX_DIFF_BYTES} bytes cut]\n"


def _packages() -> list[str]:
    with IMPORTS.work():
        from importlib.metadata import distributions  # 1 MB that one worker of a role needs

    about = (one.metadata for one in distributions())
    # A broken installation has no name.
    found = {f"{one['Name']}=={one['Version']}" for one in about if one["Name"]}
    return sorted(found, key=str.lower)[:_MAX_PACKAGES]
