"""The process that diagnoses live runs, as the bridge sees it. It is started again when it dies.

It keeps what it has read of the runs that go on, and so reads a long run once, and not at each
look; and it uses memory and CPU time that the bridge's own process needs for requests.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, TypeAlias

from otel_rl.bridge.journal.places import JournalPlace
from otel_rl.errors import JournalUnavailable
from otel_rl.records import ExperimentKey

__all__ = [
    "URL_VARIABLE",
    "Answer",
    "DiagnosisProcess",
    "ProcessEnded",
    "arguments_of",
    "environment_of",
    "reading_environment",
]

URL_VARIABLE: Final = "OTEL_RL_BRIDGE__JOURNAL__URL"
"""Has the URL of the shared journal, which holds a password."""

_MODULE: Final = "otel_rl.cli.diagnosis_process"

_Channel: TypeAlias = "Connection[bytes, bytes]"


class ProcessEnded(RuntimeError):
    """The process has ended before it answered."""


class Answer(NamedTuple):
    """Diagnosis of a run.

    Attributes:
        report: As ``otel-rl diagnose --now --json`` prints it.
        is_whole: Whether the whole run was read for it, as after a restart.
    """

    report: Mapping[str, Any]
    cpu_s: float
    is_whole: bool


class DiagnosisProcess:
    """Starts the process with the first question. One thread asks; any may call ``interrupt``.

    Args:
        arguments: Of its command line.
    """

    def __init__(self, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
        self._environment = environment
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: _Channel | None = None
        self._is_interrupted = self._is_asking = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def ask(self, key: ExperimentKey, live: Sequence[ExperimentKey], timeout_s: float) -> Answer:
        """Return the diagnosis of a run.

        Args:
            live: All runs that go on: the process lets go of others.
            timeout_s: Bound of the time to its answer; the process is then killed.

        Raises:
            ProcessEnded: It has ended, or ``interrupt`` was called.
            TimeoutError: It took too long.
            JournalUnavailable: The database does not answer.
            RuntimeError: The run cannot be diagnosed.
        """
        names = [[one.experiment, one.trial] for one in (key, *live)]
        self._is_asking = True  # before the check, so that ``interrupt`` sees it or is seen
        try:
            if self._is_interrupted:
                raise ProcessEnded("no question is asked now")
            answer = self._answer(json.dumps([names[0], names[1:]]).encode(), timeout_s)
        finally:
            self._is_asking = False
        if answer.get("is_unavailable"):
            raise JournalUnavailable(answer["error"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        report = answer["report"]
        if (report["experiment"], report["trial"]) != (key.experiment, key.trial):
            raise RuntimeError(f"the diagnosis of {key!r} names another run")
        return Answer(report, answer["cpu_s"], answer["is_whole"])

    def interrupt(self) -> None:
        """Let questions fail until ``resume``: the one that waits for its answer, too."""
        self._is_interrupted = True
        process = self._process
        if process is not None and self._is_asking:
            process.kill()

    def resume(self) -> None:
        """Answer questions again. Not while one is asked."""
        self._is_interrupted = False

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

    def _answer(self, question: bytes, timeout_s: float) -> Any:  # what JSON holds
        try:
            # Unasked, only its end arrives, which is no failure between two questions.
            if self._channel is None or self._channel.poll():
                self.end()
                self._channel = self._start()
            self._channel.send_bytes(question)
            if not self._channel.poll(timeout_s):
                self.end()
                raise TimeoutError(f"no answer in {timeout_s:.3g} s")
            return json.loads(self._channel.recv_bytes())
        except (EOFError, ConnectionError) as exc:
            status = self.end()
            raise ProcessEnded(f"the process ended (status {status})") from exc

    def _start(self) -> _Channel:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [
                    *(sys.executable, "-P", "-m", _MODULE, f"--channel={theirs.fileno()}"),
                    *self._arguments,
                ],
                pass_fds=[theirs.fileno()],
                env={**reading_environment(os.environ), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is for the bridge
            )
        if self._is_interrupted:  # just now
            self._process.kill()
        return Connection(ours.detach())


def arguments_of(place: JournalPlace) -> Sequence[str]:
    shared = [] if place.url is None else ["--shared"]
    return ["--data", str(place.directory), "--max-bytes", str(place.max_bytes), *shared]


def environment_of(place: JournalPlace) -> Mapping[str, str]:
    """Return the variables of a process that reads this journal."""
    return {} if place.url is None else {URL_VARIABLE: place.url}


def reading_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of a process that only reads the journal: no API key, no token."""
    return {
        name: value
        for name, value in environ.items()
        if name != "WANDB_API_KEY" and not (name.startswith("OTEL_EXPORTER") and "HEADERS" in name)
    }
