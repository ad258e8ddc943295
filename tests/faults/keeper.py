"""Keeps processes running, as a supervisor does, and kills them, as a fault does."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.faults.gateway import Addresses
from tests.faults.plan import WorkerPlan
from tests.support.strays import processes_with

MARK = "FAULTS_SCENARIO"
"""A variable that every process of a scenario inherits, by which it is found."""

_REPOSITORY = Path(__file__).parents[2]
_LOOK_S = 0.05
_ADDRESSES = re.compile(r"OTLP/HTTP on (\S+), OTLP/gRPC on (\S+),")
_STOP_TIMEOUT_S = 180.0  # of one that nobody waits for any more
_UNLIMITED = resource.RLIM_INFINITY


def wait_for(condition: Callable[[], object], timeout_s: float, *, look_s: float = _LOOK_S) -> bool:
    """Look until ``condition`` holds or the time is up. Returns whether it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(look_s)
    return True


class BridgeKeeper:
    """Runs ``otel-rl bridge`` inside its context; starts it again whenever it has ended.

    Args:
        command: That starts it.
        environment: Of the process.
        mark: The value of MARK in ``environment``.
        log: Where everything goes that the bridge says.

    Attributes:
        exits: The status of each end.
        peak_rss_bytes: The most memory that it ever took.
        restart_pause_s: Between its end and its next start.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        mark: str,
        log: Path,
    ) -> None:
        self.exits: list[int] = []
        self.peak_rss_bytes = 0
        self.restart_pause_s = 0.2
        self._command = command
        self._environment = {"PYTHONPATH": str(_REPOSITORY), **environment}
        self._mark = mark
        self._log = log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="faults-bridge", daemon=True)
        # Set by the thread, read by anybody.
        self._process: subprocess.Popen[bytes] | None = None
        self._addresses: Addresses | None = None
        # It was told to end and has not done so yet: a second SIGTERM would mean "at once".
        self._is_ending = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def addresses(self) -> Addresses | None:
        """Where it listens, None while it does not."""
        return self._addresses

    @property
    def pid(self) -> int | None:
        """Of the bridge that runs or has just ended, None before the first one."""
        return None if self._process is None else self._process.pid

    def is_up(self) -> bool:
        """Whether it listens, and was not told to end."""
        return self._addresses is not None and not self._is_ending

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the bridge. Returns whether there was one."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        self._is_ending = True
        process.send_signal(number)
        return True

    def writers(self) -> Sequence[int]:
        """The processes that write to the tracker."""
        return self._children("delivery.writer_main")

    def cores(self) -> Sequence[int]:
        """The helpers of the tracker's library."""
        return self._children("wandb-core")

    def limit_files(self, n_bytes: int | None) -> bool:
        """No file of the bridge may grow beyond this: as a full disk, for this process alone."""
        process = self._process
        if process is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            limit = _UNLIMITED if n_bytes is None else n_bytes
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, _UNLIMITED))
            return True
        return False

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> int | None:
        """End it in order. Returns its exit status, None if it had to be killed."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return self.exits[-1] if self.exits else None
        self.signal(signal.SIGKILL)
        self._thread.join()
        return None

    def said(self) -> str:
        """Everything that the bridge has written to its standard error."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _children(self, word: str) -> Sequence[int]:
        found = processes_with(MARK, self._mark)
        return [pid for pid, command in found.items() if word in command]

    def _keep(self) -> None:
        while not self._stopping.is_set():
            with self._log.open("ab") as log:
                begin = log.tell()
                process = self._process = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            if self._stopping.is_set():
                self.signal(signal.SIGTERM)
            while process.poll() is None:
                if self._addresses is None:
                    said = self._log.read_bytes()[begin:].decode(errors="replace")
                    if match := _ADDRESSES.search(said):
                        self._addresses = Addresses(match[1], match[2])
                self._note_memory(process.pid)
                time.sleep(_LOOK_S)
            self._addresses = None
            self.exits.append(process.returncode)
            if not self._stopping.is_set():
                self._stopping.wait(self.restart_pause_s)
                self._is_ending = False

    def _note_memory(self, pid: int) -> None:
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{pid}/status").read_text()
            kib = int(status.split("VmHWM:")[1].split()[0])
            self.peak_rss_bytes = max(self.peak_rss_bytes, kib << 10)


class WorkerKeeper:
    """Runs a real worker of otel_rl inside its context; after a kill, another in its place.

    Args:
        plan: Who it is.
        url: Where it exports.
        experiment: That it works for.
        environment: Of the process.
        log: Where everything goes that it says.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        url: str,
        experiment: str,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self._plan = plan
        self._environment = {**environment, "PYTHONPATH": str(_REPOSITORY)}
        self._log = log
        self._url = url
        self._experiment = experiment
        self._lives = 0
        self._process = self._born()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def kill(self) -> None:
        """End it with no warning, and start another."""
        self._process.kill()
        self._process.communicate()
        self._process = self._born()

    def finish(self, timeout_s: float) -> tuple[int, str]:
        """Let it end in order. Returns its exit status and what it said last."""
        try:
            said, _ = self._process.communicate(input=b"\n", timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, _ = self._process.communicate()
        return self._process.returncode, said.decode(errors="replace")

    def _born(self) -> "subprocess.Popen[bytes]":
        first = (self._plan.number * 1000 + self._lives) * 1_000_000
        self._lives += 1
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [
                    sys.executable, "-m", "tests.faults.worker",
                    self._experiment, self._plan.role, str(self._plan.index), str(first),
                ],
                env={**self._environment, "OTEL_EXPORTER_OTLP_ENDPOINT": self._url},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )  # fmt: skip


def kill(pids: Sequence[int]) -> int:
    """kill -9 each of them. Returns how many there were."""
    killed = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed
