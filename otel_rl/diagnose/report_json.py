"""Renders a diagnosis as JSON, in the form that ``docs/schemas/diagnose.json`` publishes."""

import math
from collections.abc import Sequence
from typing import Annotated, Final, TypedDict

import msgspec

from otel_rl import goodput
from otel_rl.diagnose.advice import compared_with, next_look
from otel_rl.diagnose.history.goodput import goodput_of
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.render import summary
from otel_rl.diagnose.result import (
    Cause,
    Diagnosis,
    Evidence,
    Kind,
    Observation,
    Observed,
    Verdict,
)
from otel_rl.records import ExperimentKey
from otel_rl.redaction import printable, redacted

SCHEMA_ID: Final = "https://json-schema.org/draft/2020-12/schema"


def _told(description: str) -> msgspec.Meta:
    return msgspec.Meta(description=description)


_Text = str | None
_Number = float | None


class EvidenceJson(TypedDict):
    """Finding that supports a cause."""

    what: Annotated[str, _told("In words.")]
    key: Annotated[_Text, _told("Tracker key that shows it.")]
    worker: Annotated[_Text, _told("<role>/<index>, if it is about one.")]
    before: Annotated[_Number, _told("Level before, or of what it is compared with.")]
    after: Annotated[_Number, _told("Level after.")]
    unit: Annotated[str, _told("Of the levels.")]
    traces: Annotated[list[str], _told("Ids of traces, in hexadecimal digits.")]


class AmountJson(TypedDict):
    """Size of a cause, by its strongest evidence with levels."""

    before: Annotated[_Number, _told("Level before, or of what it is compared with.")]
    after: Annotated[float, _told("Level after.")]
    ratio: Annotated[_Number, _told("after / before; null without a before.")]
    unit: Annotated[str, _told("Of the levels.")]


class CauseJson(TypedDict):
    """Cause of a fault: who, what, since when, how much, compared with whom, what to look at."""

    kind: Annotated[Kind, _told("The kind, see `otel-rl help diagnose`.")]
    role: Annotated[_Text, _told("Affected role.")]
    worker: Annotated[_Text, _told("<role>/<index>, if one is at fault and not its peers.")]
    host: Annotated[_Text, _told("Host of the worker; null if it is unknown.")]
    pid: Annotated[int | None, _told("Process id of the worker; null if it is unknown.")]
    phase: Annotated[_Text, _told("Affected phase.")]
    since_step: Annotated[int | None, _told("First step, about; null if it always was so.")]
    until_step: Annotated[int | None, _told("Last step, about; null if it goes on.")]
    amount: Annotated[AmountJson | None, _told("How much; null if it is no matter of amount.")]
    compared_with: Annotated[str, _told("What the amount is compared with, in words.")]
    next: Annotated[str, _told("What to look at next.")]
    tries: Annotated[
        list[str], _told("What to try, what that changes, and what shows it; settings come first.")
    ]
    stack: Annotated[list[str], _told("Where the worker stands, the innermost call first.")]
    score: Annotated[float, _told("Weight of the evidence, from 0 to 1.")]
    words: Annotated[str, _told("One sentence.")]
    evidence: Annotated[list[EvidenceJson], _told("The strongest first.")]


class ObservationJson(TypedDict):
    """Observation of a whole run by itself, without an earlier level."""

    kind: Annotated[Observed, _told("The kind, see `otel-rl help diagnose`.")]
    is_beyond: Annotated[bool, _told("Whether the amount is beyond its reference.")]
    role: Annotated[_Text, _told("Affected role.")]
    worker: Annotated[_Text, _told("<role>/<index>, if it is about one.")]
    phase: Annotated[_Text, _told("Affected phase.")]
    amount: Annotated[_Number, _told("A share from 0 to 1, an age in versions, or a ratio.")]
    seconds: Annotated[float, _told("Of a usual step, that it explains; 0 if unknown.")]
    step_s: Annotated[float, _told("Seconds of a usual step; 0 if unknown.")]
    words: Annotated[str, _told("One sentence.")]
    reference: Annotated[str, _told("What the amount is compared with, in words.")]
    doubt: Annotated[str, _told("What speaks against it, in words.")]
    tries: Annotated[
        list[str], _told("What to try, what that changes, and what shows it; settings come first.")
    ]


class BoundJson(TypedDict):
    """Phase with most of the time of the steps."""

    role: str
    phase: str
    share: Annotated[float, _told("Of the time, from 0 to 1.")]
    partial: Annotated[int, _told("Number of the steps of which spans may be missing.")]


