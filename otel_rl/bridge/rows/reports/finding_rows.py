"""Findings of a diagnosis, to be written to the run."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import field

from otel_rl.bridge.journal.state import Int64, Stored, check_json
from otel_rl.bridge.tracker_keys import DIAGNOSIS_ALERT, DIAGNOSIS_CAUSE, NO_FINDING
from otel_rl.records import Table

__all__ = ["Finding", "NewFindings"]

_COLUMNS = ("rank", "kind", "role", "worker", "phase", "since_step", "score", "words")


class Finding(Stored):
    """Result of a diagnosis, faults or none.

    Attributes:
        step: The last step in question.
        time_ns: Time of the diagnosis, by the bridge's clock.
        verdict: ``cause``, ``no clear cause``, ``healthy`` or ``cannot tell``.
        words: One sentence.
        causes: Ranked, each with the fields of the table.
    """

    step: Int64
    time_ns: Int64
    verdict: str
    words: str
    causes: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        check_json(self.causes)

    @property
    def subject(self) -> tuple[str, ...]:
        """Return a key that is equal for findings without news."""
        first = self.causes[0] if self.causes else {}
        return self.verdict, *(str(first.get(key)) for key in ("kind", "role", "worker"))

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels of the row."""
        cause = worker = alert = NO_FINDING
        if self.causes:
            first = self.causes[0]
            cause = str(first.get("kind"))
            worker = str(first.get("worker") or first.get("role") or "")
            alert = self.words
        return {
            "diagnosis/verdict": self.verdict,
            DIAGNOSIS_CAUSE: cause,
            "diagnosis/worker": worker,
            DIAGNOSIS_ALERT: alert,
        }

    @property
    def table(self) -> Table:
        """Return the table of all causes."""
        rows = [
            [place, *(cause.get(column) for column in _COLUMNS[1:])]
            for place, cause in enumerate(self.causes, 1)
        ]
        return Table(_COLUMNS, rows)


class NewFindings(Stored):
    """Findings of a run that differ from the one before.

    Attributes:
        waiting: Those that are in no row yet.
        last_subject: Subject of the last one; None before the first with a cause.
    """

    waiting: list[Finding] = field(default_factory=list)
    last_subject: tuple[str, ...] | None = None

    def add(self, finding: Finding) -> None:
        """Add a finding, unless it repeats the last one."""
        if finding.subject != self.last_subject and (
            finding.causes or self.last_subject is not None
        ):
            self.last_subject = finding.subject
            self.waiting.append(finding)

    def take(self) -> list[Finding]:
        """Remove and return those that are in no row yet."""
        waiting, self.waiting = self.waiting, []
        return waiting
