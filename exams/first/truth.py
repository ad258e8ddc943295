"""The right answers of a case. Only the judge reads them: nothing of them is in any request."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    """One fault of a run.

    Attributes:
        name: Of the fault, for the table.
        kinds: Kinds of causes that are right answers, as strings.
        step: The first step that it affects; None if it was there from the beginning.
        role: The affected role; None if there is none.
        worker: The affected worker; None if it is not a single one.
        symptom_s: When its first effect has been reported, in seconds of the run.
        in_words: Size and place, for a reader of the figures.
        visible_s: When work that hangs has been reported for twice the longest time that it ever
            took, in seconds of the run; None of other faults.
    """

    name: str
    kinds: frozenset[str]
    step: int | None
    role: str | None = None
    worker: str | None = None
    symptom_s: float | None = None
    in_words: str = ""
    visible_s: float | None = None


@dataclass(frozen=True)
class Truth:
    """What is so in a run.

    Attributes:
        faults: By onset; none in a healthy run.
        changes: Deliberate changes, which are no faults.
    """

    faults: tuple[Fault, ...] = ()
    changes: tuple[str, ...] = field(default=())

    @property
    def is_healthy(self) -> bool:
        return not self.faults
