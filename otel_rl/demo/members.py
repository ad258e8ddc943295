"""Processes of one run: started with their identity in the environment, watched, and ended."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from otel_rl.demo import clock
from otel_rl.demo.faults import FaultPlan, Kind, Process
from otel_rl.demo.messages import Address, Hello, Start
from otel_rl.demo.rpc import CONTROL_VARIABLE
from otel_rl.demo.settings import DemoSettings
from otel_rl.semconv.names import RlExperimentStatusValues as Status

POLL_S = 0.01
TERMINATE_S = 1.0  # between SIGTERM and SIGKILL


class RunFailed(Exception):
    """Run that cannot reach its end. The message is for people."""

    status = Status.CRASHED


class RunAborted(RunFailed):
    """Run that is ended from outside."""

    status = Status.ABORTED


@dataclass(slots=True)
class Child:
    """Process of the run.

    Attributes:
        log: File with its stdout and stderr.
    """

    role: str
    index: int
    log: Path
    process: "subprocess.Popen[bytes]"

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def ending(self) -> str:
        code = self.process.returncode
        return f"exit {code}" if code >= 0 else signal.Signals(-code).name

    def last_line(self) -> str:
        """Return its last line of output, which after a crash is the error."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


class Members:
    """Processes of one run. One thread.

    Args:
        faults: Faults that processes get at their start.
        logs: Directory for the processes' logs; exists.
    """

    def __init__(
        self, settings: DemoSettings, faults: FaultPlan, checkpoint: Path, logs: Path
    ) -> None:
        self._settings = settings
        self._faults = faults
        self._checkpoint = checkpoint
        self._logs = logs
        self._alive: dict[Process, Child] = {}
        self._controls: dict[Process, Connection] = {}
        self._addresses: dict[str, Address] = {}
        self._parent = os.getppid()
        self._interrupted = False

    def __len__(self) -> int:
        return len(self._alive)

    def start(self, role: str, index: int, count: int) -> None:
        """Start one of ``count`` processes of a role; its log follows that of a predecessor."""
        log = self._logs / f"{role}-{index}.log"
        ours, theirs = Pipe()
        environment = os.environ | {
            CONTROL_VARIABLE: str(theirs.fileno()),
            "OTEL_RL_ROLE": role,
            "OTEL_RL_INDEX": str(index),
            "OTEL_RL_COUNT": str(count),
        }
        module = f"otel_rl.demo.processes.{role}"
        program = ["-m", module]
        of_run = self._faults.faults((role, index), step=self._settings.steps)
        if Kind.CLOCK_SKEW in of_run:
            program = ["-c", clock.launch_code(module)]
            # The command would reveal the fault to a diagnosis.
            environment["OTEL_RL_PROVENANCE"] = "off"
            host = f"host.name={socket.gethostname()}-{role}-{index}"
            attributes = environment.get("OTEL_RESOURCE_ATTRIBUTES")
            environment["OTEL_RESOURCE_ATTRIBUTES"] = f"{attributes},{host}" if attributes else host
        with log.open("ab") as output, theirs:
            process = subprocess.Popen(  # noqa: S603  # our own module, no shell
                [sys.executable, *program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=[theirs.fileno()],
            )
        self._controls[role, index] = ours
        self._alive[role, index] = Child(role, index, log, process)

    def register(self, member: Process, hello: Hello) -> None:
        if hello.address is not None:
            role, index = member
            self._addresses[f"{role}/{index}"] = hello.address

    def begin(self, member: Process, *, step: int) -> None:
        """Let a process begin its work, with the faults of ``step``."""
        faults = self._faults.faults(member, step=step)
        message = Start(self._settings, str(self._checkpoint), dict(self._addresses), faults)
        self.send(member, message)

    def receive(self, *, timeout_s: float) -> Iterator[tuple[Process, object]]:
        """Yield all messages of processes, the first of each is :class:`Hello`.

        Waits up to ``timeout_s`` for the first.
        """
        controls = dict(self._controls)
        ready = wait(list(controls.values()), timeout_s)
        for member, control in controls.items():
            try:
                while control in ready and control.poll():
                    yield member, control.recv()
            except (EOFError, OSError):  # whether that is a failure is told by its exit status
                if self._controls.get(member) is control:
                    del self._controls[member]

    def send(self, member: Process, message: object) -> None:
        """Send a message to a process. It is lost if the process has just died."""
        try:
            self._controls[member].send(message)
        except (KeyError, OSError):
            self._controls.pop(member, None)

    def kill(self, role: str, index: int) -> None:
        """Kill a process like the out-of-memory killer: no warning, no clean-up."""
        self._alive[role, index].process.send_signal(signal.SIGKILL)

    def exited(self) -> list[Child]:
        """Return the processes that ended since the last call."""
        gone = [child for child in self._alive.values() if child.process.poll() is not None]
        for child in gone:
            del self._alive[child.role, child.index]
        return gone

    def alive(self, role: str) -> list[int]:
        return [index for (each, index) in self._alive if each == role]

    def end_all(self) -> None:
        """Terminate all processes; kill those that do not react. Returns when all have ended."""
        for child in self._alive.values():
            child.process.terminate()
        deadline_s = time.monotonic() + TERMINATE_S
        while self._alive and time.monotonic() < deadline_s:
            self.exited()
            time.sleep(POLL_S)
        for child in self._alive.values():
            child.process.kill()
            child.process.wait()
        self._alive.clear()

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
            raise RunFailed(f"{child.name} ended ({child.ending}): {last} [{child.log}]")
