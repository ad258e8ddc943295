"""Validated run metadata, as the attributes of ``rl.experiment.start``."""

from collections.abc import Mapping, Sequence
from typing import Final

from otel_rl.errors import ConfigError
from otel_rl.semconv.names import (
    RL_EXPERIMENT_CONFIG,
    RL_EXPERIMENT_CONFIG_DEFAULTS,
    RL_EXPERIMENT_DISPLAY_NAME,
    RL_EXPERIMENT_ENTITY,
    RL_EXPERIMENT_GROUP,
    RL_EXPERIMENT_JOB_TYPE,
    RL_EXPERIMENT_MODE,
    RL_EXPERIMENT_NOTES,
    RL_EXPERIMENT_PROJECT,
    RL_EXPERIMENT_TAGS,
)
from otel_rl.worker.drops import DropReason
from otel_rl.worker.guard import Guard
from otel_rl.worker.otlp.anyvalue import MAX_CONFIG_BYTES, Plain, cut, plain_config

__all__ = [
    "MAX_TAGS",
    "MAX_WORD_CHARS",
    "RunMetadata",
    "config_metadata",
    "validated_metadata",
    "with_defaults",
]

RunMetadata = Mapping[str, Plain]
"""Attributes of ``rl.experiment.start``. Empty: the event only reports a running run."""

MAX_WORD_CHARS: Final = 128
"""Per tag, group or other name. W&B refuses longer ones."""

_WORDS: Final = {
    "group": RL_EXPERIMENT_GROUP,
    "job_type": RL_EXPERIMENT_JOB_TYPE,
    "project": RL_EXPERIMENT_PROJECT,
    "entity": RL_EXPERIMENT_ENTITY,
    "name": RL_EXPERIMENT_DISPLAY_NAME,
    "mode": RL_EXPERIMENT_MODE,
}
"""Attribute of each argument that is one word or name."""

MAX_TAGS: Final = 64

MAX_NOTES_CHARS: Final = 16_384


def validated_metadata(
    guard: Guard,
    *,
    config: Mapping[str, object] | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    **words: str | None,
) -> RunMetadata:
    """Validate the arguments of ``init`` about the run; omits those without a value.

    Args:
        guard: Counts the settings that are too large.
        config: See ``init``.
        notes: See ``init``.
        tags: See ``init``.
        words: ``group``, ``job_type``, ``project``, ``entity``, ``name`` and ``mode``, in W&B's
            meaning of the words.

    Raises:
        ConfigError: An argument has a wrong type, or is too long.
    """
    metadata: dict[str, Plain] = {}
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config: must be a mapping (got {type(config).__name__}).",
            hint="Pass vars(arguments) or dataclasses.asdict(settings).",
        )
    if config:
        metadata.update(config_metadata(config, guard))
    if notes:
        metadata[RL_EXPERIMENT_NOTES] = cut(_text("notes", notes), MAX_NOTES_CHARS)
    if tags:
        metadata[RL_EXPERIMENT_TAGS] = _tags(tags)
    metadata.update({_WORDS[key]: _word(key, word) for key, word in words.items() if word})
    return metadata


def config_metadata(config: Mapping[str, object], guard: Guard) -> RunMetadata:
    """Convert the config to an attribute. Never raises.

    Args:
        config: Hyper-parameters, with their present values.
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


def with_defaults(config: Mapping[str, object], metadata: RunMetadata, guard: Guard) -> RunMetadata:
    """Add hyper-parameters below those that any process gives. Never raises."""
    given = config_metadata(config, guard)
    if not given:
        return metadata
    return {**metadata, RL_EXPERIMENT_CONFIG_DEFAULTS: given[RL_EXPERIMENT_CONFIG]}


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
            hint="Long text belongs in notes.",
        )
    return word


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name}: must be text (got {value!r}).", hint="Pass str(...).")
    return value
