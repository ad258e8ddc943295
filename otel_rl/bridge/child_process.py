"""A process that works for a bridge, which has then no less time and memory for requests.

The process answers questions on a socket, one at a time, and has a low priority. It ends after some
minutes without a question, and when the bridge does: the bridge's end of the socket is then closed.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any, Final, TypeAlias

from otel_rl.bridge.private_files import UMASK

_NICENESS: Final = 10

_Channel: TypeAlias = "Connection[bytes, bytes]"


class ProcessEnded(RuntimeError):
    """The process has ended before it answered."""


class ChildProcess:
    """Starts the process with the first question, and again once it has ended. One thread asks.

    Args:
        module: Calls ``answer_questions`` with its first argument.
        arguments: Of its command line, behind that one.
        environment: Its variables beside those of the bridge, without the keys of trackers.
    """

    def __init__(
        self, module: str, arguments: Sequence[str] = (), environment: Mapping[str, str] = {}
    ) -> None:
        self._module, self._arguments, self._environment = module, arguments, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: _Channel | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def answer(self, question: bytes, timeout_s: float) -> bytes:
        """Return its answer.

        Args:
            question: For the process.
            timeout_s: Bound of the time to the answer; the process is then killed.

        Raises:
            ProcessEnded: It has ended.
            TimeoutError: It took too long.
            OSError: It cannot be started.
        """
        try:
            # Unasked, only its end arrives, which is no failure between two questions.
            if self._channel is None or self._channel.poll():
                self.end()
                self._channel = self._start()
            self._channel.send_bytes(question)
            if self._channel.poll(timeout_s):
                return self._channel.recv_bytes()
        except (EOFError, ConnectionError) as exc:
            status = self.end()
            raise ProcessEnded(f"the process ended (status {status})") from exc
        self.end()
        raise TimeoutError(f"no answer in {timeout_s:.3g} s")

    def kill(self) -> None:
        """Kill it, also while it is asked. Any thread may call it."""
        process = self._process
        if process is not None:
            process.kill()

    def end(self) -> int | None:
        """End the process, and return its status; None if there was none."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        return process.wait()

    def _start(self) -> _Channel:
        environment = {**_environment(os.environ), **self._environment}
        self._process, channel = start(self._module, *self._arguments, environment=environment)
        return channel


def start(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    output: IO[bytes] | None = None,
) -> "tuple[subprocess.Popen[bytes], Connection[Any, Any]]":
    """Start a module of ours as a process, and return it with our end of a socket.

    The number of the other end is the first argument of the process; ``arguments`` follow.

    Args:
        output: File that gets all output; None for no standard output, and our standard error.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
            # -P: a wandb.py in the user's working directory is not the tracker.
            [sys.executable, "-P", "-m", module, str(theirs.fileno()), *arguments],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.DEVNULL,
            stderr=output,
            # Signals of the terminal go to the bridge alone, which then ends its processes.
            start_new_session=True,
            umask=UMASK,
        )
    return process, Connection(ours.detach())


def answer_questions(channel: int, answer: Callable[[bytes], bytes], *, idle_s: float) -> None:
    """Answer until the other end of a socket is closed, or nothing is asked for too long.

    Args:
        channel: Descriptor of this end.
        answer: Returns the answer to a question.
        idle_s: Seconds without a question.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bridge ends it
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    connection: _Channel = Connection(channel)
    with contextlib.suppress(EOFError, ConnectionError):
        while connection.poll(idle_s):
            connection.send_bytes(answer(connection.recv_bytes()))


def _environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of a process that needs no API key and no token."""
    return {
        name: value
        for name, value in environ.items()
        if name != "WANDB_API_KEY" and not (name.startswith("OTEL_EXPORTER") and "HEADERS" in name)
    }
