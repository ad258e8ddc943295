"""Identity of other programs' processes, by the tables of ``aliases.py``.

The section ``processes`` of a table:

    marked_by   attribute of the resource that only this program sets
    experiment  of processes that name none
    trial       attributes, the first one present counts; so for the next three
    role        e.g. its group of workers, or its service
    index       number in the group
    count       size of the group
    roles       role of each value of those attributes; another value is the role itself
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from otel_rl.semconv.aliases import sections
from otel_rl.semconv.names import (
    RL_EXPERIMENT_NAME,
    RL_TRIAL_NAME,
    RL_WORKER_COUNT,
    RL_WORKER_INDEX,
    RL_WORKER_ROLE,
)

__all__ = ["own_identity"]

_FIELDS: Final = {
    "trial": RL_TRIAL_NAME,
    "role": RL_WORKER_ROLE,
    "index": RL_WORKER_INDEX,
    "count": RL_WORKER_COUNT,
}


@dataclass(frozen=True, slots=True)
class _Processes:
    """Section of a TOML file about processes, as the module describes it."""

    marked_by: str
    experiment: str
    trial: Sequence[str] = ()
    role: Sequence[str] = ()
    index: Sequence[str] = ()
    count: Sequence[str] = ()
    roles: Mapping[str, str] = field(default_factory=dict)


def own_identity(attributes: Mapping[str, str]) -> Mapping[str, str]:
    """Return registry attributes that a resource lacks, derived from its program's own.

    Empty for a resource of no known program.

    Args:
        attributes: Of the resource, as text.
    """
    for program in _known():
        if attributes.get(program.marked_by):
            return {
                name: value
                for name, value in _identity(program, attributes)
                if value and not attributes.get(name)
            }
    return {}


def _identity(program: _Processes, attributes: Mapping[str, str]) -> list[tuple[str, str]]:
    found = [(RL_EXPERIMENT_NAME, program.experiment)]
    for field_name, name in _FIELDS.items():
        candidates: Sequence[str] = getattr(program, field_name)
        value = next((attributes[key] for key in candidates if attributes.get(key)), "")
        found.append((name, program.roles.get(value, value) if field_name == "role" else value))
    return found


@cache
def _known() -> Sequence[_Processes]:
    return [_Processes(**section) for section in sections("processes")]
