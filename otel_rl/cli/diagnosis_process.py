"""Process that diagnoses the live runs of a bridge, ``python -m otel_rl.cli.diagnosis_process``.

It keeps what it has read of the runs that go on.
"""

import argparse
import contextlib
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from otel_rl.bridge.child_process import answer_questions
from otel_rl.bridge.diagnosis.histories import LiveHistories, Open
from otel_rl.bridge.diagnosis.process import URL_VARIABLE
from otel_rl.bridge.garbage import collect_rarely, return_memory, skip_last_collections
from otel_rl.bridge.journal.places import JournalPlace
from otel_rl.bridge.journal.reader import looking
from otel_rl.bridge.keys import KeyNames
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.report_json import run_as_json
from otel_rl.errors import JournalUnavailable, OtelRLError
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.view.journals import Journals
from otel_rl.view.worker_places import completed

_IDLE_S: Final = 600.0


class _OpenJournal(NamedTuple):
    """The open journal, and what is known of its runs that go on."""

    open: Open
    histories: LiveHistories
    journals: Journals


class _Answers:
    """Answers questions of the bridge. Opens the journal with the first one.

    Args:
        place: Of the journal.
        names: Of metrics of frameworks, as the tracker has them.
    """

    def __init__(self, place: JournalPlace, names: KeyNames) -> None:
        self._place, self._names = place, names
        self._opened = ExitStack()
        self._journal: _OpenJournal | None = None

    def close(self) -> None:
        self._opened.close()

    def answer(self, question: bytes) -> bytes:
        """Return the diagnosis of a run, its CPU time, and whether the whole run was read for it.

        A journal that cannot be used now is tried again with the next question.

        Args:
            question: The run, and those that go on: pairs of names, as JSON.
        """
        begun_s = time.process_time()
        (experiment, trial), live = orjson.loads(question)
        key = ExperimentKey(experiment, trial)
        try:
            if self._journal is None:
                self._journal = self._open()
            open_, histories, journals = self._journal
            histories.keep_only({key, *(ExperimentKey(*one) for one in live)})
            looked = histories.look(open_, key)
            history = looked.history
            silent_s = max(0.0, time.time() - history.newest_ns / 1e9)
            report = diagnose(history, silent_s=silent_s)
            if report.causes or report.observations or report.symptoms or report.changes:
                found = journals.run(run_id(experiment, trial))
                if found is not None:
                    report = completed(found, report, self._names)
        except OtelRLError as exc:  # the bridge reports it
            return orjson.dumps(
                {"error": str(exc), "is_unavailable": isinstance(exc, JournalUnavailable)}
            )
        return orjson.dumps(
            {
                "report": run_as_json(key, history, report),
                "cpu_s": time.process_time() - begun_s,
                "is_whole": looked.is_whole,
            }
        )

    def _open(self) -> _OpenJournal:
        with ExitStack() as stack:
            if self._place.url is None:
                open_: Open = partial(looking, self._place.directory)
            else:
                shared = stack.enter_context(contextlib.closing(self._place.open()))
                open_ = shared.read
            journals = Journals(self._place)
            stack.callback(journals.close)
            self._opened = stack.pop_all()
        return _OpenJournal(open_, LiveHistories(), journals)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="otel_rl.cli.diagnosis_process", allow_abbrev=False)
    parser.add_argument("channel", type=int)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--max-bytes", type=int, required=True)
    parser.add_argument("--names", type=KeyNames, default=KeyNames.FRAMEWORK)
    parser.add_argument("--shared", action="store_true")
    parsed = parser.parse_args(arguments)
    collect_rarely()
    return_memory()
    url = os.environ[URL_VARIABLE] if parsed.shared else None
    answers = _Answers(JournalPlace(parsed.data, url, parsed.max_bytes), parsed.names)
    with contextlib.closing(answers):
        answer_questions(parsed.channel, answers.answer, idle_s=_IDLE_S)


if __name__ == "__main__":
    main()
    skip_last_collections()