class DiagnosisJson(TypedDict):
    """Diagnosis of some steps."""

    steps: Annotated[list[int], msgspec.Meta(description="First and last.", min_length=2)]
    verdict: Annotated[Verdict, _told("The verdict, see `otel-rl help diagnose`.")]
    causes: Annotated[list[CauseJson], _told("The most likely first.")]
    observations: Annotated[
        list[ObservationJson], _told("First what is beyond its reference, by seconds of a step.")
    ]
    symptoms: Annotated[list[str], _told("Changes in words, with or without a cause.")]
    bound: Annotated[BoundJson | None, _told("null if no step was explained.")]
    failures: Annotated[list[str], _told("Of workers, apart from those that are causes.")]
    seen: Annotated[str, _told("What the verdict rests on.")]
    changes: Annotated[list[str], _told("Deliberate changes, which are no faults.")]
    doubts: Annotated[list[str], _told("Why a run without a finding may not be healthy.")]
    words: Annotated[str, _told("The diagnosis in one sentence.")]


class SpentJson(TypedDict):
    """Time of workers, in seconds."""

    productive_s: float
    overhead_s: float
    idle_s: float
    wasted_s: float


class RunDiagnosisJson(DiagnosisJson):
    """Output of ``otel-rl diagnose --json``. Fields may be added; none changes its meaning."""

    experiment: str
    trial: str
    attempt: Annotated[int, _told("Of the steps, from 1.")]
    goodput: Annotated[dict[str, SpentJson], _told("By role; under an empty name of all.")]


def json_schema() -> dict[str, object]:
    schema = msgspec.json.schema(RunDiagnosisJson)
    return {"$schema": SCHEMA_ID, "title": "otel-rl diagnose --json", **schema}


def run_as_json(key: ExperimentKey, history: RunHistory, report: Diagnosis) -> RunDiagnosisJson:
    spent = goodput.as_json(goodput_of(history))
    return {
        "experiment": printable(key.experiment),
        "trial": printable(key.trial),
        "attempt": history.attempt,
        "goodput": {printable(role): msgspec.convert(of, SpentJson) for role, of in spent.items()},
        **as_json(report),
    }


def as_json(report: Diagnosis) -> DiagnosisJson:
    """Return the report in plain values; NaN and infinities are null."""
    bound = report.bound
    return {
        "steps": [report.first, report.last],
        "verdict": report.verdict,
        "causes": [_cause(cause) for cause in report.causes],
        "observations": [_observation(one) for one in report.observations],
        "symptoms": [printable(symptom) for symptom in report.symptoms],
        "bound": None
        if bound is None
        else {
            "role": printable(bound[0]),
            "phase": printable(bound[1]),
            "share": round(bound[2], 4),
            "partial": report.partial,
        },
        "failures": [printable(failure) for failure in report.failures],
        "seen": printable(report.seen),
        "changes": [printable(change) for change in report.changes],
        "doubts": [printable(doubt) for doubt in report.doubts],
        "words": printable(summary(report)),
    }


def _cause(cause: Cause) -> CauseJson:
    return {
        "kind": cause.kind,
        "role": _printable(cause.role),
        "worker": _printable(cause.worker),
        "host": _printable(cause.host),
        "pid": cause.pid,
        "phase": _printable(cause.phase),
        "since_step": cause.since,
        "until_step": cause.until,
        "amount": _amount(cause.evidence),
        "compared_with": printable(compared_with(cause)),
        "next": printable(next_look(cause)),
        "tries": [*cause.tries],
        "stack": [printable(redacted(frame)) for frame in cause.stack],
        "score": round(cause.score, 3),
        "words": printable(cause.words),
        "evidence": [_evidence(one) for one in cause.evidence],
    }


def _observation(one: Observation) -> ObservationJson:
    return {
        "kind": one.kind,
        "is_beyond": one.is_beyond,
        "role": _printable(one.role),
        "worker": _printable(one.worker),
        "phase": _printable(one.phase),
        "amount": _number(one.amount),
        "seconds": round(one.seconds, 6),
        "step_s": round(one.step_s, 6),
        "words": printable(one.words),
        "reference": one.reference,
        "doubt": one.doubt,
        "tries": [*one.tries],
    }


def _evidence(one: Evidence) -> EvidenceJson:
    return {
        "what": printable(one.what),
        "key": _printable(one.key),
        "worker": _printable(one.worker),
        "before": _number(one.before),
        "after": _number(one.after),
        "unit": one.unit,
        "traces": list(one.traces),
    }


def _amount(evidence: Sequence[Evidence]) -> AmountJson | None:
    for one in evidence:
        before, after = _number(one.before), _number(one.after)
        if after is not None:
            ratio = _number(after / before) if before else None
            return {"before": before, "after": after, "ratio": ratio, "unit": one.unit}
    return None


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _printable(text: str | None) -> str | None:
    """Make a sender's text printable: printed values of JSON are not escaped."""
    return None if text is None else printable(text)
