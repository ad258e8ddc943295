"""Interface of the drop-in to the worker: all uses of otel_rl are here."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Final, SupportsFloat, TypedDict, cast

import otel_rl
from otel_rl.integrations.wandb._identity import DEFAULT_PROJECT
from otel_rl.integrations.wandb._logged.rows import Row
from otel_rl.integrations.wandb._run_metadata import About
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.exit_status import Failure
from otel_rl.worker.events.run_metadata import MAX_TAGS, MAX_WORD_CHARS, validated_metadata
from otel_rl.worker.identity.launcher import process_name
from otel_rl.worker.identity.names import WorkerNames, named_place
from otel_rl.worker.identity.rank import launcher_index
from otel_rl.worker.otlp.anyvalue import label
from otel_rl.worker.session import GUARD, Session, finished, running
from otel_rl.worker.step_context import current_step

__all__ = [
    "DropReason",
    "add_config",
    "current_step",
    "finished",
    "guard",
    "join",
    "leave",
    "process_name",
    "record",
    "record_at",
    "record_summary",
    "report_metadata",
    "set_failure",
    "trial",
]

guard: Final = GUARD
"""Catches and counts errors before they reach training code."""

# The session that the drop-in has started.
_started: Session | None = None


def join(worker: WorkerNames, about: About) -> None:
    """Start ``worker``, unless the program has called ``otel_rl.init`` itself.

    Args:
        worker: Names of the worker.
        about: Metadata of the run.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """
    global _started  # one worker per process
    session = running()
    if session is not None and not session.is_guess:
        report_metadata(about)
        return
    otel_rl.init(
        **asdict(worker),
        index=launcher_index(
            os.environ, named_place(process_name())[1]
        ),  # W&B's users log on one rank
        notes=about.notes,
        tags=_words(about.tags),
        **_words_of(about),
    )
    _started = running()


def trial() -> str:
    """Return the trial that this process reports to; empty where nothing is recorded."""
    session = running()
    return session.identity.trial if session is not None else ""


def leave() -> None:
    """End the reporting to the run that ``join`` has started; for another only wait.

    Either takes at most as long as the end of a process.
    """
    session = running()
    if session is not None and session is _started:
        otel_rl.finish(timeout_s=session.settings.exit_timeout_s)
    elif session is not None:
        otel_rl.flush(timeout_s=session.settings.exit_timeout_s)


def record(row: Row) -> None:
    """Send one row, with the time at which it was logged."""
    record_at(row, row.step)


def record_at(row: Row, step: object) -> None:
    """Send one row at any step, independent of the run's own rows.

    Args:
        row: Its own step is ignored.
        step: As given by the program, or None for no step. An invalid step is counted.
    """
    at = cast("int | None", step)
    for reduce, values in ((None, row.values), *row.extremes.items()):
        if values:
            otel_rl.log(_numbers(values), at, reduce, at_ns=row.time_ns)
    for name, samples in row.tables.items():
        otel_rl.log_samples(samples, at, name)


def record_summary(row: Row) -> None:
    """Send values that a program wrote into the summary: without step, last writer wins."""
    otel_rl.log(_numbers(row.values), None, "last", at_ns=row.time_ns)


def add_config(config: Mapping[str, object]) -> None:
    """Add to the config of the run."""
    otel_rl.log_config(config)


def report_metadata(about: About) -> None:
    """Set what the program has said of the run."""
    session = running()
    if session is not None:
        metadata = validated_metadata(
            guard, notes=about.notes, tags=_words(about.tags), **_words_of(about)
        )
        if metadata:
            session.report_start(metadata)


def set_failure(error: str | None) -> None:
    """Set or clear the failure that the worker reports at its end."""
    session = running()
    if session is not None:
        session.exit_report.failure = None if error is None else Failure(error)


class _Words(TypedDict):
    """What ``init`` is told of the run in a word each."""

    group: str
    job_type: str
    project: str
    entity: str
    name: str
    mode: str


def _words_of(about: About) -> _Words:
    return {
        "group": _word(about.group),
        "job_type": _word(about.job_type),
        "project": _word("" if about.project == DEFAULT_PROJECT else about.project),
        "entity": _word(about.entity),
        "name": _word(about.name),
        "mode": about.mode,
    }


def _words(tags: Iterable[object]) -> list[str]:
    return [_word(tag) for tag in tags if tag][:MAX_TAGS]


def _word(given: object) -> str:
    """Convert text to the form of ``init``: no run may fail for its tags or its group."""
    return label(given, MAX_WORD_CHARS) if given else ""


def _numbers(values: Mapping[str, object]) -> Mapping[str, SupportsFloat]:
    return cast("Mapping[str, SupportsFloat]", values)  # flat_row let nothing else through
