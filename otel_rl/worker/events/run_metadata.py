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
    RlExperimentModeValues,
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

MAX_TAGS: Final = 64

MAX_NOTES_CHARS: Final = 16_384


def validated_metadata(
    guard: Guard,
    *,
    config: Mapping[str, object] | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    group: str | None = None,
    job_type: str | None = None,
    project: str | None = None,
    entity: str | None = None,
    name: str | None = None,
    mode: str | None = None,
) -> RunMetadata:
    """Validate the arguments of ``init`` about the run; omit arguments without a value.

    ``guard`` counts the settings that are too large.

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
    for argument, attribute, word in (
        ("group", RL_EXPERIMENT_GROUP, group),
        ("job_type", RL_EXPERIMENT_JOB_TYPE, job_type),
        ("project", RL_EXPERIMENT_PROJECT, project),
        ("entity", RL_EXPERIMENT_ENTITY, entity),
        ("name", RL_EXPERIMENT_DISPLAY_NAME, name),
    ):
        if word:
            metadata[attribute] = _word(argument, word)
    if mode:
        if mode not in tuple(RlExperimentModeValues):
            words = ", ".join(RlExperimentModeValues)
            raise ConfigError(
                f"mode: must be one of {words} (got {mode!r}).",
                hint="To record nothing, set OTEL_SDK_DISABLED=true.",
            )
        metadata[RL_EXPERIMENT_MODE] = str(mode)
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
