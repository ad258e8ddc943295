"""Starts a bridge for the inbox of a run where none runs, and prints what the bridge says.

Any worker of the run may start a bridge; the lock of the inbox leaves one of them. The process that
has started the bridge prints its lines, and waits for the last one at its own end.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from errno import ENOENT
from pathlib import Path
from time import monotonic, sleep, time
from typing import Final

from otel_rl.inbox import (
    BRIDGE_LOCK,
    BRIDGE_STARTING,
    INBOX,
    LOCK,
    LOG_FILE,
    WANTED,
    bytes_in,
    is_held,
)

_LOOK_S: Final = 0.5
_WAIT_S: Final = 0.05

_STARTING_S: Final = 30.0
"""A bridge that does not have the lock after so long is not coming."""

_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 300.0
"""Pause between two starts; it doubles, so that a bridge that dies again and again costs little."""

_SOUND_S: Final = 60.0
"""A bridge that lives for so long is well."""

_MAX_FAILURES: Final = 3
"""Bridges in a row that did not come up: whatever is wrong with them, another one is no better."""

_BRIDGE_DIES_TOO_S: Final = 60.0
"""Wait of a process whose end is that of the bridge as well."""

_OWN: Final = "otel-rl: "
"""How lines for the user begin in the log."""

_LAUNCHER: Final = """
import os, sys
os.closerange(3, 1 << 20)
pid = os.fork()
if pid:
    try:
        with open(sys.argv[1], "r+") as starting:
            starting.seek(0, 2)
            starting.write(f" {pid}")
    except FileNotFoundError:
        pass
else:
    os.setsid()
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Program of a moment, so that the bridge is nobody's child; notes the process id of the bridge.

It also closes what libraries of the worker have opened without a care for children.
"""

_NOT_FOR_A_BRIDGE: Final = (
    *("CUDA_", "NVIDIA_", "OTEL_EXPORTER_", "OTEL_PYTHON_", "OTEL_SDK_"),
    *("OTEL_METRICS_", "OTEL_TRACES_", "OTEL_LOGS_", "LD_PRELOAD"),
)
"""Beginnings of variables that are meant for the training process."""


def say(text: str) -> None:
    """Print a line for the user, as the commands of ``otel-rl`` do."""
    # There may be no standard error, and a program's own may raise anything.
    with suppress(Exception):
        sys.stderr.write(f"{_OWN}{text}\n")
        sys.stderr.flush()


def _bridge_environment(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {name: text for name, text in environ.items() if not name.startswith(_NOT_FOR_A_BRIDGE)}
    return {**kept, "OTEL_RL_EMBED": "off", "CUDA_VISIBLE_DEVICES": ""}


class BridgeKeeper:
    """Makes sure that a bridge reads the inbox of a run. One thread at a time uses it."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._inbox = run / INBOX
        self._token = os.urandom(8).hex()
        self._next_look_s = self._next_start_s = 0.0
        self._started_s = 0.0
        self._starts = self._failures = 0
        self._has_started = False
        self._read = 0  # of the log
        self._has_told = False

    def look(self) -> None:
        """Print what the bridge says, and start a bridge, without waiting, if there is none."""
        now_s = monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_S
        self._pass_on()
        try:
            if is_held(self._inbox / BRIDGE_LOCK):
                self._failures = 0
                if now_s - self._started_s > _SOUND_S:
                    self._starts = 0
            elif now_s >= self._next_start_s:
                self._start(now_s)
        except OSError as error:  # the request is in the file, whatever becomes of the bridge
            self._next_look_s = now_s + _FIRST_PAUSE_S * 2**self._failures
            self._fail(f": {error}")

    def _fail(self, why: str) -> None:
        self._failures += 1
        if self._failures == _MAX_FAILURES:
            self._next_start_s = float("inf")
            say(f"no bridge can be started for this run{why}. {self._rest()}")

    def _start(self, now_s: float) -> None:
        starting = self._inbox / BRIDGE_STARTING
        if self._is_in(starting) and not self._is_starting():
            starting.unlink(missing_ok=True)  # ours has failed before it had the lock
            self._fail("")
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(starting, flags, 0o600)
        except FileExistsError:  # somebody else starts one
            with suppress(FileNotFoundError):
                if time() - starting.stat().st_mtime > _STARTING_S:
                    starting.unlink()
            return
        os.write(descriptor, self._token.encode())
        os.close(descriptor)
        self._started_s = now_s
        self._next_start_s = now_s + min(_FIRST_PAUSE_S * 2**self._starts, _MAX_PAUSE_S)
        self._starts += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(self._run / LOG_FILE, flags, 0o600)
        try:
            if not self._has_started:  # what an earlier one has said last is passed on, too
                self._read = os.fstat(log).st_size
                self._has_started = True
            # Not from the working directory, where a module may be called as one of Python's.
            command = [sys.executable, "-P", "-m", "otel_rl", "bridge", "--inbox", str(self._inbox)]
            _start_detached(starting, command, log)
        finally:
            os.close(log)
        with _mutex:
            if self not in _keepers:
                _keepers.append(self)

    def _pass_on(self) -> None:
        if not self._has_started:
            return
        with suppress(OSError), (self._run / LOG_FILE).open("rb") as log:
            log.seek(self._read)
            whole, _, _ = log.read().rpartition(b"\n")
            self._read += len(whole) + bool(whole)
            for line in whole.decode(errors="replace").splitlines():
                if line.startswith(_OWN):
                    say(line.removeprefix(_OWN))

    def _is_in(self, path: Path) -> bool:
        return self._token in _text(path).split()

    def _is_starting(self) -> bool:
        words = _text(self._inbox / BRIDGE_STARTING).split()
        return len(words) > 1 and words[0] == self._token and _lives(int(words[1]))

    def _runs(self) -> bool:
        """Return whether the bridge that this process started runs, or is about to."""
        if is_held(self._inbox / BRIDGE_LOCK):
            return self._is_in(self._inbox / BRIDGE_LOCK)
        return self._is_starting()

    def want_end(self) -> None:
        """Make the bridge end with its last worker, and not wait for another one."""
        with suppress(OSError):
            (self._inbox / WANTED).touch(mode=0o600)

    def has_others(self) -> bool:
        locks = (path for path in self._inbox.glob(f"[!.]*{LOCK}") if path.name != BRIDGE_LOCK)
        return any(map(is_held, locks))

    def wait_for_end(self, until_s: float) -> bool:
        """Wait for the bridge's last line, and print what is left. Returns whether it has ended."""
        is_over = False
        self.want_end()
        try:
            while not (is_over := not self._runs()) and monotonic() < until_s:
                self._pass_on()
                sleep(_WAIT_S)
        finally:
            self._pass_on()
            if is_over and is_held(self._inbox / BRIDGE_LOCK):
                pass  # another worker's goes on
            elif not is_over or bytes_in(self._inbox):
                if not self._has_told:
                    going = (
                        f"the bridge goes on and writes the rest (its log: {self._run / LOG_FILE})."
                        f" If it is killed before its end: otel-rl finish {self._run}"
                    )
                    say(self._rest() if is_over else going)
                self._has_told = True
        return is_over

    def _rest(self) -> str:
        size = bytes_in(self._inbox) >> 10
        left = f"{size} KiB are left in {self._inbox}. " if size else ""
        return f"{left}Write the rest with: otel-rl finish {self._run}"


