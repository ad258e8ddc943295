"""The shim's only way to the worker: all that it asks of otel_rl stands here."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Final, SupportsFloat, cast

import otel_rl
from otel_rl.compat.wandb._about import About
from otel_rl.compat.wandb._rows import Row
from otel_rl.worker.drops import DropReason
from otel_rl.worker.launcher import process_name
from otel_rl.worker.naming import Who
from otel_rl.worker.plain import label
from otel_rl.worker.said import MAX_TAGS, MAX_WORD_CHARS, what_is_said
from otel_rl.worker.session import GUARD, Session, running

__all__ = [
    "DropReason",
    "guard",
    "join",
    "process_name",
    "record",
    "record_at",
    "record_summary",
    "tell_about",
    "tell_config",
    "tell_failure",
    "wait",
]

guard: Final = GUARD
"""Catches and counts what must not reach training code."""

_FINISH_TIMEOUT_S: Final = 5.0
"""How long ``finish`` waits for the endpoint: as long as the end of a process."""

# The session that the shim itself has started, and as whom.
_started: tuple[Session, Who] | None = None


def join(worker: Who, about: About) -> None:
    """Be ``worker``, unless the program has called ``otel_rl.init`` itself.

    Args:
        worker: Who.
        about: What the run is given.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """
    global _started  # one worker per process
    session = running()
    if session is not None and not session.is_guess:
        if _started is None or _started[0] is not session:
            tell_about(about)
            return
        if _started[1] != worker:
            otel_rl.shutdown(timeout_s=_FINISH_TIMEOUT_S)
    otel_rl.init(
        **asdict(worker),
        notes=about.notes,
        tags=_words(about.tags),
        group=_word(about.group),
        job_type=_word(about.job_type),
    )
    session = running()
    _started = None if session is None else (session, worker)


def record(row: Row) -> None:
    """Send one row, with the time at which it was logged."""
    record_at(row, row.step)


def record_at(row: Row, step: object) -> None:
    """Send one row at any step, whatever steps the run's own rows have.

    Args:
        row: Its own step means nothing.
        step: As the program gave it, or None for what is of no step. What is no step is counted.
    """
    at = cast("int | None", step)
    for reduce, values in ((None, row.values), *row.extremes.items()):
        if values:
            otel_rl.mlogger.log(_numbers(values), at, reduce, at_ns=row.time_ns)
    for name, samples in row.tables.items():
        otel_rl.log_samples(samples, at, name)


def record_summary(row: Row) -> None:
    """Send what a program wrote into the summary: of no step, and the last one counts."""
    otel_rl.mlogger.log(_numbers(row.values), None, "last", at_ns=row.time_ns)


def tell_config(config: Mapping[str, object]) -> None:
    """Give the run more of its config."""
    otel_rl.log_config(config)


def tell_about(about: About) -> None:
    """Give the run its notes, tags, group and job type, as far as there are any."""
    session = running()
    if session is not None:
        said = what_is_said(
            guard,
            notes=about.notes,
            tags=_words(about.tags),
            group=_word(about.group),
            job_type=_word(about.job_type),
        )
        if said:
            session.say_start(said)


def tell_failure(error: str | None) -> None:
    """Let the worker say at its end that it has failed, or that it has not."""
    session = running()
    if session is not None:
        session.failure = error


def wait() -> bool:
    """Wait until what was recorded is delivered, for at most as long as the end of a process."""
    return otel_rl.flush(timeout_s=_FINISH_TIMEOUT_S)


def _words(tags: Iterable[object]) -> list[str]:
    return [_word(tag) for tag in tags if tag][:MAX_TAGS]


def _word(given: object) -> str:
    """What is given, as ``init`` takes it: no run may fail for its tags or its group."""
    return label(given, MAX_WORD_CHARS) if given else ""


def _numbers(values: Mapping[str, object]) -> Mapping[str, SupportsFloat]:
    return cast("Mapping[str, SupportsFloat]", values)  # flat_row let nothing else through
