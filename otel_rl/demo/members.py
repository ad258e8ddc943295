"""Processes of one run: their start, their addresses, and an end that was not expected."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from otel_rl.demo.children import Child, Children
from otel_rl.demo.faults import FaultPlan, Process
from otel_rl.demo.messages import Address, Hello, Start
from otel_rl.demo.rpc import ControlServer
from otel_rl.demo.settings import DemoSettings
from otel_rl.semconv.names import RlExperimentStatusValues as Status

__all__ = ["Members", "RunAborted", "RunFailed", "ending"]


class RunFailed(Exception):
    """Run that cannot reach its end. The message is for people."""

    status = Status.CRASHED


class RunAborted(RunFailed):
    """Run that is ended from outside."""

    status = Status.ABORTED


class Members:
    """Processes of one run. One thread.

    Args:
        settings: Of the run.
        faults: Faults that processes get at their start.
        checkpoint: First weights.
        logs: Directory of the processes' logs.

    Attributes:
        server: Exchanges messages with them.
        children: The processes.
    """

    def __init__(
        self, settings: DemoSettings, faults: FaultPlan, checkpoint: Path, logs: Path
    ) -> None:
        self.server = ControlServer()
        self.children = Children(port=self.server.port, logs=logs)
        self._settings = settings
        self._faults = faults
        self._checkpoint = checkpoint
        self._addresses: dict[str, Address] = {}
        self._parent = os.getppid()
        self._interrupted = False

    def start(self, role: str, index: int, count: int) -> None:
        """Start a process."""
        own_clock = self._faults.has_own_clock((role, index))
        self.children.start(role, index, count, own_clock=own_clock)

    def register(self, member: Process, hello: Hello) -> None:
        """Store the address of a process that has started."""
        if hello.address is not None:
            role, index = member
            self._addresses[f"{role}/{index}"] = hello.address

    def begin(self, member: Process, *, step: int) -> None:
        """Let a process begin its work, with the faults of ``step``."""
        faults = self._faults.faults(member, step=step)
        message = Start(self._settings, str(self._checkpoint), dict(self._addresses), faults)
        self.server.send(member, message)

    def interrupt(self, *_: object) -> None:
        """Handle a signal: ``check`` raises from now on."""
        self._interrupted = True

    def check(self) -> None:
        """Check for an end from outside.

        Raises:
            RunAborted: A signal came, or the process that started the demo has ended.
        """
        if self._interrupted:
            raise RunAborted("interrupted")
        if os.getppid() != self._parent:
            raise RunAborted("the process that started the demo is gone")

    def fail_on(self, exited: Sequence[Child]) -> None:
        """End the run if processes have ended.

        Raises:
            RunFailed: Names the first of them, with its last line.
        """
        for child in exited:
            last = child.last_line()
            raise RunFailed(f"{child.name} ended ({ending(child)}): {last} [{child.log}]")


def ending(child: Child) -> str:
    """Return the exit status or signal of a process that has ended."""
    code = child.process.returncode
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name
