"""A scenario: troubles, what a program needs to show them, and what is right to say."""

from collections.abc import Sequence
from dataclasses import dataclass

from exams.second.program import System
from exams.second.trouble import Shape, Trouble, What

ONE = -1


@dataclass(frozen=True, slots=True)
class Answer:
    """Right answer to one trouble.

    Attributes:
        kinds: Words of docs/diagnose.md; any of them is right.
        names_worker: The trouble's worker should be named.
        has_onset: Its first step should be named.
    """

    kinds: frozenset[str]
    names_worker: bool = True
    has_onset: bool = True


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario.

    Attributes:
        troubles: With the answer to each; None for a change on purpose.
        may_say: Kinds that are no false alarm.
    """

    name: str
    system: System
    troubles: Sequence[tuple[Trouble, Answer | None]] = ()
    needs: frozenset[str] = frozenset()
    may_say: frozenset[str] = frozenset()

    @property
    def is_healthy(self) -> bool:
        return all(answer is None for _, answer in self.troubles)


def fault(
    name: str,
    what: What,
    role: str,
    kinds: str,
    *,
    phase: str = "",
    index: int | None = None,
    size: float = 0.0,
    begins: float = 0.5,
    shape: Shape = Shape.STEADY,
    needs: str = "",
    names_worker: bool = True,
) -> Scenario:
    """Return a scenario with one trouble. Its name begins with the system."""
    trouble = Trouble(what, role, index, phase, size, begins, shape)
    has_onset = begins > 0 and shape in (Shape.STEADY, Shape.PASSING, Shape.THIRD)
    answer = Answer(frozenset(kinds.split()), names_worker and index is not None, has_onset)
    system = System(name.split(".")[0])
    return Scenario(name, system, [(trouble, answer)], frozenset(needs.split()))


def both(name: str, one: Scenario, other: Scenario) -> Scenario:
    """Return a scenario with the troubles of two."""
    return Scenario(name, one.system, [*one.troubles, *other.troubles], one.needs | other.needs)


def healthy(
    name: str, what: What | None = None, role: str = "", size: float = 0.0, **more: object
) -> Scenario:
    """Return a scenario without a fault, perhaps with a change on purpose."""
    index = more.get("index")
    troubles = (
        []
        if what is None
        else [(Trouble(what, role, index if isinstance(index, int) else None, size=size), None)]
    )
    needs = frozenset(str(more.get("needs", "")).split())
    may_say = frozenset(str(more.get("may_say", "")).split())
    return Scenario(name, System(name.split(".")[0]), troubles, needs, may_say)
