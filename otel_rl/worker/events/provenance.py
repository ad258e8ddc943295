"""Command, code and machine of this process, as the attributes of ``rl.worker.start``.

A thread finds them out once, because git may take seconds. Secrets in arguments and in the
difference are masked. Nothing here raises; what cannot be read in time is left out.
"""

import os
import platform
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_rl.redaction import redacted
from otel_rl.semconv.names import (
    OS_DESCRIPTION,
    PROCESS_COMMAND_ARGS,
    PROCESS_EXECUTABLE_PATH,
    PROCESS_RUNTIME_VERSION,
    RL_WORKER_DIFF,
    RL_WORKER_PACKAGES,
    RL_WORKER_START,
    VCS_REF_HEAD_REVISION,
    VCS_REPOSITORY_URL_FULL,
)
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.masking import masked, masked_lines
from otel_rl.worker.events.queue import EventQueue, text_chars
from otel_rl.worker.fork_barrier import IMPORTS
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.anyvalue import Plain

__all__ = ["ProvenanceThread", "provenance"]

_EXIT_S: Final = 1.0
"""How long the end of a short process waits for what is found out of its code."""

_GIT_TIMEOUT_S: Final = 10.0  # of each call; a working tree may be on a slow network disk

_MAX_PACKAGES: Final = 2_000

_MAX_DIFF_BYTES: Final = 96 << 10
"""Below the bridge's bound of a text."""


class ProvenanceThread:
    """Adds the provenance of one process to the process's events.

    Args:
        events: Takes the event.
        guard: Counts losses.
    """

    def __init__(self, events: EventQueue, guard: Guard) -> None:
        self._events = events
        self._guard = guard
        # _lock guards the three below. Re-entrant, for signal handlers that shut down.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._is_settled = False  # the event was added, or comes too late

    def start(self, *, with_code: bool) -> None:
        """Start the thread, unless a thread was started before or the process ends.

        Args:
            with_code: Whether to report the code and its changes, besides command and machine.
        """
        with self._lock:
            if self._has_ended or self._thread is not None:
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
            self._has_ended = True
            thread = self._thread
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
        """Forget the parent's thread, in a forked child."""
        self._lock, self._thread = threading.RLock(), None  # another thread may have held it
        self._is_settled = False

    def _report(self, *, with_code: bool) -> None:
        with self._guard:
            found = provenance(with_code=with_code)
            with self._lock:
                if self._is_settled:
                    return
                self._is_settled = True
                is_added = self._events.add(RL_WORKER_START, found, text_chars=text_chars(found))
            if not is_added:
                self._guard.drop(DropReason.BUFFER_FULL, "Too many events in one interval.")


def provenance(*, with_code: bool) -> Mapping[str, Plain]:
    """Find out what this process runs, and where. Takes up to some seconds.

    Args:
        with_code: Also the difference to the commit and the installed packages, which are the same
            for all workers of a role.
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
    """Return the directory of the program, else that of the process."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(program).resolve().parent if program else Path.cwd()


def _git(directory: Path, *arguments: str) -> str:
    """Return the output of git; empty without git, a repository or an answer in time."""
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
