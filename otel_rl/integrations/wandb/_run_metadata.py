"""Run metadata that the program can read back."""

import secrets
import string
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from otel_rl.integrations.wandb._log_once import warn_once

__all__ = ["About", "Given", "generate_id"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class About:
    """Run metadata from the program.

    Attributes:
        project: As given.
        name: As given.
        id: As given, else the trial.
        entity: As given.
        group: As given.
        job_type: As given.
        notes: As given.
        tags: As given.
        mode: ``online``, ``offline`` or ``shared``, if given.
        dir: Directory for the program's files. They are not uploaded.
        disabled: True if nothing is recorded.
    """

    project: str
    name: str
    id: str
    entity: str = ""
    group: str = ""
    job_type: str = ""
    notes: str | None = None
    tags: tuple[str, ...] = ()
    mode: str = ""
    dir: str = "."
    disabled: bool = False


class Described(Protocol):
    """Owner of an ``About`` that can report it."""

    about: About

    def report_metadata(self) -> None:
        """Report the metadata to the run."""
        ...


class Given(Generic[T]):
    """Attribute of a run with the program's value.

    Args:
        is_reported: True reports changes to the common run. False keeps them in the process, with a
            warning.
    """

    def __init__(self, *, is_reported: bool = False) -> None:
        self._is_reported = is_reported

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, run: Described, owner: type) -> T:
        value: T = getattr(run.about, self._name)
        return value

    def __set__(self, run: Described, value: T) -> None:
        changed: dict[str, Any] = {self._name: value}
        run.about = replace(run.about, **changed)
        if self._is_reported:
            run.report_metadata()
        else:
            warn_once(
                f"run.{self._name} = ... after init() changes nothing in the run that is written."
            )


def generate_id(length: int = 8) -> str:
    """Generate random lower-case letters and digits, like ``wandb.util.generate_id``."""
    alphabet = string.ascii_lowercase + string.digits
    return "".join(secrets.choice(alphabet) for _ in range(length))