def _text(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""


def _lives(pid: int) -> bool:
    with suppress(ChildProcessError):  # a container's first process has everybody's children
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _start_detached(starting: Path, command: list[str], log: int) -> None:
    """Start a program in a session of its own, as nobody's child.

    Without a pipe: another thread may fork meanwhile, and the child would keep its end open.
    """
    if not sys.executable:
        raise OSError(ENOENT, os.strerror(ENOENT), "sys.executable")
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        launcher = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(starting), *command],
            _bridge_environment(os.environ),
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate((null, log, log))],
            setsigmask=[],
            setsigdef=[signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM],
        )
    finally:
        os.close(null)
    with suppress(ChildProcessError):  # the program waits for any child
        os.waitpid(launcher, 0)


# _mutex guards _keepers.
_mutex = threading.Lock()
_keepers: list[BridgeKeeper] = []


def want_ends() -> None:
    """Make the bridges that this process has started end with their runs, without waiting."""
    for keeper in tuple(_keepers):
        keeper.want_end()


def wait_for_bridges(timeout_s: float, *, is_exit: bool = False, is_child: bool = False) -> None:
    """Wait for the last lines of the bridges that this process has started.

    Args:
        timeout_s: Seconds for all bridges together.
        is_child: Whether the process is a child of one that may report to the run as well. It waits
            for no bridge that other workers still need.
        is_exit: Whether the process ends. A container ends with its first process, and a Slurm step
            with its tasks, so the wait is longer then.
    """
    if is_exit and (1 in (os.getpid(), os.getppid()) or "SLURM_STEP_ID" in os.environ):
        timeout_s = max(timeout_s, _BRIDGE_DIES_TOO_S)
    until_s = monotonic() + timeout_s
    for keeper in tuple(_keepers):
        if is_child and keeper.has_others():
            continue
        if keeper.wait_for_end(until_s):
            with _mutex:
                _keepers.remove(keeper)


def forget_bridges() -> None:
    """Start over in a forked child, which has started no bridge."""
    global _mutex, _keepers  # a thread of the parent may hold the lock
    _mutex = threading.Lock()
    _keepers = []
