"""Compares what was said of a run with the truth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

from exams.first.truth import Fault, Truth
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Diagnosis, Verdict

_NEAR = 3  # steps by which an onset may be wrong


class Diagnose(Protocol):
    """Rules, as ``otel_rl.diagnose.engine.diagnose``."""

    def __call__(self, history: RunHistory, /, *, passed: bool, silent_s: float) -> Diagnosis: ...


class Named(NamedTuple):
    """Cause that was named."""

    kind: str
    role: str | None
    worker: str | None
    since: int | None

    def is_fault(self, fault: Fault) -> bool:
        """Whether it is this fault: of its kind, not of another role."""
        if self.kind not in fault.kinds:
            return False
        return fault.role is None or self.role is None or self.role == fault.role

    def __str__(self) -> str:
        return f"{self.kind} {self.worker or self.role or ''} since {self.since}"


@dataclass(frozen=True)
class Look:
    """Diagnosis at some time.

    Attributes:
        at_s: Seconds of the run.
        verdict: The verdict.
        causes: In order.
        is_last: Whether it is that after the run.
    """

    at_s: float
    verdict: str
    causes: Sequence[Named]
    is_last: bool

    @classmethod
    def of(cls, at_s: float, found: Diagnosis, *, is_last: bool) -> Self:
        causes = [
            Named(str(one.kind), _role(one.role, one.worker), one.worker, one.since)
            for one in found.causes
        ]
        return cls(at_s, str(found.verdict), causes, is_last)

    def finds(self, truth: Truth) -> bool:
        """Whether the first cause is the first fault."""
        return bool(self.causes) and self.causes[0].is_fault(truth.faults[0])


def _role(role: str | None, worker: str | None) -> str | None:
    return role or (None if worker is None else worker.rpartition("/")[0])


@dataclass(frozen=True)
class Mark:
    """Result of a case.

    Attributes:
        number: Of the case.
        truth: The truth.
        said: The last verdict, and its causes.
        right_first: Whether the first cause is a fault of the run; for a healthy one, whether no
            look named a cause.
        right_worker: Whether it is of the right worker; None if no single one is at fault.
        right_onset: Whether its first step is right within three; None if it was always there.
        right_second: Whether both faults of two are among the causes; None if there is one.
        is_false_alarm: Whether a cause was named that is none: in a healthy run, or before the
            first symptom.
        told_s: Seconds from the first symptom to the first look that names it first; None if only
            the last look does, or none.
        about: The run.
    """

    number: int
    truth: Truth
    said: str
    right_first: bool
    right_worker: bool | None = None
    right_onset: bool | None = None
    right_second: bool | None = None
    is_false_alarm: bool = False
    told_s: float | None = None
    about: Mapping[str, object] = field(default_factory=dict)

    @property
    def told_visible_s(self) -> float | None:
        """Seconds to that look from when a first fault that hangs could be seen; None of others."""
        fault = self.truth.faults[0] if self.truth.faults else None
        if self.told_s is None or fault is None or fault.visible_s is None:
            return None
        return max(0.0, self.told_s + (fault.symptom_s or 0.0) - fault.visible_s)

    @property
    def name(self) -> str:
        """Of its kind of case."""
        if self.truth.is_healthy:
            return "healthy" + "".join(f", {one.split(' x')[0]}" for one in self.truth.changes)
        return " + ".join(fault.name for fault in self.truth.faults)


def judged(number: int, truth: Truth, looks: Sequence[Look]) -> Mark:
    """Return the result of a case.

    Args:
        number: Of the case.
        truth: Of the case.
        looks: In order; the last is that after the run.
    """
    last = looks[-1]
    said = "; ".join(map(str, last.causes)) or last.verdict
    if truth.is_healthy:
        alarms = [look for look in looks if look.verdict == Verdict.CAUSE]
        if alarms and not last.causes:
            said = f"{said}; at {alarms[0].at_s:.0f} s: {'; '.join(map(str, alarms[0].causes))}"
        return Mark(number, truth, said, not alarms, is_false_alarm=bool(alarms))
    symptom_s = truth.faults[0].symptom_s or 0.0
    early = [look for look in looks if look.at_s < symptom_s and look.causes]
    is_early = bool(early) and truth.faults[0].step is not None
    first = last.causes[0] if last.causes else None
    fault = next((one for one in truth.faults if first and first.is_fault(one)), None)
    second = None
    if len(truth.faults) > 1:
        second = all(any(one.is_fault(f) for one in last.causes) for f in truth.faults)
    blamed = fault or truth.faults[0]
    return Mark(
        number,
        truth,
        said,
        fault is not None,
        None if blamed.worker is None else first is not None and first.worker == blamed.worker,
        None if blamed.step is None else fault is not None and _is_near(first, fault),
        second,
        is_early,
        _told(looks, truth),
    )


def _told(looks: Sequence[Look], truth: Truth) -> float | None:
    """Return the time to the first look during the run that finds it.

    What was there from the beginning may be found before the step ends that shows it.
    """
    symptom_s = truth.faults[0].symptom_s or 0.0
    begins_s = symptom_s if truth.faults[0].step is not None else 0.0
    of_run = [look for look in looks if not look.is_last and look.at_s >= begins_s]
    told_s = (look.at_s - symptom_s for look in of_run if look.finds(truth))
    return next((max(0.0, seconds) for seconds in told_s), None)


def _is_near(named: Named | None, fault: Fault) -> bool:
    if named is None or named.since is None or fault.step is None:
        return False
    return abs(named.since - fault.step) <= _NEAR
