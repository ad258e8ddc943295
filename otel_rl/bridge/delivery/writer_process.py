"""Processes that drive trackers: start, end, and the place that one run's writer has in one."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol, TypeAlias

from otel_rl.bridge.delivery.tracker_interface import RunInfo, writer_file
from otel_rl.bridge.delivery.trackers import backend
from otel_rl.bridge.delivery.writer_messages import Reply, Request
from otel_rl.bridge.private_files import UMASK, open_private
from otel_rl.errors import TrackerUnavailable

__all__ = ["Channel", "OwnProcess", "WriterHost", "end_process", "start_process"]

Channel: TypeAlias = "Connection[Request, Reply]"

_EXIT_TIMEOUT_S = 15.0  # only a hanging process reaches it

_MODULE = "otel_rl.bridge.delivery.writer_main"


class WriterHost(Protocol):
    """WriterHost of one run's writer in a process. Use it for one opening."""

    @property
    def pid(self) -> int | None:
        """Return the id of the process; None before ``start``."""
        ...

    @property
    def log(self) -> Path:
        """Return the file with the output of the process."""
        ...

    def start(self, run: RunInfo, /) -> Channel:
        """Find a process, and return the channel to the run's writer in it.

        Raises:
            TrackerUnavailable: ``kill`` was called.
        """
        ...

    def lost(self) -> None:
        """The process has died with a request of this run in its hands."""
        ...

    def closed(self) -> None:
        """Wait for the end of the writer, which has closed its run."""
        ...

    def kill(self) -> None:
        """End the writer: nothing is written after it. Any thread, at any time, repeatedly."""
        ...


class OwnProcess:
    """A process for one run alone, which can be killed at once."""

    def __init__(self, tracker: str) -> None:
        self._tracker = tracker
        # _lock guards the start of the process against ``kill``.
        self._lock = threading.Lock()
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None
        self.log = Path()

    @property
    def pid(self) -> int | None:
        """See ``WriterHost``."""
        return self._process.pid if self._process else None

    def start(self, run: RunInfo, /) -> Channel:
        """See ``WriterHost``."""
        self.log = writer_file(run, "log")
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            if self._killed:
                ours.close()
                raise TrackerUnavailable("The bridge is stopping.")
            self._process = start_process(
                self._tracker, dict(run.attributes), self.log, theirs, shared=False
            )
        return Connection(ours.detach())

    def lost(self) -> None:
        """See ``WriterHost``: it harms no other run."""

    def closed(self) -> None:
        """See ``WriterHost``."""
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_TIMEOUT_S)

    def kill(self) -> None:
        """See ``WriterHost``."""
        with self._lock:
            self._killed = True
            process = self._process
        if process is not None:
            end_process(process)


def start_process(
    tracker: str, attributes: Mapping[str, str], log: Path, end: socket.socket, *, shared: bool
) -> "subprocess.Popen[bytes]":
    """Start a writer process.

    Args:
        tracker: Its tracker.
        attributes: Settings of the tracker.
        log: Where its output is appended.
        end: Its end of the socket.
        shared: Whether it gets runs over the socket, each with a socket of its own.
    """
    environment = {
        name: value
        for name, value in backend(tracker).environment(os.environ, attributes).items()
        # These configure the bridge's own telemetry, and hold passwords and tokens; a tracker
        # library may have telemetry, too.
        if not name.startswith("OTEL_")
    }
    # -P: a wandb.py in the user's working directory is not the tracker.
    command = [sys.executable, "-P", "-m", _MODULE, str(end.fileno())]
    with open(log, "ab", opener=open_private) as output:  # a Path has no opener
        return subprocess.Popen(  # noqa: S603  # our own interpreter and module
            [*command, "shared"] if shared else command,
            pass_fds=[end.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Signals of the terminal go to the bridge alone, which then closes the runs.
            start_new_session=True,
            umask=UMASK,
        )


def end_process(process: "subprocess.Popen[bytes]") -> None:
    """End a writer process and its children at once. Idempotent."""
    if process.poll() is None:
        # It leads a process group of its own, which includes the tracker's helpers.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
