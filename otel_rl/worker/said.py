"""What a program says of its run, checked, as the attributes of ``rl.experiment.start``."""

from collections.abc import Mapping, Sequence
from typing import Final

from otel_rl.errors import ConfigError
from otel_rl.semconv.names import (
    RL_EXPERIMENT_CONFIG,
    RL_EXPERIMENT_GROUP,
    RL_EXPERIMENT_JOB_TYPE,
    RL_EXPERIMENT_NOTES,
    RL_EXPERIMENT_TAGS,
)
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.plain import MAX_CONFIG_BYTES, Plain, cut, plain_config

__all__ = ["MAX_TAGS", "MAX_WORD_CHARS", "Said", "said_config", "what_is_said"]

Said = Mapping[str, Plain]
"""Attributes of ``rl.experiment.start``. Without any, the run is running, and no more is known."""

MAX_WORD_CHARS: Final = 128
"""Of a tag, a group or a job type. W&B refuses longer ones."""

MAX_TAGS: Final = 64

MAX_NOTES_CHARS: Final = 16_384


def what_is_said(
    guard: Guard,
    *,
    config: Mapping[str, object] | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    group: str | None = None,
    job_type: str | None = None,
) -> Said:
    """The arguments of ``init`` that are about the run, without those that say nothing.

    Args:
        guard: Counts the settings that are too large.
        config: See ``init``.
        notes: See ``init``.
        tags: See ``init``.
        group: See ``init``.
        job_type: See ``init``.

    Raises:
        ConfigError: One is of the wrong type, or too long.
    """
    said: dict[str, Plain] = {}
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config: must be a mapping (got {type(config).__name__}).",
            hint="Pass vars(arguments) or dataclasses.asdict(settings).",
        )
    if config:
        said.update(said_config(config, guard))
    if notes:
        said[RL_EXPERIMENT_NOTES] = cut(_text("notes", notes), MAX_NOTES_CHARS)
    if tags:
        said[RL_EXPERIMENT_TAGS] = _tags(tags)
    if group:
        said[RL_EXPERIMENT_GROUP] = _word("group", group)
    if job_type:
        said[RL_EXPERIMENT_JOB_TYPE] = _word("job_type", job_type)
    return said


def said_config(config: Mapping[str, object], guard: Guard) -> Said:
    """The config as an attribute. Never raises.

    Args:
        config: Hyper-parameters, as they are now.
        guard: Counts those that are too large.
    """
    taken, left_out = plain_config(config)
    if left_out:
        guard.drop(
            DropReason.TOO_LARGE,
            f"A config may have {MAX_CONFIG_BYTES >> 10} KiB; left out: {', '.join(left_out)}.",
            len(left_out),
        )
    return {RL_EXPERIMENT_CONFIG: taken} if taken else {}


def _tags(tags: object) -> list[str]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise ConfigError(
            f"tags: must be a list of text (got {tags!r}).", hint='Pass tags=["grpo", "7b"].'
        )
    if len(tags) > MAX_TAGS:
        raise ConfigError(f"tags: must be at most {MAX_TAGS} (got {len(tags)}).")
    return [_word(f"tags[{number}]", tag) for number, tag in enumerate(tags)]


def _word(name: str, value: object) -> str:
    word = _text(name, value)
    if not word.strip() or len(word) > MAX_WORD_CHARS or not word.isprintable():
        raise ConfigError(
            f"{name}: must have 1 to {MAX_WORD_CHARS} printable characters "
            f"(got {len(word)}: {word[:40]!r}).",
            hint="Prose belongs into notes.",
        )
    return word


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name}: must be text (got {value!r}).", hint="Pass str(...).")
    return value
