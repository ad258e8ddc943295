"""Reports config, samples, and the end of the process or of the run."""

import json
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from otel_rl.semconv.names import (
    RL_EXPERIMENT_END,
    RL_EXPERIMENT_STATUS,
    RL_LOOP_ITERATION,
    RL_ROLLOUT_SAMPLE,
    RL_SAMPLE_TABLE,
    RlExperimentStatusValues,
)
from otel_rl.worker import session
from otel_rl.worker.drops import DropReason
from otel_rl.worker.events.starts import config_metadata
from otel_rl.worker.otlp.anyvalue import Plain, cut, is_array, label, text_of
from otel_rl.worker.step_context import current_step
from otel_rl.worker.tensors import PLAIN, as_step, hold

MAX_SAMPLES: Final = 256
"""Per call: more than a person reads of one step."""

MAX_FIELDS: Final = 64
"""Per sample."""

MAX_TEXT_CHARS: Final = 16_384
"""Per text: a long chain of thought. Longer ones cannot be read in a table."""

MAX_SAMPLE_CHARS: Final = 4 * MAX_TEXT_CHARS
"""All texts of a sample, so that no record comes near the size limit of a request."""

MAX_NAME_CHARS: Final = 64

_SHORTEST_MESSAGE: Final = 64


def log_config(config: Mapping[str, object]) -> None:
    """Add to the run's config, or change it. Never raises, never waits.

    The configs of all workers are merged; for each top-level key the last writer wins.

    Args:
        config: Name to value, nested arbitrarily. A value that is not text, a number, a boolean, a
            list or a mapping is written as text. Read before the call returns.
    """
    current = session.running() or session.started_or_dropped("log_config")
    if current is None:
        return
    given: object = config
    with session.GUARD:
        if not isinstance(given, Mapping):
            session.GUARD.drop(
                DropReason.BAD_ATTRIBUTES,
                f"log_config: the config must be a mapping (got {type(given).__name__}). Pass "
                "vars(arguments) or dataclasses.asdict(settings).",
            )
            return
        current.report_start(config_metadata(config, session.GUARD))


def log_samples(
    samples: Iterable[Mapping[str, object]], step: int | None = None, name: str = "samples"
) -> None:
    """Write samples, such as prompts and their completions, into a table. Never raises or waits.

    Args:
        samples: At most 256 mappings of field to text, number or boolean; a tensor of one element
            is a number. A list of messages (mappings with ``role``) is a conversation. Anything
            else is written as text. The page knows ``id``, ``attempt``, ``prompt``, ``reward``,
            ``advantage``, ``outcome``, ``reason``, ``environment`` and ``group``; samples with the
            same ``id`` and ``attempt`` are one rollout.
        step: The training step of the samples; default that of the block around the call.
        name: Name of the table; the run has it as ``<role>/<name>``.
    """
    current = session.running() or session.started_or_dropped("log_samples")
    if current is None:
        return
    with session.GUARD:
        if isinstance(samples, Mapping | str) or not isinstance(samples, Iterable):
            session.GUARD.drop(
                DropReason.BAD_SAMPLE,
                f"log_samples takes a list of mappings (got {type(samples).__name__}). "
                "They are dropped.",
            )
            return
        taken = [*islice(samples, MAX_SAMPLES + 1)]
        if len(taken) > MAX_SAMPLES:
            session.GUARD.drop(
                DropReason.TOO_MANY_SAMPLES,
                f"log_samples takes {MAX_SAMPLES} samples in one call; the rest is dropped. Log a "
                "selection.",
                max(1, _size(samples) - MAX_SAMPLES),
            )
        attributes = _attributes(step, name)
        if attributes is None:
            session.GUARD.drop(
                DropReason.BAD_STEP,
                "log_samples: the step must be an integer of 64 bits "
                f"(got {text_of(step)[:80]!r}). The samples are dropped.",
                len(taken[:MAX_SAMPLES]),
            )
            return
        for sample in taken[:MAX_SAMPLES]:
            with session.GUARD:
                _report(current, sample, attributes)


