"""What a program has said about its run, to be read by it; the run that is written is otel_rl's."""

import secrets
import string
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from otel_rl.compat.wandb._say import say_once

__all__ = ["About", "Given", "generate_id"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class About:
    """What a program has said about its run.

    Attributes:
        project: As given.
        name: As given.
        id: As given, or made up.
        entity: As given.
        group: As given.
        job_type: As given.
        notes: As given.
        tags: As given.
        dir: Where the program may write files. They are not uploaded.
        disabled: Whether nothing is recorded.
    """

    project: str
    name: str
    id: str
    entity: str = ""
    group: str = ""
    job_type: str = ""
    notes: str | None = None
    tags: tuple[str, ...] = ()
    dir: str = "."
    disabled: bool = False


class Described(Protocol):
    """Has an ``About``, and tells it."""

    about: About

    def tell_about(self) -> None:
        """Give the run what is told of it."""
        ...


class Given(Generic[T]):
    """An attribute of a run as the program gave it.

    Args:
        is_told: Whether the run that is written gets it, too. If not, a change stays in the
            process, and says so.
    """

    def __init__(self, *, is_told: bool = False) -> None:
        self._is_told = is_told

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, run: Described, owner: type) -> T:
        value: T = getattr(run.about, self._name)
        return value

    def __set__(self, run: Described, value: T) -> None:
        changed: dict[str, Any] = {self._name: value}
        run.about = replace(run.about, **changed)
        if self._is_told:
            run.tell_about()
        else:
            say_once(
                f"run.{self._name} = ... after init() changes nothing in the run that is written."
            )


def generate_id(length: int = 8) -> str:
    """Random lower-case letters and digits, as ``wandb.util.generate_id`` gives."""
    alphabet = string.ascii_lowercase + string.digits
    return "".join(secrets.choice(alphabet) for _ in range(length))
