"""The process that diagnoses live runs, as the bridge sees it. It is restarted when it dies.

The process keeps the histories of runs that go on, and so reads a long run once, and not at each
look; and it uses memory and CPU time that the bridge's own process needs for requests.
"""

import json
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from otel_rl.bridge.child_process import ChildProcess, ProcessEnded
from otel_rl.bridge.journal.places import JournalPlace
from otel_rl.errors import JournalUnavailable
from otel_rl.records import ExperimentKey

URL_VARIABLE: Final = "OTEL_RL_BRIDGE__JOURNAL__URL"
"""Has the URL of the shared journal, which holds a password."""


class Answer(NamedTuple):
    """Diagnosis of a run.

    Attributes:
        report: JSON as ``otel-rl diagnose --now --json`` prints it.
        is_whole: Whether the whole run was read for this answer, as after a restart.
    """

    report: Mapping[str, Any]
    cpu_s: float
    is_whole: bool


class DiagnosisProcess(ChildProcess):
    """Starts the process at the first question. One thread asks; any may call ``interrupt``.

    Args:
        arguments: Arguments of the process's command line.
    """

    def __init__(self, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
        super().__init__("otel_rl.cli.diagnosis_process", arguments, environment)
        self._is_interrupted = self._is_asking = False

    def ask(self, key: ExperimentKey, live: Sequence[ExperimentKey], timeout_s: float) -> Answer:
        """Return the diagnosis of a run.

        Args:
            live: All runs that go on: the process drops the histories of others.
            timeout_s: Seconds until an answer; the process is killed after that.

        Raises:
            ProcessEnded: The process has ended, or ``interrupt`` was called.
            TimeoutError: The answer took too long.
            JournalUnavailable: The database does not answer.
            RuntimeError: The run cannot be diagnosed.
        """
        names = [[one.experiment, one.trial] for one in (key, *live)]
        self._is_asking = True  # before the check, so that ``interrupt`` sees it or is seen
        try:
            if self._is_interrupted:
                raise ProcessEnded("no question is asked now")
            question = json.dumps([names[0], names[1:]]).encode()
            answer = json.loads(self.answer(question, timeout_s))
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
        """Let questions fail until ``resume``, including the one that waits for its answer."""
        self._is_interrupted = True
        if self._is_asking:
            self.kill()

    def resume(self) -> None:
        """Answer questions again. Do not call this while a question is asked."""
        self._is_interrupted = False

    def _start(self) -> "Connection[bytes, bytes]":
        channel = super()._start()
        if self._is_interrupted:  # just now
            self.kill()
        return channel


def arguments_of(place: JournalPlace) -> Sequence[str]:
    shared = [] if place.url is None else ["--shared"]
    return ["--data", str(place.directory), "--max-bytes", str(place.max_bytes), *shared]


def environment_of(place: JournalPlace) -> Mapping[str, str]:
    return {} if place.url is None else {URL_VARIABLE: place.url}