def finish(status: str | None = None, *, timeout_s: float | None = None) -> bool:
    """Send everything and end the reports of this process. Idempotent, never raises.

    A process calls this at its exit by itself. A status also ends the run, for all of its workers;
    a later ``init`` of any worker sets the run to running again.

    Args:
        status: End of the whole run: ``complete``, ``aborted`` or ``crashed``; None ends only this
            process.
        timeout_s: Maximum blocking time. None waits up to ``OTEL_RL_EXIT_TIMEOUT`` (5) for each
            answer of the endpoint, as the end of a process does.

    Returns:
        True if everything was delivered. Losses are counted and logged.
    """
    if status is not None:
        _end_run(status)
    return session.shutdown(timeout_s=timeout_s)


def _end_run(status: str) -> None:
    current = session.running() or session.started_or_dropped("finish")
    if current is None:
        return
    with session.GUARD:
        if status not in tuple(RlExperimentStatusValues):
            words = ", ".join(RlExperimentStatusValues)
            session.GUARD.drop(
                DropReason.BAD_STATUS,
                f"finish: unknown status {text_of(status)[:80]!r}; choose one of {words}. "
                "It is ignored.",
            )
            return
        if status == RlExperimentStatusValues.CRASHED:
            current.exit_report.note(sys.exception())
        current.providers.events.add(RL_EXPERIMENT_END, {RL_EXPERIMENT_STATUS: str(status)})


def _attributes(step: object, name: str) -> dict[str, Plain] | None:
    step = current_step() if step is None else step
    attributes: dict[str, Plain] = {RL_SAMPLE_TABLE: label(name, MAX_NAME_CHARS)}
    if step is not None:
        number = as_step(step)
        if number is None:
            return None
        attributes[RL_LOOP_ITERATION] = number
    return attributes


def _report(current: session.Session, sample: object, attributes: dict[str, Plain]) -> None:
    guard = session.GUARD
    if not isinstance(sample, Mapping):
        guard.drop(
            DropReason.BAD_SAMPLE,
            "log_samples: a sample must be a mapping "
            f"(got {type(sample).__name__}). It is dropped.",
        )
        return
    if not sample:
        guard.drop(DropReason.BAD_SAMPLE, "log_samples: a sample without fields is dropped.")
        return
    fields: dict[str, object] = {}
    room = MAX_SAMPLE_CHARS
    for key, value in islice(sample.items(), MAX_FIELDS):
        allowed = min(room, MAX_TEXT_CHARS)
        held = _conversation(value, allowed) or _held(value)
        if isinstance(held, str):
            if len(held) > allowed:
                guard.drop(DropReason.TEXT_CUT, "Long texts of samples are cut.")
            room -= min(len(held), allowed)
            held = cut(held, allowed)
        fields[label(key, MAX_NAME_CHARS)] = held
    if not current.providers.events.add(RL_ROLLOUT_SAMPLE, attributes, fields):
        guard.drop(
            DropReason.BUFFER_FULL,
            "More samples were logged between two exports than the buffer holds; the newest are "
            "dropped. Log fewer of them.",
        )


def _conversation(value: object, max_chars: int) -> str:
    """Return messages as JSON, with long texts cut to fit; empty for anything else."""
    if not isinstance(value, list | tuple) or not value:
        return ""
    if not all(isinstance(one, Mapping) and "role" in one for one in value):
        return ""
    try:
        text = json.dumps(value, ensure_ascii=False, default=text_of)
    except (TypeError, ValueError, RecursionError):
        return ""  # keys that are no text, or a list within itself: no JSON, but a text as others
    allowed = max_chars
    if len(text) > max_chars:
        session.GUARD.drop(DropReason.TEXT_CUT, "Long texts of samples are cut.")
    while len(text) > max_chars and allowed > _SHORTEST_MESSAGE:
        # A cut JSON is no conversation any more, so texts within are cut instead.
        allowed //= 2
        text = json.dumps(_shortened(value, allowed), ensure_ascii=False, default=text_of)
    return text


def _shortened(value: object, max_chars: int) -> object:
    if isinstance(value, str):
        return cut(value, max_chars)
    if isinstance(value, Mapping):
        return {str(key): _shortened(one, max_chars) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(one, max_chars) for one in value]
    return value


def _held(value: object) -> object:
    if type(value) in PLAIN or value is None:
        return value
    if is_array(value):
        return hold(value)
    return value if type(value) is str else text_of(value)


def _size(samples: object) -> int:
    size = getattr(samples, "__len__", None)
    return int(size()) if callable(size) else 0
