"""Processes of a run: started with their identity in the environment, watched, and ended."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from otel_rl.demo import clock
from otel_rl.demo.rpc import CONTROL_VARIABLE, KEY_VARIABLE

__all__ = ["Child", "Children", "demo_environment"]

# One thread per process: with a dozen processes on a few cores, BLAS threads only compete.
_ONE_THREAD = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

POLL_S = 0.01
TERMINATE_S = 1.0  # between SIGTERM and SIGKILL


def demo_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for all processes of one run, with a new secret."""
    return {
        "OTEL_RL_GC": "1",  # the generator has no phases, but GC pauses
        "OTEL_RL_HOST_INTERVAL": "1000",  # the run is short
        # Nothing in it writes to W&B.
        **{name: value for name, value in environment.items() if name != "WANDB_API_KEY"},
        **dict.fromkeys(_ONE_THREAD, "1"),
        "PYTHONUNBUFFERED": "1",
        KEY_VARIABLE: secrets.token_hex(16),
    }


@dataclass(slots=True)
class Child:
    """Process of the run.

    Attributes:
        role: Its role.
        index: Its index among the processes of the role.
        log: File with its stdout and stderr.
        process: Handle to wait for.
    """

    role: str
    index: int
    log: Path
    process: "subprocess.Popen[bytes]"

    @property
    def name(self) -> str:
        """Role and index, for people."""
        return f"{self.role}-{self.index}"

    def last_line(self) -> str:
        """Return its last line of output, which after a crash is the error."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


class Children:
    """All processes that the orchestrator has started. One thread."""

    def __init__(self, *, port: int, logs: Path) -> None:
        """Prepare to start processes.

        Args:
            port: Port of the orchestrator.
            logs: Directory for the log files; exists.
        """
        self._port = port
        self._logs = logs
        self._alive: dict[tuple[str, int], Child] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def start(self, role: str, index: int, count: int, *, own_clock: bool = False) -> None:
        """Start a process; its log is appended to that of a predecessor.

        Args:
            role: Its role.
            index: Its index among the processes of the role.
            count: Number of processes of the role.
            own_clock: True simulates a host of its own, whose wall clock may be wrong.
        """
        log = self._logs / f"{role}-{index}.log"
        environment = os.environ | {
            CONTROL_VARIABLE: str(self._port),
            "OTEL_RL_ROLE": role,
            "OTEL_RL_INDEX": str(index),
            "OTEL_RL_COUNT": str(count),
        }
        module = f"otel_rl.demo.processes.{role}"
        program = ["-m", module]
        if own_clock:
            program = ["-c", clock.launch_code(module)]
            environment["OTEL_RL_PROVENANCE"] = (
                "off"  # the command would reveal the fault to a diagnosis
            )
            host = f"host.name={socket.gethostname()}-{role}-{index}"
            attributes = environment.get("OTEL_RESOURCE_ATTRIBUTES")
            environment["OTEL_RESOURCE_ATTRIBUTES"] = f"{attributes},{host}" if attributes else host
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603  # our own module, no shell
                [sys.executable, *program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        self._alive[role, index] = Child(role, index, log, process)

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
        """Return the indices of the living processes of a role."""
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
