"""What a diagnosis found, on its way into the run that it is about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otel_rl.bridge.keys import DIAGNOSIS_ALERT, DIAGNOSIS_CAUSE
from otel_rl.records import Table, Value

__all__ = ["Finding"]

_COLUMNS = ("rank", "kind", "role", "worker", "phase", "since_step", "score", "words")


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a run, or that nothing is any more.

    Attributes:
        step: The last one that it is about.
        time_ns: When it was found, by the bridge's clock.
        verdict: ``cause``, ``no clear cause`` or ``healthy``.
        words: One sentence.
        causes: Ranked, each with the fields of the table.
    """

    step: int
    time_ns: int
    verdict: str
    words: str
    causes: Sequence[Mapping[str, Value]] = ()

    @property
    def subject(self) -> tuple[str, ...]:
        """Equal for findings of which the second would be no news."""
        first = self.causes[0] if self.causes else {}
        return self.verdict, *(str(first.get(key)) for key in ("kind", "role", "worker"))

    @property
    def labels(self) -> Mapping[str, str]:
        """What stands in the row."""
        labels = {"diagnosis/verdict": self.verdict}
        if self.causes:
            first = self.causes[0]
            labels[DIAGNOSIS_CAUSE] = str(first.get("kind"))
            labels["diagnosis/worker"] = str(first.get("worker") or first.get("role") or "")
            labels[DIAGNOSIS_ALERT] = self.words
        return labels

    @property
    def table(self) -> Table:
        """All causes."""
        rows = [
            [place, *(cause.get(column) for column in _COLUMNS[1:])]
            for place, cause in enumerate(self.causes, 1)
        ]
        return Table(_COLUMNS, rows)
